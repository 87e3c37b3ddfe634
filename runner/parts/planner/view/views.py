"""A plan for people and programs: on one screen, in full, beside an exact trace, as JSON, and as a
picture."""

import textwrap
from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from runner.catalog.hardware import GIB
from runner.commands.options import say
from runner.parts.planner import constants, storage
from runner.parts.planner.forecast import MOST_TRIED, Forecast, basis, named
from runner.parts.planner.formulas import Traced, left_out
from runner.parts.planner.memory import Memory
from runner.parts.planner.planned import Planned, gpu_memory
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.view import scaling
from runner.recipe import units
from runner.tools import packaged
from runner.tools.problem import errors_of
from runner.tools.text import json_text, macros, printable, template

WIDTH = 80
MOST_MOMENTS = 12  # of the backward pass that are reported; it has one for each layer
HERE = Path(__file__).parent
FIGURES = packaged.toml(__file__, "figures.toml")
JSON = packaged.toml(__file__, "json.toml")
PARTS: Mapping[str, tuple[str, str]] = FIGURES["drawn"]


# On one screen.


def _say(line: str, first_indent: str = "", indent: str = "") -> None:
    say(textwrap.fill(line, WIDTH, initial_indent=first_indent, subsequent_indent=indent))


def _say_table(macro: str, *arguments: object) -> None:
    """Prints the table of a macro: titles, then a line for each row, with cells apart by ` | `. A
    `/` is a line's end in a title, and a `>` before it makes its column one of numbers."""
    titles, *cells = rows(macro, *arguments)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        justify: Literal["left", "right"]
        if title.startswith(">"):
            justify = "right"
        else:
            justify = "left"
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
    if planned.forecasts:
        change = [_filled("change", planned, offers, errors)]
    else:
        change = []
    for line in (*verdict(planned), *change):
        _say(line, indent="  ")


def verdict(planned: Planned, price: str = "`--price` (per GPU hour)") -> tuple[str, ...]:
    """Three sentences on fit, time and cost. price: how a price is given."""
    if not planned.forecasts:
        return (f"No estimate for {planned.plan.name}: there are no formulas for what it trains.",)
    return _filled("fits", planned), _filled("time", planned), _filled("cost", planned, price)


def _filled(macro: str, *arguments: object) -> str:
    """The text of a macro of `plan.txt.jinja`."""
    figures = {"figures": FIGURES.get, "constants": constants.constants, "spread": constants.spread}
    more = {"units": units, "machine": storage.machine, "GIB": GIB, "MOST_TRIED": MOST_TRIED}
    text_macros = macros(HERE / "plan.txt.jinja", **figures, **more)
    return str(getattr(text_macros, macro)(*arguments)).strip()


def rows(macro: str, *arguments: object) -> list[list[str]]:
    """The cells of the table that a macro of `plan.txt.jinja` writes, a line for each row."""
    lines = _filled(macro, *arguments).splitlines()
    # Only the last cell may have text of others.
    return [[cell.strip() for cell in line.split("|", lines[0].count("|"))] for line in lines]


def stages(planned: Planned) -> None:
    """Prints a line for each stage, and how sure the numbers are."""
    if not planned.forecasts:
        return
    forecasts = {stage.stage.name: stage for stage in planned.forecasts}
    prepared = {stage.stage: stage for stage in planned.preparations if stage.total_seconds}
    _say_table("stages", planned, forecasts, prepared)
    _say(_filled("sources", planned))


def machines(planned: Planned, counts: list[int]) -> None:
    """Prints a line for each count of machines, and how often to save on the largest one."""
    compared = scaling.rows(planned.forecasts, counts)
    if not compared:
        say("\nThe time on other numbers of machines is unknown.")
        return
    _say_table("on_machines", compared)
    before = sum(preparation.total_seconds for preparation in planned.preparations)
    for line in _filled("machines", compared[-1], before).splitlines():
        _say(line, indent="  ")


def offered(offers: list[Offer], figures: str = "offer") -> None:
    """Prints each offer with its number, its figures, and its losses. figures: the macro with
    those."""
    if offers:
        say()
    for number, offer in enumerate(offers, 1):
        # No line ends between a setting and its value.
        changes = f"{number}. {', '.join(offer.lines)}".replace(": ", ":\0")
        say(textwrap.fill(changes, WIDTH, subsequent_indent="   ").replace("\0", " "))
        _say(_filled(figures, offer, offer.after), "   ", "   ")


# In full: a table for each stage, then the claims and the sources.


