"""How a plan looks: tables for people, JSON for tools. No figure is made here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.estimate import advice, duration, parameters, storage
from runner.estimate.forecast import BASIS, Forecast
from runner.plan import Plan
from runner.problem import Problem
from runner.recipe import units

_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "logits": "logits and loss",
    "temporary": "temporary buffers",
    "communication": "communication buffers",
    "context": "CUDA context",
    "slack": "allocator slack",
}


def show(plan: Plan, forecasts: list[Forecast], nodes: list[int], traced: dict[str, Any]) -> None:
    """Prints the plan of a recipe, a table a stage."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    for forecast in forecasts:
        table = Table(title=f"{plan.name}, stage {forecast.stage.name}", title_justify="left", show_header=False)
        for section in (_model(forecast), _memory(forecast), _disk(forecast, plan), _pace(forecast)):
            for row in section:
                table.add_row(*row)
            table.add_section()
        console.print(table)
        if forecast.stage.name in traced:
            console.print(_exact(forecast, traced[forecast.stage.name]))
        if nodes:
            console.print(_scaling(forecast, nodes))
    planned = {forecast.stage.name for forecast in forecasts}
    for stage in plan.stages:
        if stage.name not in planned:
            say(f"Stage `{stage.name}` is trained by the engine `{stage.engine}`, for which there are no formulas.")
    if len(forecasts) > 1 and all(forecast.time for forecast in forecasts):
        say(f"All stages: {units.duration(sum(forecast.time.total_seconds for forecast in forecasts))}")
    if forecasts:
        say(BASIS)


def _model(forecast: Forecast) -> Iterator[tuple[str, str]]:
    work = forecast.workload
    total, trained = parameters.total(work.model), parameters.trainable(work)
    yield "model", work.model.id
    if adapter := parameters.adapter(work):
        yield "parameters", f"{total:,}, none of them trained"
        yield (
            "adapter",
            f"{adapter:,} parameters, all trained, {4 * adapter / 1e9:.2f} GB in fp32 ({adapter / total:.2%})",
        )
    else:
        yield "parameters", f"{total:,}, {trained:,} of them trained ({trained / total:.2%})"
    machines = forecast.stage.machines
    yield "on", f"{machines.nodes} × {machines.gpus_per_node} {forecast.gpu.title if forecast.gpu else machines.gpu}"


def _memory(forecast: Forecast) -> Iterator[tuple[str, str]]:
    memory, work = forecast.memory, forecast.workload
    yield "GPU memory, each", f"{units.both(memory.total)}, at the {_MOMENTS[memory.moment]}"
    for part, size in memory.parts().items():
        yield f"  {_PARTS[part]}", f"{size / 2**30:8.2f} GiB{_why(part, forecast)}"
    yield (
        "  in evaluation",
        f"{memory.evaluation / 2**30:8.2f} GiB of tensors, micro batch {work.evaluation_batch_size}",
    )
    if forecast.usable is None:
        yield "fits", f"nobody knows: the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
        return
    left = forecast.usable - memory.total
    yield (
        "fits",
        f"{'yes' if forecast.fits else 'no'}, {units.gib(abs(left))} {'left' if left >= 0 else 'too much'} of the {units.both(forecast.usable)} that the card has to use",
    )
    largest = advice.largest_micro_batch(work, forecast.usable)
    yield "largest micro batch", f"{largest}" if largest else "not even 1 fits"


_MOMENTS = {"loss": "loss", "backward": "backward pass", "step": "optimizer's step"}


def _why(part: str, forecast: Forecast) -> str:
    work = forecast.workload
    notes = {
        "activations": f"   micro batch {work.micro_batch_size} × {work.sequence_len:,} tokens, "
        f"{'with' if work.checkpointing else 'without'} checkpointing, {work.attention}",
        "optimizer": f"   {work.optimizer}{', in main memory' if work.offload else ''}",
        "weights": f"   {'4-bit base' if work.adapter and work.adapter.four_bit else work.precision}, {_SHARED[work.sharding]}",
        "gradients": f"   {units.gib(forecast.memory.state.gradients)} once all are there",
        "logits": "   never whole" if work.fused_loss != "none" else "",
    }
    return notes.get(part, "")


