"""`recipe diff`: the differences between two recipes: settings with defaults, needs, and generated
settings."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.catalog import UnknownArchitecture
from runner.check import by_schema, validate
from runner.commands.options import command, end, say, table
from runner.parts.planner import forecast
from runner.plan import RECIPE_FILE, flat, without_place
from runner.recipe import reading, units
from runner.recipe.document import Document, differing, leaves, path_of
from runner.scenarios import place, translate
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, shortened
from runner.tools.problem import setting as name_of
from runner.tools.run_files import CONFIG
from runner.tools.text import json_text

_FOLLOWING = ("fingerprint", "proven_for.")  # generated settings that differ after any change


@dataclass(frozen=True)
class Difference:
    """A name with two values, None if missing; meaning: of a setting; unit: of a figure."""

    name: str
    before: Any
    after: Any
    meaning: str = ""
    unit: str = ""


def opened(name: str) -> Document:
    """A recipe by its file, by a starter's name, or by a run folder, which has a copy. Raises Stop
    if there is none."""
    path = Path(name)
    if path.is_dir():
        copies = [path / CONFIG / RECIPE_FILE, *path.glob(f"{CONFIG}/*/{RECIPE_FILE}")]
        for file in sorted(copies):
            if file.is_file():
                return reading.read(file)
        raise Stop(
            Problem(
                name,
                0,
                0,
                f"This folder is not a run: it has no `{CONFIG}/{RECIPE_FILE}`.",
                "Name a recipe, a starter, or the folder of a run.",
            )
        )
    return validate.opened(reading.read(packaged.recipe_file(name)))[0]


def in_settings(before: Document, after: Document) -> list[Difference]:
    """Two recipes' different settings, with defaults, in the first one's order. Raises Stop if a
    schema refuses one."""
    old = _settings(before)
    new = _settings(after)
    differences = []
    for name, (value_before, value_after) in differing([old, new]):
        if name in new:
            scenario = after.data["scenario"]
        else:
            scenario = before.data["scenario"]
        meaning = by_schema.sentence(scenario, path_of(name))
        if meaning:
            meaning += "."
        differences.append(Difference(name, value_before, value_after, meaning))
    return differences


def _settings(document: Document) -> dict[str, Any]:
    problem = by_schema.scenario_problem(document)
    if problem:
        raise Stop(problem)
    settings, problems = by_schema.read(document)
    if problems:
        raise Stop(problems)

    def are_sections(items: Sequence[object]) -> bool:
        return bool(items) and all(isinstance(item, dict) for item in items)

    values = leaves(settings.plain(), are_sections)
    return {name_of(path): value for path, value in values if value != {}}


def in_plans(
    before: Document | None, after: Document, price: float | None = None
) -> list[Difference]:
    """The memory, time and cost of each stage of two recipes, even if equal, and the generated
    settings that differ. before: None for a new recipe, without generated settings. price: of one
    GPU hour, None for the recipes' own. Raises Stop if one of them is not valid."""
    old = {}
    if before:
        old = _planned(before, price)
    new = _planned(after, price)
    differences = []
    for name in dict.fromkeys([*old, *new]):
        value_before, unit_before = old.get(name, (None, ""))
        value_after, unit = new.get(name, (None, unit_before))
        if unit or (before and value_before != value_after):
            differences.append(Difference(name, value_before, value_after, unit=unit))
    return differences


def _planned(document: Document, price: float | None) -> dict[str, tuple[Any, str]]:
    """Figures of each stage with their units, and the settings of its generated config, which have
    none and are without the folders of a run, by their names."""
    recipe, _ = validate.valid(document, look=False)
    figures: dict[str, tuple[Any, str]] = {}
    plan = translate(recipe, place(recipe))
    forecasts = list[forecast.Forecast]()
    with suppress(UnknownArchitecture):
        forecasts = forecast.of(recipe, plan, price)
    for needs in forecasts:
        name = needs.stage.name
        seconds = None
        if needs.time:
            seconds = needs.time.total_seconds
        figures[f"{name}: GPU memory"] = needs.memory.total, "bytes of each GPU"
        figures[f"{name}: room on a GPU"] = needs.usable, "bytes of each GPU"
        figures[f"{name}: time"] = seconds, "seconds"
        figures[f"{name}: GPU hours"] = needs.gpu_hours, "hours"
        if needs.price is not None:
            figures[f"{name}: cost"] = needs.cost, f"at {needs.price:g} a GPU hour"
    for stage in plan.stages:
        file = "/".join(filter(None, (stage.folder, stage.config_file)))
        for name, value in flat(stage.config):
            if name.startswith(_FOLLOWING) or name.endswith(_FOLLOWING):
                continue
            if isinstance(value, str):
                # The folder of checkpoints ends with the stage's key, which any change changes.
                value = value.removesuffix(f"/{stage.keys['']}")
            figures[f"{file}: {name}"] = without_place(value, plan.place), ""
    return figures


# The format of a figure, by the first word of its unit.
_SHOWN = {"bytes": units.gib, "seconds": units.duration, "hours": units.speed, "at": units.speed}


def row(difference: Difference) -> tuple[str, str, str, str]:
    """A difference for people: its name, both values, and its meaning."""
    unit = difference.unit
    meaning = difference.meaning
    if not meaning and unit.startswith(("bytes of", "at ")):
        meaning = unit.removeprefix("bytes ")
    before = _shown(difference.before, unit)
    return difference.name, before, _shown(difference.after, unit), meaning


def _shown(value: object, unit: str) -> str:
    if value is None:
        return "-"
    kind = unit.partition(" ")[0]
    if kind in _SHOWN and isinstance(value, int | float):
        return _SHOWN[kind](value)
    return shortened(reading.written(value), 60)


def markdown(settings: Sequence[Difference], plans: Sequence[Difference]) -> str:
    """Both as tables in Markdown, if they have rows. Texts are escaped, because anybody can open a
    pull request."""
    tables = []
    for heading, meaning, differences in (("setting", "what it is", settings), ("plan", "", plans)):
        if not differences:
            continue
        rows = [[heading, "before", "after", meaning], ["---"] * 4]
        for difference in differences:
            rows.append([_escaped(cell) for cell in row(difference)])
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _escaped(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]@#~&])", r"\\\1", text)


@command
def diff(before: str, after: str, plans: bool, price: float | None, style: str) -> None:
    """Compare the settings of recipes A and B. A setting that is left out counts as its default.

    A and B are recipes, names of starters, or run folders. For a run folder, the recipe of that run
    is used.
    """
    old = opened(before)
    new = opened(after)
    settings = in_settings(old, new)
    if plans:
        planned = in_plans(old, new, price)
    else:
        planned = []
    if style == "json":
        comparison = {"before": before, "after": after, "settings": settings}
        if plans:
            comparison["plan"] = planned
        say(json_text(comparison))
    elif style == "markdown":
        say(markdown(settings, planned) or "No setting differs.")
    else:
        for heading, differences in (("SETTING", settings), ("PLAN", planned)):
            if differences:
                table([(heading, before, after, ""), *map(row, differences)])
                say()
        if len(settings) > 1:
            count = f"{len(settings)} settings differ"
        elif settings:
            count = "One setting differs"
        else:
            say("No setting differs.")
            count = "No setting differs"
        end(f"{count} between {before} and {after}.", "plan", new.file)
