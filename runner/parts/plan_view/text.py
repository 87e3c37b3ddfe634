"""A plan as text: on one screen, in full, and beside an exact trace."""

import textwrap
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Column, Table

from runner.commands.options import say
from runner.parts.plan_view import scaling
from runner.parts.plan_view.report import FIGURES, SPENT
from runner.parts.planner import constants, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast, basis
from runner.parts.planner.formulas import MOST_TRIED, Traced, left_out
from runner.parts.planner.memory import EVALUATION
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.storage import Preparation
from runner.parts.planner.workload import Run, Workload
from runner.plan import Plan
from runner.recipe import units
from runner.tools.problem import errors_of
from runner.tools.text import printable

WIDTH = 80
_PARTS, _MOMENTS = FIGURES["memory"], FIGURES["moments"]


# On one screen.


def _say(line: str, first: str = "", rest: str = "") -> None:
    say(textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=rest))


def _table(*columns: Column | str) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _say_table(table: Table) -> None:
    console = Console(width=WIDTH)
    if console.measure(table).maximum > WIDTH:
        table.padding = (0, 1, 0, 0)
    with console.capture() as drawn:
        console.print(table)
    say("\n" + "\n".join(line.rstrip() for line in drawn.get().splitlines()) + "\n")


def answer(planned: Planned, offers: list[Offer]) -> None:
    """Prints the answer in four lines."""
    for line in (*verdict(planned), *([_change(planned, offers)] if planned.forecasts else [])):
        _say(line, rest="  ")


def verdict(planned: Planned, price: str = "`--price` (per GPU hour)") -> tuple[str, ...]:
    """Three sentences on fit, time and cost. price: how a price is given."""
    if not planned.forecasts:
        return (f"No estimate for {planned.plan.name}: there are no formulas for what it trains.",)
    return _fits(planned), _time(planned), _cost(planned, price)


def stages(planned: Planned) -> None:
    """Prints a line for each stage, and how sure the numbers are."""
    if not planned.forecasts:
        return
    forecasts = {each.stage.name: each for each in planned.forecasts}
    prepared = {each.stage: _between(each) for each in planned.preparations if each.total_seconds}
    room, priced = planned.forecasts[0].usable, planned.together.cost is not None
    of_all = f"\nof {room / 2**30:.1f} (likely)" if room else "\n(likely)"
    names = (f"GPU memory, GiB{of_all}", "rows at once\n(at most)", "time\n(likely)")
    spent = Column("cost" if priced else "GPU\nhours", justify="right", no_wrap=True)
    table = _table("stage", *(Column(name, no_wrap=True) for name in names), spent)
    for stage in planned.plan.stages:
        if forecast := forecasts.get(stage.name):
            table.add_row(stage.name, *_row(forecast, priced))
        else:
            table.add_row(stage.name, "no GPU", "", prepared.get(stage.name, "not estimated"))
    _say_table(table)
    _say(f"{_how_sure(planned)} {_longest(planned)}More: `--details`.")


def machines(planned: Planned, counts: list[int]) -> None:
    """Prints a line for each count of machines, and how often to save on the largest one."""
    rows = scaling.rows(planned.forecasts, counts)
    if not rows:
        say("\nThe time on other numbers of machines is unknown.")
        return
    priced = rows[0].cost is not None
    names = ("GPUs", "time", "speed-up", "of ideal", "cost" if priced else "GPU h")
    figures = (Column(name, justify="right", no_wrap=True) for name in names)
    table = _table(Column("machines", justify="right"), *figures, Column("limit", no_wrap=True))
    for row in rows:
        spent = row.cost if priced else row.gpu_hours
        table.add_row(
            f"{row.nodes:,}",
            f"{row.gpus:,}",
            "never ends" if row.total_seconds is None else units.duration(row.total_seconds),
            "" if row.speed_up is None else units.speed(row.speed_up),
            "" if row.efficiency is None else f"{row.efficiency:.0%}",
            "" if spent is None else rounded(spent),
            row.limit,
        )
    _say_table(table)
    last = rows[-1]
    if before := sum(each.total_seconds for each in planned.preparations):
        _say(f"Before training, on any number of machines: {units.duration(before)}.", rest="  ")
    _say("With more machines, the plan first lowers accumulation. Then each step has more rows.", rest="  ")
    _say(
        f"On {last.nodes:,} machines the recipe saves a checkpoint every {units.duration(last.save_seconds)}; "
        f"every {units.duration(last.best_save_seconds)} would be cheapest.",
        rest="  ",
    )


