"""A plan as text: on one screen, in full, and beside an exact trace."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Literal

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.plan_view import scaling
from runner.parts.plan_view.report import FIGURES, GIB, HERE
from runner.parts.planner import constants, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast, basis
from runner.parts.planner.formulas import MOST_TRIED, Traced, left_out
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.storage import Preparation
from runner.recipe import units
from runner.tools.problem import errors_of
from runner.tools.text import macros, printable

WIDTH = 80


# On one screen.


def _say(line: str, first: str = "", rest: str = "") -> None:
    say(textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=rest))


def _say_table(macro: str, *about: object) -> None:
    """Prints the table of a macro: titles, then a line for each row, with cells apart by ` | `. A `/` is a line's end in a
    title, and a `>` before it makes its column one of numbers."""
    titles, *cells = rows(macro, *about)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        justify: Literal["left", "right"] = "right" if title.startswith(">") else "left"
        table.add_column(title.lstrip(">").replace("/", "\n"), justify=justify, no_wrap=number > 0)
    for row in cells:
        table.add_row(*row)
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


def _filled(macro: str, *said: object) -> str:
    """The text of a macro of `plan.txt.jinja`."""
    functions = {"rounded": rounded, "column": _column, "machine": storage.machine, "between": _between}
    known = macros(
        HERE / "plan.txt.jinja", units=units, figures=FIGURES.get, GIB=GIB, MOST_TRIED=MOST_TRIED, **functions
    )
    return str(getattr(known, macro)(*said)).strip()


def rows(macro: str, *about: object) -> list[list[str]]:
    """The cells of the table that a macro of `plan.txt.jinja` writes, a line for each row."""
    lines = _filled(macro, *about).splitlines()
    # Only the last cell may have text of others.
    return [[cell.strip() for cell in line.split("|", lines[0].count("|"))] for line in lines]


def stages(planned: Planned) -> None:
    """Prints a line for each stage, and how sure the numbers are."""
    if not planned.forecasts:
        return
    forecasts = {each.stage.name: each for each in planned.forecasts}
    prepared = {each.stage: each for each in planned.preparations if each.total_seconds}
    _say_table("stages", planned, forecasts, prepared)
    _say(_sources(planned))


def machines(planned: Planned, counts: list[int]) -> None:
    """Prints a line for each count of machines, and how often to save on the largest one."""
    compared = scaling.rows(planned.forecasts, counts)
    if not compared:
        say("\nThe time on other numbers of machines is unknown.")
        return
    _say_table("on_machines", compared)
    before = sum(each.total_seconds for each in planned.preparations)
    for line in _filled("machines", compared[-1], before).splitlines():
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
        for row in rows("exact", traced, quick, counts):
            table.add_row(*row)
        if fields:
            table.caption = "ZeRO and offloading are not traced; formulas estimate what they save."
        console.print(table)
