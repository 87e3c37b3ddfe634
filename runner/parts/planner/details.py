"""The parts of a plan as tables: one for each stage, then the claims and what the figures rest on; and what a trace
says of a stage. No figure is made here."""

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.planner import memory, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast, basis
from runner.parts.planner.formulas import MOST_TRIED
from runner.parts.planner.memory import EVALUATION
from runner.parts.planner.planned import Planned
from runner.parts.planner.trace import Traced, left_out
from runner.parts.planner.workload import Run, Workload
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


BY_TRACE_ALONE = (
    "By a run on fake tensors; CUDA context and allocator slack are assumed. The model runs as PyTorch alone runs it: where a "
    "GPU has kernels for its layers, it takes less."
)


def show(planned: Planned, nodes: list[int], traced: Mapping[str, Traced]) -> None:
    """Prints the parts of a plan, a table a stage."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    plan, forecasts = planned.sized, planned.forecasts
    for forecast in forecasts:
        table = Table(title=f"{plan.name}, stage {forecast.stage.name}", title_justify="left", show_header=False)
        for section in (_model(forecast), _memory(forecast), _disk(forecast, plan), _pace(forecast)):
            for row in section:
                table.add_row(*row)
            table.add_section()
        console.print(table)
        exact(console, [forecast], traced)
    reckoned = {forecast.stage.name for forecast in forecasts}
    for stage in plan.stages:
        if stage.name not in reckoned:
            say(
                f"Stage `{stage.name}` trains nothing; how long it takes depends on processors and network, and is not estimated."
            )
    for entry in storage.before_training(plan):
        say(f"Before training: {entry.what}, {entry.size / 1e9:,.0f} GB in {entry.folder}")
    if plan.site.get("claims"):
        say(_claims(plan, forecasts))
    if forecasts:
        say(basis(forecasts, nodes))
    if planned.hardware:
        say(str(planned.hardware))


def exact(console: Console, forecasts: list[Forecast], traces: Mapping[str, Traced]) -> None:
    """Prints the exact trace of each stage that has one beside the quick estimate."""
    for forecast in forecasts:
        if (traced := traces.get(forecast.stage.name)) is None:
            continue
        table = Table("exact, on fake tensors", "exact", "quick", title_justify="left")
        fields, counts = left_out(forecast.workload), forecast.counts
        quick = forecast.formulas.changed(**fields).memory
        table.add_row("parameters", f"{traced.parameters:,}", f"{counts.total + counts.adapter:,}")
        table.add_row("trainable", f"{traced.trainable:,}", f"{counts.trainable:,}")
        for name in ("weights", "gradients", "optimizer"):
            table.add_row(name, units.gib(getattr(traced, name)), units.gib(getattr(quick.state, name)))
        table.add_row("peak of tensors, training", units.gib(traced.peak), units.gib(quick.tensors))
        table.add_row("peak of tensors, evaluation", units.gib(traced.evaluation_peak), units.gib(quick.evaluation))
        if fields:
            table.caption = "Nothing split by ZeRO and nothing offloaded; what they save is by formula alone."
        console.print(table)


def by_trace_alone(forecast: Forecast, work: Workload, traced: Traced) -> dict[str, object]:
    """What a trace alone says of a stage, of whose model there are no formulas, under the names of `report`."""
    machines, usable = forecast.stage.machines, forecast.usable
    total = memory.whole(work, max(traced.peak, traced.evaluation_peak))
    return {
        "stage": forecast.stage.name,
        "model": forecast.formulas.name,
        "model_type": work.model.model_type,
        "parameters": traced.parameters,
        "trainable_parameters": traced.trainable,
        "gpu": machines.gpu,
        "gpus": machines.world_size,
        "micro_batch_size": work.micro_batch_size,
        "evaluation_batch_size": work.evaluation_batch_size,
        "sequence_len": work.sequence_len,
        # What each GPU needs in all, and what it has to use, None where nobody knows the card.
        "gpu_memory_bytes": {"total": total, "usable": usable},
        "fits": None if usable is None else total <= usable,
        # Of one micro batch.
        "flops": traced.flops,
        "time": None,
        # What the trace takes whole although the run splits or moves it.
        "without": sorted(left_out(work)),
        "exact": traced,
    }


def table_by_trace_alone(forecast: Forecast, work: Workload, traced: Traced) -> Table:
    total, usable = memory.whole(work, max(traced.peak, traced.evaluation_peak)), forecast.usable
    fits = f"nobody knows: the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
    if usable is not None:
        fits = f"{'yes' if total <= usable else 'no'}, the card has {units.both(usable)} to use"
    training = f"{units.gib(traced.peak)}, micro batch {work.micro_batch_size}"
    evaluation = f"{units.gib(traced.evaluation_peak)}, micro batch {work.evaluation_batch_size}"
    title = f"Stage {forecast.stage.name}, by trace alone"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("model", f"{forecast.formulas.name}, of the type {work.model.model_type}")
    table.add_row("parameters", f"{traced.parameters:,}, {traced.trainable:,} of them trained")
    table.add_row("GPU memory, each", f"{units.both(total)}, of which:")
    for name in ("weights", "gradients", "optimizer"):
        table.add_row(f"  {name}", units.gib(getattr(traced, name)))
    table.add_row("  peak of tensors, training", training)
    table.add_row("  peak of tensors, evaluation", evaluation)
    table.add_row("fits", fits)
    table.add_row("operations", f"{traced.flops / 1e12:,.3g} × 10^12 in a micro batch")
    table.add_row("time", "cannot be told: there are no formulas for this architecture")
    if left_out(work):
        table.caption = "Nothing split by ZeRO and nothing offloaded; what they save comes off."
    return table


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
    yield "model", forecast.formulas.name
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
    yield "GPU memory, each", f"{units.both(memory.total)} needed, {_MOMENTS[memory.moment]}"
    low, high = forecast.memory_range
    yield "  likely", f"{units.gib(low)} to {units.gib(high)} ({forecast.memory_spread})"
    yield "  nvidia-smi shows", f"{units.gib(memory.shown)}, with what the allocator keeps for later"
    if memory.moment == EVALUATION:
        yield "  in training", f"{_column(sum(memory.parts().values()))}, {_MOMENTS[memory.training_moment]}, of which:"
    notes = forecast.formulas.notes()
    for part, size in memory.parts().items():
        note = notes.get(part)
        yield f"  {_PARTS[part]}", f"{_column(size)}   {note}" if note else _column(size)
    yield (
        "  in evaluation",
        f"{_column(memory.evaluation)} of tensors, micro batch {work.evaluation_batch_size}",
    )
    usable, largest = forecast.usable, forecast.largest_micro_batch
    if usable is None or largest is None:
        yield "fits", f"nobody knows: the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
        return
    left = usable - memory.total
    yield (
        "fits",
        f"{'yes' if forecast.fits else 'no'}, {units.gib(abs(left))} {'left' if left >= 0 else 'too much'} of the {units.both(usable)} that the card has to use",
    )
    alone = memory.in_evaluation > usable and not work.evaluation_follows
    none = "none while evaluation takes so much" if alone else "not even 1 fits"
    more = "more than " if largest > MOST_TRIED else ""
    yield "largest micro batch", f"{more}{min(largest, MOST_TRIED):,}" if largest else none


def _column(size: int) -> str:
    return f"{size / 2**20:8.0f} MiB" if 0 < size < 0.1 * 2**30 else f"{size / 2**30:8.2f} GiB"


_MOMENTS = {
    "loading": "while the model is loaded and split",
    "forward": "at the forward pass",
    "loss": "at the loss",
    "backward": "at the backward pass",
    "step": "at the optimizer's step",
    "evaluation": "in evaluation",
}


def _disk(forecast: Forecast, plan: Plan) -> Iterator[tuple[str, str]]:
    machines, parts = forecast.stage.machines, storage.host(forecast)
    shown = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    yield (
        f"main memory, each {storage.machine(plan)}",
        f"{units.gib(sum(parts.values()))} of {machines.memory_gib:.1f} GiB ({shown})",
    )
    for entry in storage.disk(forecast, plan):
        claim = plan.claim_of(entry.folder)
        size = plan.claim_gib(claim["name"]) if claim else None
        elsewhere = f"{entry.folder}, on no claim" if plan.site else entry.folder
        where = f"claim {claim['name']}, {size} GiB" if claim else elsewhere
        yield f"disk: {entry.what}", f"{entry.size / 1e9:8.2f} GB   {where}"


def _batch(work: Run) -> str:
    """Rows behind a step; where rows are packed, tokens."""
    counted = f"{work.micro_batch_size} × {work.accumulation} × {work.machines.world_size} GPUs"
    if not isinstance(work, Workload) or work.batch_tokens is None:
        return f"{work.effective_batch_size} rows: {counted}"
    about = f", about {work.batch_rows:,} rows" if work.batch_rows else ""
    return f"{work.batch_tokens:,} tokens: {counted} packed rows of {work.sequence_len:,}{about}"


def _checkpoints(time: Duration, work: Run) -> str:
    """How many, and when; what an interruption costs is the time between two."""
    seen, own = time.checkpoints, time.checkpoints.within
    if seen.count == 1:
        return "1, at the end"
    often = f"{seen.count:,}, one each {units.duration(seen.between)}"
    if not own:
        return f"{often}, with {'each evaluation' if work.evaluation_rows else 'each epoch'}"
    by = "" if work.save_steps else " by the clock"
    return f"{often} at the most{by}, the first after {units.duration(seen.first)}"


def _pace(forecast: Forecast) -> Iterator[tuple[str, str]]:
    time, work = forecast.time, forecast.workload
    yield "effective batch", _batch(work)
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
    reading = forecast.formulas.notes().get("steps")
    yield "steps", f"{time.steps:,}, {time.tokens:,.0f} tokens ({reading})" if reading else f"{time.steps:,}"
    yield "checkpoints", _checkpoints(time, work)
    rising = forecast.warmup_steps / time.steps
    yield "warmup", f"{forecast.warmup_steps:,} steps ({rising:.1%})" + (", more than there are" if rising > 1 else "")
    yield "time", f"{units.duration(time.total_seconds)} ({units.between(*time.range_seconds)})"
    yield "  likely", forecast.time_source
    yield (
        "  of that",
        f"training {units.duration(time.training_seconds)}, evaluation {units.duration(time.evaluation_seconds)}, start and saving {units.duration(time.overhead_seconds)}",
    )
    yield (
        "speed",
        f"{units.speed(time.samples_a_second)} samples and {units.speed(time.tokens_a_second)} tokens a second"
        if time.tokens
        else f"{units.speed(time.samples_a_second)} images a second",
    )
    price = f", {forecast.cost:,.2f} at {forecast.price:g} a GPU hour" if forecast.cost is not None else ""
    yield "GPU hours", f"{forecast.gpu_hours:.2f}{price}"