_SHARED = {
    "none": "one GPU",
    "ddp": "whole on each GPU",
    "zero1": "ZeRO-1: optimizer split",
    "zero2": "ZeRO-2: optimizer and gradients split",
    "zero3": "ZeRO-3: everything split",
    "fsdp": "FSDP: everything split",
}


def _disk(forecast: Forecast, plan: Plan) -> Iterator[tuple[str, str]]:
    machines, parts = forecast.stage.machines, storage.host(forecast.workload, forecast.stage)
    shown = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    yield "main memory, each pod", f"{units.gib(sum(parts.values()))} of {machines.memory_gib} GiB ({shown})"
    for entry in storage.disk(forecast.workload, plan):
        claim = storage.claim_of(entry.folder, plan)
        where = f"claim {claim['name']}, {claim['size_gib']} GiB" if claim else f"{entry.folder}, on no claim"
        yield f"disk: {entry.what}", f"{entry.size / 1e9:8.2f} GB   {where}"


def _pace(forecast: Forecast) -> Iterator[tuple[str, str]]:
    time, work = forecast.time, forecast.workload
    yield (
        "effective batch",
        f"{work.effective_batch_size} rows: {work.micro_batch_size} × {work.accumulation} × {work.machines.world_size} GPUs",
    )
    yield "learning rate", f"{work.learning_rate:g}"
    if time is None:
        yield "time", f"cannot be told: {forecast.rows.source if forecast.gpu else 'the GPU is not in the catalog'}"
        return
    yield (
        "rows",
        f"{work.rows:,} to train, {work.evaluation_rows or 0:,} to evaluate, from {forecast.rows.source}"
        if work.rows
        else "decided by steps",
    )
    length = "full length" if work.row_tokens is None else "padding counted"
    yield "steps", f"{time.steps:,}, {time.tokens:,.0f} tokens ({duration.row_tokens(work):,.0f} a row, {length})"
    yield "warmup", f"{forecast.warmup_steps:,} steps ({forecast.warmup_steps / time.steps:.1%})"
    low, high = time.range_seconds
    yield "time", f"{units.duration(time.total_seconds)} ({units.duration(low)} to {units.duration(high)})"
    yield (
        "  of that",
        f"training {units.duration(time.training_seconds)}, evaluation {units.duration(time.evaluation_seconds)}, start and saving {units.duration(time.overhead_seconds)}",
    )
    yield (
        "speed",
        f"{units.speed(time.samples_a_second)} samples and {units.speed(time.tokens_a_second)} tokens a second",
    )
    price = f", {forecast.cost:,.2f} at {forecast.price:g} a GPU hour" if forecast.cost is not None else ""
    yield "GPU hours", f"{forecast.gpu_hours:.2f}{price}"


def _scaling(forecast: Forecast, nodes: list[int]) -> Table:
    table = Table(
        "machines",
        "GPUs",
        "effective batch",
        "step",
        "waiting",
        "time",
        "speed-up",
        title="On more machines",
        title_justify="left",
    )
    first = None
    for count in nodes:
        other = forecast.on(count)
        if (time := other.time) is None:
            continue
        first = first or time.samples_a_second
        table.add_row(
            str(count),
            str(other.stage.machines.world_size),
            str(other.workload.effective_batch_size),
            f"{units.speed(time.step_seconds)} s",
            f"{time.waiting_seconds / time.step_seconds:.0%}",
            units.duration(time.total_seconds),
            f"{time.samples_a_second / first:.2f}",
        )
    return table