def details(planned: Planned, nodes: list[int], traced: Mapping[str, Traced]) -> None:
    """Prints all numbers of a plan, one table a stage."""
    terminal = Console()
    if terminal.is_terminal:
        console = terminal
    else:
        console = Console(width=120)
    plan = planned.sized
    forecasts = planned.forecasts
    for forecast in forecasts:
        table = Table(
            title=f"{plan.name}, stage {forecast.stage.name}",
            title_justify="left",
            show_header=False,
        )
        facts = (forecast, storage.host(forecast), storage.disk(forecast, plan), plan)
        for section in _filled("stage", *facts).split("\n\n"):
            for row in section.split("\n"):
                table.add_row(*map(printable, row.split(" | ", 1)))
            table.add_section()
        console.print(table)
        exact(console, [forecast], traced)
    for line in _filled(
        "untrained",
        plan.stages,
        {preparation.stage: preparation for preparation in planned.preparations},
    ).splitlines():
        _say(line)
    stored = _filled("stored", plan, storage.before_training(plan), storage.needs(plan, forecasts))
    if stored:
        say(stored)
    if forecasts:
        _say(basis(forecasts, nodes))
        _say(_filled("in_total", hardware(planned)))


def hardware(planned: Planned) -> dict[str, object] | None:
    """Sums over all machines of the largest stage; None without stages. gpu_memory, main_memory:
    bytes; gpu_memory_gb_s: 10^9 bytes a second; network_gbit_s: what their links reach, 10^9 bits a
    second, 0 for one machine; tflops: 10^12 operations a second in the run's precision, by data
    sheets. gpu: None, and its figures 0, for an unknown card."""
    if not planned.forecasts:
        return None
    largest = max(planned.forecasts, key=lambda forecast: forecast.stage.machines.world_size)
    machines = largest.stage.machines
    gpu = largest.gpu
    work = largest.workload
    gpus = machines.world_size
    return {
        "machines": machines.nodes,
        "gpus": gpus,
        "gpu": gpu.title if gpu else None,
        "precision": work.precision,
        "gpu_memory": gpus * gpu.memory_gib * GIB if gpu else 0,
        "gpu_memory_gb_s": gpus * gpu.memory_gb_s if gpu else 0,
        "main_memory": round(machines.nodes * units.size(planned.recipe.machines.memory)),
        "network_gbit_s": machines.nodes * work.network.gbit_s if machines.nodes > 1 else 0,
        "tflops": gpus * work.rate(gpu) / 1e12 if gpu else 0,
    }


# Beside an exact trace.


def exact(console: Console, forecasts: list[Forecast], traces: Mapping[str, Traced]) -> None:
    """Prints the exact trace of each traced stage beside the quick estimate."""
    for forecast in forecasts:
        traced = traces.get(forecast.stage.name)
        if traced is None:
            continue
        table = Table("exact, on fake tensors", "exact", "quick", title_justify="left")
        fields = left_out(forecast.workload)
        counts = forecast.counts
        quick = forecast.changed(**fields).memory
        for row in rows("exact", traced, quick, counts):
            table.add_row(*row)
        if fields:
            table.caption = "ZeRO and offloading are not traced; formulas estimate what they save."
        console.print(table)


# As JSON.


