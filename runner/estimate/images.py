"""Images: the formulas behind the forecast of a stage of the image trainer (`runner.training.images_model`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import duration, images_memory, measured, resnet, steps
from runner.estimate.activations import FULL
from runner.estimate.counts import Counts
from runner.estimate.duration import Duration
from runner.estimate.memory import Memory, smallest_card, usable
from runner.estimate.resnet import Images, convolutions, flops, kept
from runner.estimate.rows import Rows
from runner.plan import Stage
from runner.recipe.recipe import Recipe

# What Python needs to launch one layer's kernels (convolution, norm, ReLU) forward and backward, and the optimizer's.
SECONDS_A_LAYER = 5e-4


def workload(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> Images:
    """The workload of a stage, read from the very config that the image trainer gets."""
    model, trainer = stage.config["model"], stage.config["trainer"]
    facts = catalog.dataset(stage.data.get("hub") or "") or {}
    return Images(
        machines=stage.machines,
        **model,
        precision="bf16" if trainer["bf16"] else "fp16" if trainer["fp16"] else "fp32",
        micro_batch_size=trainer["per_device_train_batch_size"],
        evaluation_batch_size=trainer["per_device_eval_batch_size"],
        accumulation=trainer["gradient_accumulation_steps"],
        optimizer=trainer["optim"],
        sharding="none" if stage.machines.world_size == 1 else "ddp",
        epochs=trainer["num_train_epochs"],
        learning_rate=trainer["learning_rate"],
        warmup_ratio=trainer["warmup_ratio"],
        rows=rows.training,
        evaluation_rows=rows.validation,
        test_rows=facts.get("test_rows", 0) if stage.data.get("test_split") else 0,
        keep=trainer["save_total_limit"],
    )


def name(work: Images) -> str:
    return f"{work.architecture}, {work.width} channels wide, {work.classes} classes"


def counts(work: Images) -> Counts:
    return resnet.counts(work)


def gpu_memory(work: Images) -> Memory:
    return images_memory.estimate(work)


def rate(work: Images, gpu: Gpu) -> float:
    """Operations a second that the card's data sheet promises."""
    table = {"fp32": gpu.fp32_tflops, "bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops}
    return (table[work.precision] or gpu.fp32_tflops) * 1e12


def pass_seconds(work: Images, gpu: Gpu, rows: int, training: bool = True) -> float:
    """One micro batch. What is kept is written once and read twice or more, and backward moves as much again; small
    images leave a GPU waiting for Python, which launches every layer's kernels."""
    compute = flops(work, rows, training) / (rate(work, gpu) * duration.MATMUL_SHARE)
    moved = rows * sum(kept(work)) * (6 if training else 2) + counts(work).total * FULL
    moving = moved / (gpu.memory_gb_s * 1e9 * duration.BANDWIDTH_SHARE)
    launching = len(list(convolutions(work))) * SECONDS_A_LAYER * (1 if training else 0.3)
    return max(compute + moving, launching) * measured.constants(gpu.name).slowness


def count_steps(work: Images) -> int | None:
    """Steps of the optimizer; None where nobody knows how many images there are."""
    return steps.steps_of(work.rows, work.effective_batch_size, work.epochs)


def time(work: Images, gpu: Gpu) -> Duration | None:
    """The time of a run; None where nobody knows how many images there are."""
    count = count_steps(work)
    if count is None:
        return None
    world, state = work.machines.world_size, gpu_memory(work).state
    link = duration.slowest_link(work.machines, gpu, work.network)
    wait = 0.5 * 2 * (world - 1) / world * state.gradients / link
    update = (2 * state.optimizer + 3 * state.gradients) / (gpu.memory_gb_s * 1e9 * duration.BANDWIDTH_SHARE)
    step = pass_seconds(work, gpu, work.micro_batch_size) * work.accumulation + wait + update
    one = pass_seconds(work, gpu, work.evaluation_batch_size, training=False)

    def evaluated(rows: int | None) -> float:
        return one * math.ceil((rows or 0) / world / work.evaluation_batch_size)

    epochs = max(1, math.ceil(work.epochs))
    saved = epochs * (2 * state.weights + state.optimizer) / (duration.DISK_GB_S * 1e9)
    return Duration(
        steps=count,
        step_seconds=step,
        waiting_seconds=wait,
        training_seconds=count * step,
        evaluation_seconds=(epochs + 1) * evaluated(work.evaluation_rows) + evaluated(work.test_rows),
        overhead_seconds=duration.START_SECONDS + saved,
        rows_a_step=work.effective_batch_size,
        tokens_a_step=0,
        tokens=0,
        evaluations=epochs + 1,
        flops=flops(work, work.micro_batch_size),
        spread=measured.constants(gpu.name).spread,
    )


def offers(recipe: Recipe, stage: Stage, work: Images, gpu: Gpu, budget: float) -> list[Any]:
    """The cheapest changes that bring the memory to `budget` bytes."""
    from runner.estimate.advice import Advice

    found = []
    divisors = [n for n in range(work.micro_batch_size - 1, 0, -1) if work.micro_batch_size % n == 0]
    for rows in divisors:
        changed = replace(work.with_rows(rows), accumulation=work.accumulation * work.micro_batch_size // rows)
        if gpu_memory(changed).total <= budget:
            lines = (f"train.micro_batch_size: {rows}", f"train.gradient_accumulation_steps: {changed.accumulation}")
            found.append(Advice(lines, "same effective batch, slower", changed))
            break
    if work.precision == "fp32" and gpu.bf16:
        found.append(Advice(("model.precision: bf16",), "slightly less exact", replace(work, precision="bf16")))
    narrower = replace(work, width=work.width // 2)
    found.append(Advice((f"model.width: {narrower.width}",), "a quarter of the parameters, learns less", narrower))
    enough = [one for one in found if gpu_memory(one.workload).total <= budget]
    if budget == usable(gpu) and (card := smallest_card(gpu_memory(work).total, work.precision)):
        enough.append(Advice((f"machines.gpu: {card.name}",), "a larger card", work))
    return enough[:3]


def written(work: Images, stage: Stage) -> dict[str, int]:
    """Bytes that the run leaves: prepared pixels, a checkpoint (weights and optimizer), and the three weight files, of
    which the latest has the optimizer with it."""
    images = (work.rows or 0) + (work.evaluation_rows or 0) + work.test_rows
    state = gpu_memory(work).state
    return {
        "prepared data": images * 3 * work.image_size**2,
        "checkpoint": state.weights + state.optimizer,
        "weights (latest, best, final)": 3 * state.weights + state.optimizer,
    }


def beside(work: Images, stage: Stage) -> dict[str, int]:
    """Bytes of main memory: every process holds all images as bytes."""
    return {"images": stage.machines.gpus_per_node * written(work, stage)["prepared data"]}
