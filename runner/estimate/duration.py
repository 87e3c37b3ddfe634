"""Time: how long a run takes, from operations, bytes moved and messages sent. Seconds throughout."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import activations, measured, memory, parameters, saved
from runner.estimate.activations import HALF
from runner.estimate.state import held, trained_bytes
from runner.estimate.steps import packed, row_tokens, steps
from runner.estimate.workload import Workload
from runner.plan import Machines

# Shares of a data sheet's figures that training reaches, and what a data sheet does not say. Assumed; what
# benchmarks/memory_on_gpu.py has measured of a card corrects their sum (`measured.py`).
MATMUL_SHARE = 0.60
BANDWIDTH_SHARE = 0.75
LINK_SHARE = 0.70
NETWORK_SHARE = 0.80
SECONDS_A_LAYER = 1.2e-3  # what Python needs to launch a layer's kernels, forward and backward
START_SECONDS = 60.0  # imports, tokenising a small set, loading kernels
DISK_GB_S = 1.0  # reading the model, writing checkpoints


@dataclass(frozen=True)
class Duration:
    """steps: of the optimizer, a count. The rest in seconds: of one step, of it spent waiting for other GPUs, of all
    steps, of evaluations, of starting and saving. tokens_a_step, rows_a_step: over all GPUs; tokens are 0 for images.
    flops: of one micro batch. spread: the fastest and the slowest that is likely, as shares of the time.
    """

    steps: int
    step_seconds: float
    waiting_seconds: float
    training_seconds: float
    evaluation_seconds: float
    overhead_seconds: float
    rows_a_step: int
    tokens_a_step: float
    tokens: float
    evaluations: int
    flops: float
    spread: tuple[float, float] = measured.ASSUMED.spread

    @property
    def total_seconds(self) -> float:
        return self.training_seconds + self.evaluation_seconds + self.overhead_seconds

    @property
    def range_seconds(self) -> tuple[float, float]:
        return self.total_seconds * self.spread[0], self.total_seconds * self.spread[1]

    def as_json(self) -> dict[str, Any]:
        """Every field, and what follows from them."""
        derived = ("total_seconds", "range_seconds", "samples_a_second", "tokens_a_second")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    @property
    def samples_a_second(self) -> float:
        return self.rows_a_step / self.step_seconds

    @property
    def tokens_a_second(self) -> float:
        return self.tokens_a_step / self.step_seconds


def flops(workload: Workload, rows: float, training: bool = True) -> float:
    """Operations of one micro batch: 2 a weight and token forward, as many for each of the two gradients that are
    needed (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), attention by half of its square (arXiv 2307.08691, 4.1).
    """
    model, length = workload.model, row_tokens(workload)
    tokens = rows * length
    layer_weights = sum(prod(shape) for shape in parameters.linear(model).values())
    half = 1 if workload.attention == "eager" else 0.5
    scores = 4 * half * length * model.num_attention_heads * model.head_dim
    layer, head = 2 * layer_weights + scores, 2 * model.vocab_size * model.hidden_size
    forward = tokens * (model.num_hidden_layers * layer + head)
    if not training:
        return forward
    reached = model.num_hidden_layers - activations.first_trained(workload)
    repeated = reached * layer if workload.checkpointing else 0
    inputs = reached * (2 * layer_weights + scores * (2.5 if half == 0.5 else 2)) + head
    own = sum(activations.layers_trained(workload)) * 2 * layer_weights
    name = model.embedding if model.tied else model.lm_head
    own += head if workload.trains(name) else 0
    added = 6 * parameters.adapter(workload)
    return forward + tokens * (repeated + inputs + own + added)


def traffic(workload: Workload, rows: float, training: bool = True) -> float:
    """Bytes that a micro batch moves through the card's memory: what the forward pass keeps is written and read, and
    the backward pass moves about twice that; weights are read in each pass; the loss goes over its logits thrice."""
    tokens = rows * row_tokens(workload)
    trained = activations.layers_trained(workload)
    kept = sum(activations.layer(workload, own) for own in trained) * tokens
    weights = held(workload).weights
    logits = memory.loss(workload, round(tokens), training)
    if not training:
        return 2 * kept + weights + 2 * logits
    return (8 if workload.checkpointing else 6) * kept + 3 * weights + 3 * logits


def rate(workload: Workload, gpu: Gpu) -> float:
    """Operations a second that the card's data sheet promises for the run's precision."""
    table = {"bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops, "fp32": gpu.fp32_tflops}
    if workload.fp8 and gpu.fp8_tflops and gpu.fp8:
        # Only the layers' products run in FP8; attention and head stay: three quarters of the gain (torchao, float8).
        return (0.25 * gpu.bf16_tflops + 0.75 * gpu.fp8_tflops) * 1e12
    return (table[workload.precision] or gpu.fp32_tflops) * 1e12


def pass_seconds(workload: Workload, gpu: Gpu, rows: float, training: bool = True) -> float:
    """One micro batch on one GPU, forward and backward, or forward alone."""
    return assumed_seconds(workload, gpu, rows, training) * measured.constants(gpu.name).slowness


def assumed_seconds(workload: Workload, gpu: Gpu, rows: float, training: bool = True) -> float:
    """The same before anything has been measured."""
    compute = flops(workload, rows, training) / (rate(workload, gpu) * MATMUL_SHARE)
    moving = traffic(workload, rows, training) / (gpu.memory_gb_s * 1e9 * BANDWIDTH_SHARE)
    launching = workload.model.num_hidden_layers * SECONDS_A_LAYER * (1 if training else 0.3)
    return max(compute + moving, launching)


def waiting(workload: Workload, gpu: Gpu) -> float:
    """Seconds of a step that GPUs wait for each other. A ring moves 2(n-1)/n of the gradients (Patarasuk and Yuan 2009);
    ZeRO-3 and FSDP move half as much again and do so every micro batch (arXiv 1910.02054, section 7). The slowest link
    counts, and half of it is hidden behind the backward pass."""
    count = workload.machines.world_size
    if count == 1:
        return 0.0
    state = parameters.trainable(workload) * (4 if workload.adapter else HALF)
    if workload.sharding == "ddp":
        state = trained_bytes(workload)  # it sends gradients as they are
    moved = 2 * (count - 1) / count * state
    if workload.sharding in ("zero3", "fsdp"):
        whole = parameters.total(workload.model) * HALF
        moved = (count - 1) / count * (2 * whole * workload.accumulation + state)
    return 0.5 * moved / slowest_link(workload.machines, gpu, workload.network)


def slowest_link(machines: Machines, gpu: Gpu, network: str) -> float:
    """Bytes a second between two GPUs, over the network where there are several machines. network: its kind."""
    link = gpu.link_gb_s * 1e9 * LINK_SHARE
    if machines.nodes > 1:
        link = min(link, catalog.network(network).gbit_s * 1e9 / 8 * NETWORK_SHARE)
    return link


def updating(workload: Workload, gpu: Gpu) -> float:
    """The optimizer's step: weights, gradients and state are read, weights and state written."""
    state = held(workload)
    if workload.offload:
        return 16 * parameters.trainable(workload) / workload.machines.world_size / 10e9  # over PCIe and main memory
    return (2 * state.optimizer + 3 * state.gradients) / (gpu.memory_gb_s * 1e9 * BANDWIDTH_SHARE)