def step(memory: Memory) -> list[tuple[str, dict[str, int]]]:
    """The moments of a step with bytes of a GPU by part; a long backward pass is thinned evenly,
    and keeps its peak."""
    backward = [moment for moment in memory.moments if moment.name == "backward"]
    most = max(backward, key=lambda moment: moment.size, default=None)
    interval = -(-len(backward) // MOST_MOMENTS) or 1
    kept = [
        moment
        for n, moment in enumerate(backward)
        if n % interval == 0 or moment in (most, backward[-1])
    ]
    reported = [moment for moment in memory.moments if moment.name != "backward" or moment in kept]
    # A step begins without activations.
    start = reported[0]._replace(name="forward", activations=0, logits=0, temporary=0)
    weights = memory.state.weights
    optimizer = memory.state.optimizer
    slack = memory.slack / max(memory.tensors, 1)
    moments = []
    for reported_moment in (start, *reported):
        moments.append(
            (
                reported_moment.name,
                {
                    "weights": weights,
                    "optimizer": optimizer,
                    "gradients": reported_moment.gradients,
                    "activations": reported_moment.activations,
                    "loss": reported_moment.logits,
                    "other": reported_moment.base - weights - optimizer + reported_moment.temporary,
                    "reserve": round(reported_moment.size * slack) + memory.context,
                },
            )
        )
    return moments


def as_json(
    planned: Planned, offers: Iterable[Offer], nodes: list[int], traced: Mapping[str, Traced]
) -> str:
    """The plan of a recipe. nodes: other counts of machines; traced: the exact traces by stage."""
    plan = planned.sized
    forecasts = planned.forecasts
    trained = [entry.stage.name for entry in forecasts]
    report = {
        "name": plan.name,
        "basis": basis(forecasts, nodes),
        # The size that is requested for each claim, and what will be written to it.
        "claims_gib": {claim.name: plan.claim_gib(claim.name) for claim in plan.claims},
        "claims_bytes": storage.needs(plan, forecasts),
        "stages": [
            _stage(planned, entry, nodes, traced.get(entry.stage.name)) for entry in forecasts
        ],
        # Stages that train nothing.
        "without_formulas": [stage.name for stage in plan.stages if stage.name not in trained],
        # Of these, those with an estimate of their time.
        "preparations": [
            entry._asdict() | {"range_seconds": entry.range_seconds}
            for entry in planned.preparations
            if entry.total_seconds
        ],
        "all_stages": planned.together,
        "all_machines": hardware(planned),
        "before_training_bytes": list(storage.before_training(plan)),
        "problems": [problem.as_json() for problem in planned.problems],
        "notes": [note.as_json() for note in planned.notes],
        "offers": [named(JSON["offer"], offer) for offer in offers],
        "on_machines": scaling.rows(forecasts, nodes),
    }
    return json_text(report)


def _stage(
    planned: Planned, stage: Forecast, nodes: list[int], traced: Traced | None
) -> dict[str, object]:
    """The needs of one stage."""
    figures = SimpleNamespace(
        stage=stage,
        published=str(stage.memory_spread),
        limit=gpu_memory(planned.recipe),
        parts=stage.memory.parts(),
        step=[{"moment": moment, **parts} for moment, parts in step(stage.memory)],
        host=storage.host(stage),
        disk=storage.disk(stage, planned.sized),
        batch_tokens=getattr(stage.workload, "batch_tokens", None),
        warmup_share=stage.warmup_steps / stage.steps if stage.steps else None,
        time=stage.time.as_json() if stage.time else None,
        machines=[
            named(JSON["machines"], scaling.StageOnMachines.of(stage, count)) for count in nodes
        ],
        traced=traced,
    )
    return named(JSON["stage"], figures)


# As a picture: GPU memory over one step of each stage, and time by stage. It is one SVG file
# without other files and follows the reader's light or dark colours.


def svg(planned: Planned) -> str:
    limit = gpu_memory(planned.recipe)
    picture = template(HERE / "picture.svg.jinja", px="{:.2f}".format, units=units)
    timed = {}
    for stage_forecast in planned.forecasts:
        if stage_forecast.time:
            timed[stage_forecast.stage.name] = stage_forecast.time
    plots = [_plot(stage, limit) for stage in planned.forecasts]
    return f"{picture.render(FIGURES, GIB=GIB, name=planned.plan.name, plots=plots, limit=limit, timed=timed)}\n"


def _plot(stage: Forecast, limit: int | None) -> dict[str, Any]:
    """The plot of one stage, in bytes. highest: where its axis ends; ticks: GiB at the axis;
    moments: their names; areas: of each part its name, its edge as numbers of moments with sizes,
    and its peak; bars: of each part in evaluation its name and both ends; peak: the number of the
    largest moment, and its size."""
    memory = stage.memory
    moments = step(stage.memory)
    highest = 1.12 * max(memory.total, stage.usable or 0, limit or 0)
    # At most six round numbers from 0 to the highest value.
    rounds = (times * 10.0**power for power in range(-3, 9) for times in (1, 2, 5))
    apart = next(round_number for round_number in rounds if highest / GIB / round_number <= 5)
    areas = []
    lower_edge = [0] * len(moments)
    for part in PARTS:
        upper_edge = []
        for low, (_, parts) in zip(lower_edge, moments, strict=True):
            upper_edge.append(low + parts[part])
        if upper_edge != lower_edge:
            edge = [*enumerate(upper_edge), *reversed([*enumerate(lower_edge)])]
            areas.append((part, edge, max(parts[part] for _, parts in moments)))
        lower_edge = upper_edge
    weights = memory.state.weights
    optimizer = memory.state.optimizer
    sums = (0, weights, weights + optimizer, memory.evaluation, memory.in_evaluation)
    ends = [*accumulate(sums, max)]
    return {
        "stage": stage,
        "highest": highest,
        "ticks": [apart * n for n in range(int(highest / GIB / apart) + 1)],
        "moments": [moment for moment, _ in moments],
        "areas": areas,
        "bars": [
            *zip(("weights", "optimizer", "activations", "reserve"), ends, ends[1:], strict=False)
        ],
        # After the last part, `below` is all of each moment.
        "peak": max(enumerate(lower_edge), key=itemgetter(1)),
    }
