"""`recipe diff`: what two recipes differ in: in their settings, defaults filled in, and in what they need and what is
emitted for them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from runner.check import by_schema
from runner.check.validate import valid
from runner.commands.options import complete_starter, end, say, table
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.planned import Planned
from runner.plan import RECIPE_FILE, Plan, flat, without_place
from runner.recipe import reading, units
from runner.recipe.copying import written
from runner.recipe.document import Document, differing, leaves
from runner.recipe.overrides import path_of
from runner.scenarios import translate
from runner.scenarios.targets import place
from runner.tools import packaged
from runner.tools.names import setting as name_of
from runner.tools.names import shortened
from runner.tools.problem import Problem, Stop
from runner.tools.run_files import CONFIG

# Emitted settings that follow every change, and say nothing of their own.
_FOLLOWING = ("fingerprint", "proven_for.")


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same: its name, both values, None if it is not there, and what it is. unit: of a
    figure."""

    name: str
    before: Any
    after: Any
    meaning: str = ""
    unit: str = ""


def opened(name: str) -> Document:
    """A recipe by its file, by a starter's name, or by the folder of a run, whose sealed recipe is read.

    Raises Stop if it is none of these, or no recipe."""
    path = Path(name)
    if path.is_dir():
        sealed = sorted([path / CONFIG / RECIPE_FILE, *path.glob(f"{CONFIG}/*/{RECIPE_FILE}")])
        there = next((file for file in sealed if file.is_file()), None)
        if there is None:
            message = f"This folder is not a run: it has no `{CONFIG}/{RECIPE_FILE}`."
            raise Stop(Problem(name, 0, 0, message, "Name a recipe, a starter, or the folder of a run."))
        return reading.read(there)
    return reading.read(packaged.recipe_file(name))


def in_settings(before: Document, after: Document) -> list[Difference]:
    """The settings in which two recipes differ, in the order of the first; one that is left out is its default.

    Raises Stop if a schema refuses one of them."""
    (old, of_old), (new, of_new) = _settings(before), _settings(after)
    return [
        Difference(name, was, now, _meaning(name, of_new if name in new else of_old))
        for name, (was, now) in differing([old, new])
    ]


def _settings(document: Document) -> tuple[dict[str, Any], str]:
    """Every setting of a document by its name, and the scenario."""
    if problem := by_schema.scenario_problem(document):
        raise Stop(problem)
    read = by_schema.read(document)
    if read.problems:
        raise Stop(read.problems)
    each = leaves(read.settings.plain(), lambda items: items and all(isinstance(item, dict) for item in items))
    return {name_of(path): value for path, value in each if value != {}}, document.data["scenario"]


def _meaning(name: str, scenario: str) -> str:
    """The first sentence of what the schema says of a setting, which has its unit."""
    said = by_schema.sentence(scenario, path_of(name))
    return f"{said}." if said else ""