def _exact(forecast: Forecast, traced: Any) -> Table:
    table = Table("exact, on fake tensors", "exact", "quick", title_justify="left")
    alone = comparable(forecast)
    rows = [
        (
            "parameters",
            f"{traced.parameters:,}",
            f"{parameters.total(forecast.workload.model) + parameters.adapter(forecast.workload):,}",
        ),
        ("trainable", f"{traced.trainable:,}", f"{parameters.trainable(forecast.workload):,}"),
        *(
            (name, units.gib(getattr(traced, name)), units.gib(getattr(alone.memory.state, name)))
            for name in ("weights", "gradients", "optimizer")
        ),
        ("peak of tensors, training", units.gib(traced.peak), units.gib(alone.memory.tensors)),
        ("peak of tensors, evaluation", units.gib(traced.evaluation_peak), units.gib(alone.memory.evaluation)),
    ]
    for row in rows:
        table.add_row(*row)
    if _left_out(forecast):
        table.caption = "Nothing split by ZeRO and nothing offloaded; what they save is by formula alone."
    return table


def comparable(forecast: Forecast) -> Forecast:
    """What the exact trace can be held against: DDP and FSDP as they are, ZeRO and offloading left out."""
    if not _left_out(forecast):
        return forecast
    return replace(forecast, workload=replace(forecast.workload, sharding="none", offload=False))


def _left_out(forecast: Forecast) -> bool:
    return forecast.workload.sharding.startswith("zero") or forecast.workload.offload


def as_json(
    plan: Plan, forecasts: list[Forecast], nodes: list[int], traced: dict[str, Any], problems: list[Problem]
) -> dict[str, Any]:
    """The plan for tools: bytes, seconds and counts."""
    return {
        "name": plan.name,
        "basis": BASIS,
        "stages": [_stage_json(plan, forecast, nodes, traced.get(forecast.stage.name)) for forecast in forecasts],
        "without_formulas": [
            stage.name for stage in plan.stages if stage.name not in {f.stage.name for f in forecasts}
        ],
        "problems": [problem.as_json() for problem in problems],
    }


def _stage_json(plan: Plan, forecast: Forecast, nodes: list[int], traced: Any) -> dict[str, Any]:
    work, memory, time = forecast.workload, forecast.memory, forecast.time
    return {
        "stage": forecast.stage.name,
        "model": work.model.id,
        "parameters": parameters.total(work.model),
        "trainable_parameters": parameters.trainable(work),
        "adapter_parameters": parameters.adapter(work),
        "gpu": forecast.stage.machines.gpu,
        "gpus": forecast.stage.machines.world_size,
        "gpu_memory_bytes": {"total": memory.total, "usable": forecast.usable, "moment": memory.moment}
        | {"parts": memory.parts(), "evaluation": memory.evaluation},
        "fits": forecast.fits,
        "largest_micro_batch": advice.largest_micro_batch(work, forecast.usable) if forecast.usable else None,
        "host_memory_bytes": storage.host(work, forecast.stage),
        "disk_bytes": [asdict(entry) for entry in storage.disk(work, plan)],
        "effective_batch_size": work.effective_batch_size,
        "learning_rate": work.learning_rate,
        "warmup_steps": forecast.warmup_steps,
        "rows": {
            "training": work.rows,
            "evaluation": work.evaluation_rows,
            "tokens": work.row_tokens,
            "source": forecast.rows.source,
        },
        "time": time
        and asdict(time)
        | {"total_seconds": time.total_seconds, "range_seconds": time.range_seconds}
        | {"samples_a_second": time.samples_a_second, "tokens_a_second": time.tokens_a_second},
        "gpu_hours": forecast.gpu_hours,
        "cost": forecast.cost,
        "machines": [_machines_json(forecast.on(count)) for count in nodes],
        "exact": traced.as_json() if traced else None,
    }


def _machines_json(forecast: Forecast) -> dict[str, Any]:
    time = forecast.time
    return {
        "nodes": forecast.stage.machines.nodes,
        "gpus": forecast.stage.machines.world_size,
        "effective_batch_size": forecast.workload.effective_batch_size,
        "step_seconds": time and time.step_seconds,
        "waiting_seconds": time and time.waiting_seconds,
        "total_seconds": time and time.total_seconds,
        "samples_a_second": time and time.samples_a_second,
    }
