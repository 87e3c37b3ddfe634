"""The plan as text: a table for each stage, then the claims and what the figures rest on. No figure is made here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.commands.planning.tables import exact, scaling
from runner.estimate import activations, state, steps, storage
from runner.estimate.forecast import MOST_TRIED, Forecast, basis
from runner.estimate.memory import EVALUATION
from runner.estimate.resnet import Images
from runner.plan import Plan
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
            console.print(exact(forecast, traced[forecast.stage.name]))
        if nodes:
            console.print(scaling(forecast, nodes))
    planned = {forecast.stage.name for forecast in forecasts}
    for stage in plan.stages:
        if stage.name not in planned:
            say(
                f"Stage `{stage.name}` trains nothing; how long it takes depends on processors and network, and is not estimated."
            )
    for entry in storage.before_training(plan):
        say(f"Before training: {entry.what}, {entry.size / 1e9:,.0f} GB in {entry.folder}")
    if len(forecasts) > 1:
        say(_sum(forecasts))
    if plan.site.get("claims"):
        say(_claims(plan, forecasts))
    if forecasts:
        say(basis(forecasts, nodes))


def _sum(forecasts: list[Forecast]) -> str:
    """Time and cost of all stages together, as far as they can be told."""
    told = [forecast for forecast in forecasts if forecast.time]
    if not told:
        return "All stages: how long they take cannot be told."
    low, high = (sum(forecast.time.range_seconds[end] for forecast in told) for end in (0, 1))
    whole, hours = sum(forecast.time.total_seconds for forecast in told), sum(forecast.gpu_hours for forecast in told)
    priced = [forecast.cost for forecast in told]
    cost = f", {sum(priced):,.2f} at {told[0].price:g} a GPU hour" if None not in priced else ""
    missing = [forecast.stage.name for forecast in forecasts if not forecast.time]
    without = f"; without {', '.join(missing)}, whose time cannot be told" if missing else ""
    return (
        f"All stages that train: {units.duration(whole)} ({units.duration(low)} to {units.duration(high)}), "
        f"{hours:,.1f} GPU hours{cost}{without}."
    )


def _claims(plan: Plan, forecasts: list[Forecast]) -> str:
    """What each claim must hold, and what is asked for."""
    lines = ["Claims:"]
    for name, need in storage.needs(plan, forecasts).items():
        stated = next(claim for claim in plan.site["claims"] if claim["name"] == name).get("size_gib")
        asked = f"the recipe asks for {stated} GiB" if stated else f"asked for: {plan.claim_gib(name)} GiB"
        lines.append(f"  {name}: {units.gib(need)} will be written; {asked}")
    return "\n".join(lines)


def _model(forecast: Forecast) -> Iterator[tuple[str, str]]:
    total, trained, adapter = forecast.counts.total, forecast.counts.trainable, forecast.counts.adapter
    yield "model", forecast.formulas.name(forecast.workload)
    if adapter:
        yield "parameters", f"{total:,}, none of them trained"
        yield (
            "adapter",
            f"{adapter:,} parameters, all trained, {4 * adapter / 1e9:.2f} GB in fp32 ({adapter / total:.2%})",
        )
    else:
        yield "parameters", f"{total:,}, {trained:,} of them trained ({trained / total:.2%})"
    machines = forecast.stage.machines
    gpus = " + ".join(map(str, machines.uneven)) or f"{machines.nodes} × {machines.gpus_per_node}"
    yield "on", f"{gpus} {forecast.gpu.title if forecast.gpu else machines.gpu}"


def _memory(forecast: Forecast) -> Iterator[tuple[str, str]]:
    memory, work = forecast.memory, forecast.workload
    yield "GPU memory, each", f"{units.both(memory.total)}, {_MOMENTS[memory.moment]}"
    if memory.moment == EVALUATION:
        yield "  in training", f"{_column(sum(memory.parts().values()))}, {_MOMENTS[memory.training_moment]}, of which:"
    for part, size in memory.parts().items():
        yield f"  {_PARTS[part]}", f"{_column(size)}{_why(part, forecast)}"
    yield (
        "  in evaluation",
        f"{_column(memory.evaluation)} of tensors, micro batch {work.evaluation_batch_size}",
    )
    if forecast.usable is None:
        yield "fits", f"nobody knows: the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
        return
    left = forecast.usable - memory.total
    yield (
        "fits",
        f"{'yes' if forecast.fits else 'no'}, {units.gib(abs(left))} {'left' if left >= 0 else 'too much'} of the {units.both(forecast.usable)} that the card has to use",
    )
    largest = forecast.largest_micro_batch
    more = "more than " if largest > MOST_TRIED else ""
    yield "largest micro batch", f"{more}{min(largest, MOST_TRIED):,}" if largest else _none(forecast)


def _none(forecast: Forecast) -> str:
    alone = forecast.memory.in_evaluation > forecast.usable and not getattr(
        forecast.workload, "evaluation_follows", True
    )
    return "none while evaluation takes so much" if alone else "not even 1 fits"


def _column(size: int) -> str:
    return f"{size / 2**20:8.0f} MiB" if 0 < size < 0.1 * 2**30 else f"{size / 2**30:8.2f} GiB"


_MOMENTS = {
    "loss": "at the loss",
    "backward": "at the backward pass",
    "step": "at the optimizer's step",
    "evaluation": "in evaluation",
}


def _why(part: str, forecast: Forecast) -> str:
    work = forecast.workload
    if isinstance(work, Images):
        pixels = f"micro batch {work.micro_batch_size} images of {work.image_size} × {work.image_size} pixels"
        notes = {"activations": f"   {pixels}, {work.precision}", "optimizer": f"   {work.optimizer}"}
        return notes.get(part, "")
    reference = " and the reference model" if state.reference(work) else ""
    held = "4-bit base" if work.adapter and work.adapter.four_bit else work.precision
    held = f"fp32, used in {work.precision}" if activations.in_full(work) else held
    notes = {
        "activations": f"   micro batch {work.micro_batch_size} × {'2 answers × ' if work.answers > 1 else ''}{work.sequence_len:,} tokens, "
        f"{'with' if work.checkpointing else 'without'} checkpointing, {work.attention}",
        "optimizer": f"   {work.optimizer}{', in main memory' if work.offload else ''}",
        "weights": f"   {held}{reference}, {_SHARED[work.sharding]}",
        "gradients": f"   {units.gib(forecast.memory.state.gradients)} once all are there",
        "logits": "   never whole" if work.fused_loss in ("fused", "cut") else "",
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
    machines, parts = forecast.stage.machines, storage.host(forecast)
    shown = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    yield (
        f"main memory, each {storage.machine(plan)}",
        f"{units.gib(sum(parts.values()))} of {machines.memory_gib} GiB ({shown})",
    )
    for entry in storage.disk(forecast, plan):
        claim = storage.claim_of(entry.folder, plan)
        size = plan.claim_gib(claim["name"]) if claim else None
        elsewhere = f"{entry.folder}, on no claim" if plan.site else entry.folder
        where = f"claim {claim['name']}, {size} GiB" if claim else elsewhere
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
    yield "steps", f"{time.steps:,}{_tokens(forecast)}"
    rising = forecast.warmup_steps / time.steps
    yield "warmup", f"{forecast.warmup_steps:,} steps ({rising:.1%})" + (", more than there are" if rising > 1 else "")
    low, high = time.range_seconds
    yield "time", f"{units.duration(time.total_seconds)} ({units.duration(low)} to {units.duration(high)})"
    yield (
        "  of that",
        f"training {units.duration(time.training_seconds)}, evaluation {units.duration(time.evaluation_seconds)}, start and saving {units.duration(time.overhead_seconds)}",
    )
    yield (
        "speed",
        f"{units.speed(time.samples_a_second)} images a second"
        if isinstance(work, Images)
        else f"{units.speed(time.samples_a_second)} samples and {units.speed(time.tokens_a_second)} tokens a second",
    )
    price = f", {forecast.cost:,.2f} at {forecast.price:g} a GPU hour" if forecast.cost is not None else ""
    yield "GPU hours", f"{forecast.gpu_hours:.2f}{price}"


def _tokens(forecast: Forecast) -> str:
    work = forecast.workload
    if isinstance(work, Images):
        return ""
    length = "full length" if work.row_tokens is None or work.packing else "padding counted"
    answers = " an answer" if work.answers > 1 else " a row"
    return f", {forecast.time.tokens:,.0f} tokens ({steps.row_tokens(work):,.0f}{answers}, {length})"