def in_plans(before: Document | None, after: Document, price: float | None = None) -> list[Difference]:
    """What each stage of two recipes needs of memory, time and money, the same or not, and the emitted settings that
    differ. before: None for none, and then no emitted settings are printed. price: of one GPU hour, None for the
    recipes' own.

    Raises Stop if one of them is not valid."""
    old, old_units = _planned(before, price) if before else ({}, {})
    new, new_units = _planned(after, price)
    rows = [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
    units_of = old_units | new_units
    return [
        Difference(name, was, now, unit=units_of.get(name, ""))
        for name, was, now in rows
        if name in units_of or (before and was != now)
    ]


def _planned(document: Document, price: float | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Figures of each stage and emitted settings by their names, and the unit of each figure."""
    recipe, _ = valid(document, look=False)
    try:
        planned = Planned.of(recipe, price)
    except UnknownArchitecture:
        return dict(_emitted(translate(recipe, place(recipe)))), {}
    figures = [
        (f"{one.stage.name}: {name}", value, unit) for one in planned.forecasts for name, value, unit in _figures(one)
    ]
    values = {name: value for name, value, _ in figures} | dict(_emitted(planned.plan))
    return values, {name: unit for name, _, unit in figures}


def _figures(forecast: Forecast) -> Iterator[tuple[str, float | None, str]]:
    yield "GPU memory", forecast.memory.total, "bytes of each GPU"
    yield "room on a GPU", forecast.usable, "bytes of each GPU"
    yield "time", forecast.time.total_seconds if forecast.time else None, "seconds"
    yield "GPU hours", forecast.gpu_hours, "hours"
    if forecast.price is not None:
        yield "cost", forecast.cost, f"at {forecast.price:g} a GPU hour"


def _emitted(plan: Plan) -> Iterator[tuple[str, Any]]:
    """The settings of each stage's emitted config, without the folders of a run."""
    for stage in plan.stages:
        file = "/".join(filter(None, (stage.folder, stage.config_file)))
        for name, value in flat(stage.config):
            if not name.startswith(_FOLLOWING) and not name.endswith(_FOLLOWING):
                # Checkpoints are under the stage's key, which follows every change too.
                told = value.removesuffix(f"/{stage.keys['']}") if isinstance(value, str) else value
                yield f"{file}: {name}", without_place(told, plan.place)


# How a figure reads, by the first word of its unit.
_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "bytes": units.gib,
    "seconds": units.duration,
    "hours": units.speed,
    "at": units.speed,
}
MOST_LETTERS = 60


def row(one: Difference) -> tuple[str, str, str, str]:
    """A difference as people read it: its name, both values, and what it is."""
    show = _SHOWN.get(one.unit.partition(" ")[0], lambda value: shortened(written(value), MOST_LETTERS))
    before, after = ("-" if value is None else show(value) for value in (one.before, one.after))
    said = one.meaning or (one.unit if one.unit.startswith(("bytes of", "at ")) else "")
    return one.name, before, after, said.removeprefix("bytes ")


def markdown(settings: Sequence[Difference], plans: Sequence[Difference]) -> str:
    """Both as tables in Markdown; empty of nothing."""
    tables = [
        _markdown(("setting", "before", "after", "what it is"), settings),
        _markdown(("plan", "before", "after", ""), plans),
    ]
    return "\n\n".join(filter(None, tables))


def _markdown(head: tuple[str, ...], differences: Sequence[Difference]) -> str:
    rows = [tuple(map(_cell, row(one))) for one in differences]
    lines = (f"| {' | '.join(cells)} |" for cells in [head, ("---",) * len(head), *rows])
    return "\n".join(lines) if rows else ""


def _cell(text: str) -> str:
    """A text that no reader of Markdown takes for more: a recipe of a pull request is anybody's."""
    return re.sub(r"([\\|`*_<>\[\]@#~&])", r"\\\1", text)


@click.command()
@click.argument("before", metavar="A", shell_complete=complete_starter)
@click.argument("after", metavar="B", shell_complete=complete_starter)
@click.option("--plan", "plans", is_flag=True, help="Show what changes in memory, time, cost and generated settings.")
@click.option("--price", type=click.FloatRange(min=0), help="The price of a GPU hour, for `--plan`.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", help="How to print it."
)
def diff(before: str, after: str, plans: bool, price: float | None, style: str) -> None:
    """Compare the settings of recipes A and B. A setting that is left out counts as its default.

    A and B are recipes, names of starters, or run folders. For a run folder, the recipe of that run is used.
    """
    old, new = opened(before), opened(after)
    settings = in_settings(old, new)
    planned = in_plans(old, new, price) if plans else []
    if style == "json":
        whole = {"before": before, "after": after, "settings": [asdict(one) for one in settings]}
        whole |= {"plan": [asdict(one) for one in planned]} if plans else {}
        say(json.dumps(whole, indent=2, ensure_ascii=False))
    elif style == "markdown":
        say(markdown(settings, planned) or "No setting differs.")
    else:
        for head, some in (("SETTING", settings), ("PLAN", planned)):
            if some:
                table([(head, before, after, ""), *map(row, some)])
                say()
        if not settings:
            say("No setting differs.")
        several, one = f"{len(settings)} settings differ.", "One setting differs."
        end(several if len(settings) > 1 else one if settings else "Both recipes are the same.", "plan", new.file)
