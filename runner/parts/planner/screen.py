"""The plan on one screen: whether it fits, how long, how much and what to change; a line a stage; the same on other
counts of machines; what is offered. No figure is made here."""

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.planner import scaling, storage
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.formulas import MOST_TRIED
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.recipe import units

WIDTH = 80
# Seconds of a run that is long enough for the first checkpoint to matter.
A_WHILE = 900


def _say(line: str, first: str = "", rest: str = "") -> None:
    say(textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=rest))


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


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


def verdict(planned: Planned, price: str = "`--price`, that of one") -> tuple[str, ...]:
    """Whether it fits, how long it takes and what it costs, a sentence each. price: what a price is given by."""
    if not planned.forecasts:
        return (f"Nothing can be said of {planned.plan.name}: there are no formulas for what it trains.",)
    return _fits(planned), _time(planned), _cost(planned, price)


def stages(planned: Planned) -> None:
    """Prints a line for each stage, and what the figures rest on."""
    if not planned.forecasts:
        return
    forecasts = {each.stage.name: each for each in planned.forecasts}
    room, priced = planned.forecasts[0].usable, planned.together.cost is not None
    table = _table()
    table.add_column("stage")
    for name in (f"GiB of {room / 2**30:.1f}" if room else "GiB on each GPU", "batch (max)", "time (likely)"):
        table.add_column(name, no_wrap=True)
    table.add_column("cost" if priced else "GPU h", justify="right", no_wrap=True)
    for stage in planned.plan.stages:
        if forecast := forecasts.get(stage.name):
            table.add_row(stage.name, *_row(forecast, priced))
        else:
            table.add_row(stage.name, "no GPU", "", "not estimated")
    _say_table(table)
    for line in (*_basis(planned), *_disk(planned), *_first_checkpoint(planned)):
        _say(line)