def offered(offers: list[Offer]) -> None:
    """Prints each offer with its number, its figures, and its losses."""
    if offers:
        say()
    for number, offer in enumerate(offers, 1):
        # No line ends between a setting and its value.
        changes = f"{number}. {', '.join(offer.lines)}".replace(": ", ":\0")
        say(textwrap.fill(changes, WIDTH, subsequent_indent="   ").replace("\0", " "))
        seconds, hours = offer.after.seconds, offer.after.together.gpu_hours
        time = "time unknown" if seconds is None else f"{units.duration(seconds)}, {rounded(hours)} GPU hours"
        cost = f", cost {rounded(offer.cost)}" if offer.cost is not None else ""
        loses = ", ".join(offer.loses) or "costs no quality"
        _say(f"{time}{cost}, {units.gib(offer.gpu_memory)}; {loses}", "   ", "   ")


def _fits(planned: Planned) -> str:
    most, name = _largest(planned), planned.plan.name
    stage = most.stage.name if len(planned.forecasts) > 1 else "it"
    need = f"{most.memory.total / 2**30:.1f}"
    if most.usable is None:
        return f"{name} needs {need} GiB on each GPU; `{most.stage.machines.gpu}` is not in the catalog."
    verdict = "fits" if most.fits else "does not fit"
    longer = f" (at most {full / 2**30:.1f})" if most.fits and (full := _full(most)) else ""
    return f"{name} {verdict}: {stage} needs {need}{longer} of each GPU's {units.gib(most.usable)}."


def _largest(planned: Planned) -> Forecast:
    return max(planned.forecasts, key=lambda each: each.memory.total)


def _full(forecast: Forecast) -> int:
    """The bytes for rows as long as `sequence_len`; 0 if those are not more than what is expected."""
    full = forecast.full.memory.total
    return full if full > forecast.memory.total else 0


def _time(planned: Planned) -> str:
    whole, first = planned.together, planned.forecasts[0]
    if len(whole.without) == len(planned.forecasts):
        why = first.rows.source if first.gpu else "the GPU is not in the catalog"
        return f"How long it takes is unknown: {why}."
    gpus = f"{first.stage.machines.world_size} × {first.gpu.title}" if first.gpu else ""
    unknown = [*(each.stage for each in planned.preparations if not each.total_seconds), *whole.without]
    without = f", without {', '.join(unknown)}" if unknown else ""
    return f"It takes {units.duration(whole.total_seconds)} ({units.between(*whole.range_seconds)}) on {gpus}{without}."


def _cost(planned: Planned, price: str) -> str:
    whole = planned.together
    if len(whole.without) == len(planned.forecasts):
        return "The cost is unknown too."
    hours = f"{rounded(whole.gpu_hours)} GPU hours"
    if whole.cost is None:
        return f"It uses {hours}. Add {price} to see the cost."
    return f"It costs {rounded(whole.cost)}: {hours} at {planned.forecasts[0].price:g} each."


def _change(planned: Planned, offers: list[Offer]) -> str:
    must = "has to" if errors_of(planned.problems) else "should"
    overridden = planned.recipe.document.origins
    if planned.problems and not offers:
        return f"Something {must} change, as shown below. No suggestion solves all of it."
    if planned.problems and overridden:
        return f"Something {must} change, and each suggestion below would be enough."
    if planned.problems:
        return f"Something {must} change. `--apply N` applies suggestion N."
    if planned.seconds is None:
        return "Nothing has to change, as far as this machine can tell."
    if any(offer.enough_steps for offer in offers):
        return "Nothing has to change. The suggestions below make more steps; each shows its cost."
    if any(offer.loss or offer.saves_less for offer in offers):
        return "Nothing has to change. Each suggestion below names its cost."
    if offers and overridden:
        return "Nothing has to change. The suggestions below cost no quality."
    if offers:
        return "Nothing has to change. `--apply N` applies a suggestion; none costs quality."
    return "Nothing has to change, and nothing is much faster at the same quality."


def _row(forecast: Forecast, priced: bool) -> Iterator[str]:
    low, high = (size / 2**30 for size in forecast.memory_range)
    need = f"{forecast.memory.total / 2**30:.1f}{'!' if forecast.fits is False else ''}"
    yield f"{need} ({low:.1f}–{high:.1f})"
    largest = forecast.largest_micro_batch
    most = "?" if largest is None else "none" if not largest else f"{min(largest, MOST_TRIED)}"
    yield f"{forecast.workload.micro_batch_size} ({most}{'+' if largest and largest > MOST_TRIED else ''})"
    if forecast.time is None:
        yield from ("unknown", "")
        return
    yield _between(forecast.time)
    yield rounded((forecast.cost if priced else forecast.gpu_hours) or 0)


def _between(time: Duration | Preparation) -> str:
    return f"{units.duration(time.total_seconds)} ({units.between(*time.range_seconds, '–')})"


def rounded(count: float) -> str:
    return f"{count:,.0f}" if count >= 1000 else f"{count:,.1f}" if count >= 100 else f"{count:,.2f}"