def step_seconds(workload: Workload, gpu: Gpu) -> float:
    """One step of the optimizer: its micro batches, in preference training through the reference model too, the wait for
    other GPUs, and the update."""
    at_once = workload.micro_batch_size * workload.answers
    micro = pass_seconds(workload, gpu, at_once)
    if workload.objective == "dpo":
        micro += pass_seconds(workload, gpu, at_once, training=False)
    return micro * workload.accumulation + waiting(workload, gpu) + updating(workload, gpu)


def estimate(workload: Workload, gpu: Gpu) -> Duration | None:
    """The time of a run; None where nobody knows how many rows there are."""
    count = steps(workload)
    if count is None:
        return None
    step, wait = step_seconds(workload, gpu), waiting(workload, gpu)
    evaluations, pass_of_all = evaluating(workload, gpu, count)
    saves = count // workload.save_steps if workload.save_steps else max(1, math.ceil(workload.epochs))
    moved = saved.whole(workload) + saves * saved.checkpoint(workload)
    tokens = row_tokens(workload) * workload.effective_batch_size * workload.answers
    return Duration(
        steps=count,
        step_seconds=step,
        waiting_seconds=wait,
        training_seconds=count * step,
        evaluation_seconds=evaluations * pass_of_all,
        overhead_seconds=START_SECONDS + moved / (DISK_GB_S * 1e9),
        rows_a_step=workload.batch_rows or workload.effective_batch_size,
        tokens_a_step=tokens,
        tokens=tokens * count,
        evaluations=evaluations,
        flops=flops(workload, workload.micro_batch_size * workload.answers),
        spread=measured.constants(gpu.name).spread,
    )


def evaluating(workload: Workload, gpu: Gpu, steps: int) -> tuple[int, float]:
    """How often a run of so many steps is evaluated, the first time before it starts, and the seconds of one time."""
    if not workload.evaluation_rows:
        return 0, 0.0
    times = steps // workload.evaluation_steps if workload.evaluation_steps else max(1, math.ceil(workload.epochs))
    alone = replace(workload, packing=workload.evaluation_packing)
    share = (packed(alone, workload.evaluation_rows) or 0) / workload.machines.world_size
    batches = math.ceil(share / workload.evaluation_batch_size)
    batch_seconds = pass_seconds(alone, gpu, workload.evaluation_batch_size * workload.answers, training=False)
    # The reference model reads the same.
    return times + 1, batches * batch_seconds * (2 if workload.objective == "dpo" else 1)