def machines(planned: Planned, counts: list[int]) -> None:
    """Prints a line for each count of machines, and what the figures rest on."""
    rows = scaling.rows(planned.forecasts, counts)
    if not rows:
        say("\nHow long it takes on other counts of machines cannot be told.")
        return
    priced = rows[0].cost is not None
    table = _table()
    table.add_column("machines", justify="right")
    for name in ("GPUs", "time", "speed-up", "of ideal", "cost" if priced else "GPU h"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for row in rows:
        spent = row.cost if priced else row.gpu_hours
        table.add_row(
            f"{row.nodes:,}",
            f"{row.gpus:,}",
            "never ends" if row.total_seconds is None else units.duration(row.total_seconds),
            "" if row.speed_up is None else f"{units.speed(row.speed_up)}",
            "" if row.efficiency is None else f"{row.efficiency:.0%}",
            "" if spent is None else rounded(spent),
            row.limit,
        )
    _say_table(table)
    # The formulas, each with its source, and how often to save on the largest count.
    work, last = planned.forecasts[0].workload, rows[-1]
    for line in (
        "As many rows as here: accumulation falls first, then steps have more rows.",
        "Communication: bytes of a ring over the network, and 14 µs a hop (NCCL's tuning).",
        f"Saving and reading: bytes at {work.disk_mb_s:,.0f} MB/s"
        f"{'; every machine reads the model from the claim.' if work.shared_disk else ', of a disk of each machine.'}",
        f"Restarts: a GPU fails every {scaling.BETWEEN_FAILURES / 86400:,.0f} days (Llama 3: 419 times in 54 days on 16,384); "
        f"each costs {units.duration(scaling.RESTART)}, reading, and the work since the last checkpoint (Daly 2006).",
        f"On {last.nodes:,} machines a checkpoint comes every {units.duration(last.save_seconds)}; "
        f"every {units.duration(last.best_save_seconds)} would cost least (Young 1974).",
    ):
        _say(line, rest="  ")


def offered(offers: list[Offer]) -> None:
    """Prints each offer with its number, what it takes, and what it loses."""
    if offers:
        say()
    for number, offer in enumerate(offers, 1):
        _say(f"{number}. {', '.join(offer.lines)}", rest="   ")
        seconds, hours = offer.after.seconds, offer.after.together.gpu_hours
        time = "time unknown" if seconds is None else f"{units.duration(seconds)}, {rounded(hours)} GPU hours"
        cost = f", cost {rounded(offer.cost)}" if offer.cost is not None else ""
        loses = ", ".join(offer.loses) or "loses nothing"
        _say(f"{time}{cost}, {units.gib(offer.gpu_memory)}; {loses}", "   ", "   ")


def _fits(planned: Planned) -> str:
    most, name = max(planned.forecasts, key=lambda each: each.memory.total), planned.plan.name
    low, high = (size / 2**30 for size in most.memory_range)
    stage = most.stage.name if len(planned.forecasts) > 1 else "it"
    need = f"{units.gib(most.memory.total)} ({low:.1f}–{high:.1f})"
    if most.usable is None:
        return f"{name} needs {need} on each GPU; `{most.stage.machines.gpu}` is not in the catalog."
    verdict = "fits" if most.fits else "does not fit"
    return f"{name} {verdict}: {stage} needs {need}, a GPU has {most.usable / 2**30:.1f}."


def _time(planned: Planned) -> str:
    whole, first = planned.together, planned.forecasts[0]
    if len(whole.without) == len(planned.forecasts):
        why = first.rows.source if first.gpu else "the GPU is not in the catalog"
        return f"How long it takes cannot be told: {why}."
    machines = first.stage.machines
    gpus = f"{machines.world_size} × {first.gpu.title}" if first.gpu else ""
    without = f", without {', '.join(whole.without)}" if whole.without else ""
    return f"It takes {units.duration(whole.total_seconds)} ({units.between(*whole.range_seconds)}) on {gpus}{without}."


def _first_checkpoint(planned: Planned) -> Iterator[str]:
    """When the first one comes; of what is over in minutes nobody asks."""
    time = planned.forecasts[0].time
    if time and time.checkpoints.count > 1 and planned.together.total_seconds >= A_WHILE:
        yield f"Checkpoints: the first comes after {units.duration(time.checkpoints.first)}."


def _cost(planned: Planned, price: str) -> str:
    whole = planned.together
    if len(whole.without) == len(planned.forecasts):
        return "What it costs cannot be told either."
    hours = f"{rounded(whole.gpu_hours)} GPU hours"
    if whole.cost is None:
        return f"It costs {hours}; with {price}, it is told in money."
    return f"It costs {rounded(whole.cost)}: {hours} at {planned.forecasts[0].price:g}."


def _change(planned: Planned, offers: list[Offer]) -> str:
    if planned.problems and not offers:
        return "Something has to change, and is said below; nothing here mends all of it."
    if planned.problems:
        if planned.recipe.document.origins:
            return "Something has to change, and each of the offers below would do."
        return "Something has to change: `--apply N` writes offer N into the recipe."
    if planned.seconds is None:
        return "Nothing has to change, as far as that can be told."
    if any(offer.loss for offer in offers):
        return "Nothing has to change to run; what is offered below makes more steps, and says what it takes."
    if offers:
        if planned.recipe.document.origins:
            return "Nothing has to change; what is offered below loses nothing."
        return "Nothing has to change; `--apply N` writes an offer, and none loses anything."
    return "Nothing has to change, and nothing would be much faster and lose nothing."


def _row(forecast: Forecast, priced: bool) -> Iterator[str]:
    low, high = (size / 2**30 for size in forecast.memory_range)
    need = f"{forecast.memory.total / 2**30:.1f}{'!' if forecast.fits is False else ''}"
    yield f"{need} ({low:.1f}–{high:.1f})"
    largest = forecast.largest_micro_batch
    most = "?" if largest is None else "none" if not largest else f"{min(largest, MOST_TRIED)}"
    yield f"{forecast.workload.micro_batch_size} ({most}{'+' if largest and largest > MOST_TRIED else ''})"
    if forecast.time is None:
        yield from ("cannot be told", "")
        return
    yield f"{units.duration(forecast.time.total_seconds)} ({units.between(*forecast.time.range_seconds, '–')})"
    yield rounded((forecast.cost if priced else forecast.gpu_hours) or 0)


def rounded(count: float) -> str:
    """An amount of hours or money."""
    return f"{count:,.0f}" if count >= 1000 else f"{count:,.1f}" if count >= 100 else f"{count:,.2f}"


def _basis(planned: Planned) -> Iterator[str]:
    """What the ranges come from: that of memory for the stage that needs most, that of time for the longest."""
    most = max(planned.forecasts, key=lambda each: each.memory.total)
    yield f"Memory: {most.memory_spread}."
    if timed := [each for each in planned.forecasts if each.time]:
        yield f"Time: {max(timed, key=lambda each: each.gpu_hours or 0).time_source}."


def _disk(planned: Planned) -> Iterator[str]:
    plan = planned.sized
    for name, need in storage.needs(plan, planned.forecasts).items():
        if need:
            yield f"Disk: {units.gib(need)} on the claim {name}, of {plan.claim_gib(name)} GiB."