def _how_sure(planned: Planned) -> str:
    """The source of the range of the longest stage's time, or of memory where the time is unknown."""
    if timed := [each for each in planned.forecasts if each.time]:
        longest = max(timed, key=lambda each: each.gpu_hours or 0)
        own = constants.constants(longest.stage.machines.gpu)
        if own.source:
            return f"The speed {'was measured' if own.spread else 'is that of your own runs'} on this card."
        return f"The time range comes from {constants.time_spread(longest.workload).runs}."
    most = _largest(planned)
    return f"The range comes from {most.memory_spread.runs}."


def _longest(planned: Planned) -> str:
    """The rows that the memory in the first line is for, if `sequence_len` allows longer ones."""
    most = _largest(planned)
    if not isinstance(work := most.workload, Workload) or not (full := _full(most)):
        return ""
    return (
        f"The memory is for rows of up to {work.most_tokens:,} tokens ({most.rows.longest_source}); "
        f"rows of {work.sequence_len:,} need {units.gib(full)}. "
    )


# In full: a table for each stage, then the claims and the sources.


def details(planned: Planned, nodes: list[int], traced: Mapping[str, Traced]) -> None:
    """Prints all numbers of a plan, one table a stage."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    plan, forecasts = planned.sized, planned.forecasts
    for forecast in forecasts:
        table = Table(title=f"{plan.name}, stage {forecast.stage.name}", title_justify="left", show_header=False)
        for section in (_model(forecast), _memory(forecast), _files(forecast, plan), _pace(forecast)):
            for row in section:
                table.add_row(*map(printable, row))
            table.add_section()
        console.print(table)
        exact(console, [forecast], traced)
    prepared = {each.stage: each for each in planned.preparations}
    for stage in plan.stages:
        if (each := prepared.get(stage.name)) and each.total_seconds:
            _say(f"Stage `{stage.name}` trains nothing and takes {_between(each)}: {each.source}.")
        elif not stage.trains:
            why = each.source if each else "that depends on CPU and network"
            _say(f"Stage `{stage.name}` trains nothing. Its time is unknown: {why}.")
    for entry in storage.before_training(plan):
        say(f"Before training: {entry.what}, {entry.size / 1e9:,.0f} GB in {entry.folder}")
    if plan.site.get("claims"):
        # The bytes that will be written to each claim, and the size that is requested.
        say("Claims:")
        for name, need in storage.needs(plan, forecasts).items():
            stated = next(claim for claim in plan.site["claims"] if claim["name"] == name).get("size_gib")
            asked = f"claim size in the recipe: {stated} GiB" if stated else f"claim size: {plan.claim_gib(name)} GiB"
            say(f"  {name}: {units.gib(need)} will be written; {asked}")
    if forecasts:
        _say(basis(forecasts, nodes))
    if planned.hardware:
        _say(str(planned.hardware))


def _model(forecast: Forecast) -> Iterator[tuple[str, str]]:
    total, trained, adapter = forecast.counts.total, forecast.counts.trainable, forecast.counts.adapter
    yield "model", forecast.formulas.name
    if adapter:
        yield "parameters", f"{total:,}, none of them trained"
        size = f"{4 * adapter / 1e9:.2f} GB in fp32 ({adapter / total:.2%})"
        yield "adapter", f"{adapter:,} parameters, all trained, {size}"
    else:
        yield "parameters", f"{total:,}, {trained:,} of them trained ({trained / total:.2%})"
    machines = forecast.stage.machines
    gpus = " + ".join(map(str, machines.uneven)) or f"{machines.nodes} × {machines.gpus_per_node}"
    yield "on", f"{gpus} {forecast.gpu.title if forecast.gpu else machines.gpu}"


def _memory(forecast: Forecast) -> Iterator[tuple[str, str]]:
    memory, work = forecast.memory, forecast.workload
    yield "GPU memory, each", f"{units.both(memory.total)} needed; the peak is {_MOMENTS[memory.moment]}"
    low, high = forecast.memory_range
    yield "  likely", f"{units.gib(low)} to {units.gib(high)} ({forecast.memory_spread})"
    if isinstance(work, Workload) and (full := _full(forecast)):
        longest = f"{work.most_tokens:,} tokens ({forecast.rows.longest_source})"
        need = f"{units.both(full)}, if they fill `sequence_len`"
        yield "  with longer rows", f"{need}; the longest expected has {longest}"
    yield "  nvidia-smi shows", f"{units.gib(memory.shown)}, with what the allocator keeps for later"
    if memory.moment == EVALUATION:
        yield "  in training", f"{_column(sum(memory.parts().values()))}, {_MOMENTS[memory.training_moment]}, of which:"
    notes = forecast.formulas.notes()
    for part, size in memory.parts().items():
        note = notes.get(part)
        yield f"  {_PARTS[part]}", f"{_column(size)}   {note}" if note else _column(size)
    yield "  in evaluation", f"{_column(memory.evaluation)} of tensors, micro batch {work.evaluation_batch_size}"
    usable, largest = forecast.usable, forecast.largest_micro_batch
    if usable is None or largest is None:
        yield "fits", f"unknown: the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
        return
    left = usable - memory.total
    verdict = f"yes, {units.gib(left)} left" if left >= 0 else f"no, {units.gib(-left)} too much"
    yield "fits", f"{verdict} of the {units.both(usable)} that the card can use"
    alone = memory.in_evaluation > usable and not work.evaluation_follows
    none = "none, because evaluation needs so much" if alone else "not even 1 fits"
    more = "more than " if largest > MOST_TRIED else ""
    yield "largest micro batch", f"{more}{min(largest, MOST_TRIED):,}" if largest else none


def _column(size: int) -> str:
    return f"{size / 2**20:8.0f} MiB" if 0 < size < 0.1 * 2**30 else f"{size / 2**30:8.2f} GiB"


def _files(forecast: Forecast, plan: Plan) -> Iterator[tuple[str, str]]:
    machines, parts = forecast.stage.machines, storage.host(forecast)
    shown = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    need = f"{units.gib(sum(parts.values()))} of {machines.memory_gib:.1f} GiB ({shown})"
    yield f"main memory, each {storage.machine(plan)}", need
    for entry in storage.disk(forecast, plan):
        claim = plan.claim_of(entry.folder)
        size = plan.claim_gib(claim["name"]) if claim else None
        elsewhere = f"{entry.folder}, on no claim" if plan.site else entry.folder
        where = f"claim {claim['name']}, {size} GiB" if claim else elsewhere
        yield f"disk: {entry.what}", f"{entry.size / 1e9:8.2f} GB   {where}"


def _batch(work: Run) -> str:
    counted = f"{work.micro_batch_size} × {work.accumulation} × {work.machines.world_size} GPUs"
    if not isinstance(work, Workload) or work.batch_tokens is None:
        return f"{work.effective_batch_size} rows: {counted}"
    about = f", about {work.batch_rows:,} rows" if work.batch_rows else ""
    return f"{work.batch_tokens:,} tokens: {counted} packed rows of {work.sequence_len:,}{about}"


def _checkpoints(time: Duration, work: Run) -> str:
    """The number of checkpoints and their interval, which is the cost of an interruption."""
    seen, own = time.checkpoints, time.checkpoints.within
    if seen.count == 1:
        return "1, at the end"
    often = f"{seen.count:,}, one every {units.duration(seen.between)}"
    if not own:
        return f"{often}, with {'each evaluation' if work.evaluation_rows else 'each epoch'}"
    by = "" if work.save_steps else " by the clock"
    return f"{often} at the most{by}, the first after {units.duration(seen.first)}"


def _pace(forecast: Forecast) -> Iterator[tuple[str, str]]:
    time, work = forecast.time, forecast.workload
    yield "effective batch", _batch(work)
    yield "learning rate", f"{work.learning_rate:g}"
    if time is None:
        yield "time", f"unknown: {(forecast.rows.source if forecast.gpu else 'the GPU is not in the catalog')}"
        return
    rows = f"{work.rows or 0:,} to train, {work.evaluation_rows or 0:,} to evaluate, from {forecast.rows.source}"
    yield "rows", rows if work.rows else "decided by steps"
    reading = forecast.formulas.notes().get("steps")
    yield "steps", f"{time.steps:,}, {time.tokens:,.0f} tokens ({reading})" if reading else f"{time.steps:,}"
    yield "checkpoints", _checkpoints(time, work)
    rising = forecast.warmup_steps / time.steps
    yield "warmup", f"{forecast.warmup_steps:,} steps ({rising:.1%})" + (", more than there are" if rising > 1 else "")
    yield "time", f"{units.duration(time.total_seconds)} ({units.between(*time.range_seconds)})"
    yield "  likely", forecast.time_source
    spent = (f"{words} {units.duration(getattr(time, name))}" for name, (words, _) in SPENT.items())
    yield "  of that", ", ".join(spent)
    tokens = f"samples and {units.speed(time.tokens_a_second)} tokens" if time.tokens else "images"
    yield "speed", f"{units.speed(time.samples_a_second)} {tokens} a second"
    price = f", {forecast.cost:,.2f} at {forecast.price:g} a GPU hour" if forecast.cost is not None else ""
    yield "GPU hours", f"{forecast.gpu_hours:.2f}{price}"


# Beside an exact trace.


def exact(console: Console, forecasts: list[Forecast], traces: Mapping[str, Traced]) -> None:
    """Prints the exact trace of each traced stage beside the quick estimate."""
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
            table.caption = "ZeRO and offloading are not traced; formulas estimate what they save."
        console.print(table)
