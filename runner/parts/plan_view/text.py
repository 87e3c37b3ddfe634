"""A plan as text: on one screen, in full, and beside an exact trace."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from runner.commands.options import say
from runner.parts.plan_view import scaling
from runner.parts.plan_view.report import FIGURES, GIB, HERE, SPENT
from runner.parts.planner import constants, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast, basis
from runner.parts.planner.formulas import MOST_TRIED, Traced, left_out
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.storage import Preparation
from runner.recipe import units
from runner.tools.problem import errors_of
from runner.tools.text import printable, template

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

WIDTH = 80


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
    errors = bool(errors_of(planned.problems))
    change = [_filled("change", planned, offers, errors)] if planned.forecasts else []
    for line in (*verdict(planned), *change):
        _say(line, rest="  ")


def verdict(planned: Planned, price: str = "`--price` (per GPU hour)") -> tuple[str, ...]:
    """Three sentences on fit, time and cost. price: how a price is given."""
    if not planned.forecasts:
        return (f"No estimate for {planned.plan.name}: there are no formulas for what it trains.",)
    most = _largest(planned)
    fits = _filled("fits", planned, most, _full(most))
    return fits, _filled("time", planned), _filled("cost", planned, price)


@cache
def _macros() -> TemplateModule:
    words = {"MOST_TRIED": MOST_TRIED, "MOMENTS": FIGURES["moments"], "MEMORY": FIGURES["memory"], "SPENT": SPENT}
    functions = {"rounded": rounded, "column": _column, "machine": storage.machine, "between": _between}
    return template(HERE / "plan.txt.jinja", units=units, GIB=GIB).make_module({**words, **functions})


def _filled(macro: str, *said: object) -> str:
    """The text of a macro of `plan.txt.jinja`."""
    return str(getattr(_macros(), macro)(*said)).strip()


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
    _say(_sources(planned))


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
    before = sum(each.total_seconds for each in planned.preparations)
    for line in _filled("machines", rows[-1], before).splitlines():
        _say(line, rest="  ")


def offered(offers: list[Offer]) -> None:
    """Prints each offer with its number, its figures, and its losses."""
    if offers:
        say()
    for number, offer in enumerate(offers, 1):
        # No line ends between a setting and its value.
        changes = f"{number}. {', '.join(offer.lines)}".replace(": ", ":\0")
        say(textwrap.fill(changes, WIDTH, subsequent_indent="   ").replace("\0", " "))
        _say(_filled("offer", offer, offer.after), "   ", "   ")


def _largest(planned: Planned) -> Forecast:
    return max(planned.forecasts, key=lambda each: each.memory.total)


def _full(forecast: Forecast) -> int:
    """The bytes for rows as long as `sequence_len`; 0 if those are not more than what is expected."""
    full = forecast.full.memory.total
    return full if full > forecast.memory.total else 0


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


def _sources(planned: Planned) -> str:
    """Where the ranges come from, and the rows that the memory in the first line is for."""
    most = _largest(planned)
    timed = [each for each in planned.forecasts if each.time]
    longest = max(timed, key=lambda each: each.gpu_hours or 0, default=None)
    own = constants.constants(longest.stage.machines.gpu) if longest else None
    spread = constants.spread(longest.workload, "time") if longest else None
    return _filled("sources", most, _full(most), longest, own, spread)


# In full: a table for each stage, then the claims and the sources.


def details(planned: Planned, nodes: list[int], traced: Mapping[str, Traced]) -> None:
    """Prints all numbers of a plan, one table a stage."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    plan, forecasts = planned.sized, planned.forecasts
    for forecast in forecasts:
        table = Table(title=f"{plan.name}, stage {forecast.stage.name}", title_justify="left", show_header=False)
        facts = (forecast, _full(forecast), storage.host(forecast), storage.disk(forecast, plan), plan)
        for section in _filled("stage", *facts).split("\n\n"):
            for row in section.split("\n"):
                table.add_row(*map(printable, row.split(" | ", 1)))
            table.add_section()
        console.print(table)
        exact(console, [forecast], traced)
    for line in _filled("untrained", plan.stages, {each.stage: each for each in planned.preparations}).splitlines():
        _say(line)
    if stored := _filled("stored", plan, storage.before_training(plan), storage.needs(plan, forecasts)):
        say(stored)
    if forecasts:
        _say(basis(forecasts, nodes))
    if planned.hardware:
        _say(_filled("in_total", planned.hardware))


def _column(size: int) -> str:
    return f"{size / 2**20:8.0f} MiB" if 0 < size < 0.1 * 2**30 else f"{size / 2**30:8.2f} GiB"


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
