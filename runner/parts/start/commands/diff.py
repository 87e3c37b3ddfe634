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
        sealed = sorted([path / CONFIG / RECIPE_FILE, *path.glob(f"{CONFIG}/*/{RECIPE_FILE}")])
        there = next((file for file in sealed if file.is_file()), None)
        if there:
            return reading.read(there)
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
    found = []
    for name, (was, now) in differing([old, new]):
        said = by_schema.sentence(
            (after if name in new else before).data["scenario"], path_of(name)
        )
        found.append(Difference(name, was, now, f"{said}." if said else ""))
    return found


def _settings(document: Document) -> dict[str, Any]:
    problem = by_schema.scenario_problem(document)
    if problem:
        raise Stop(problem)
    settings, problems = by_schema.read(document)
    if problems:
        raise Stop(problems)
    each = leaves(
        settings.plain(), lambda items: items and all(isinstance(item, dict) for item in items)
    )
    return {name_of(path): value for path, value in each if value != {}}


def in_plans(
    before: Document | None, after: Document, price: float | None = None
) -> list[Difference]:
    """The memory, time and cost of each stage of two recipes, even if equal, and the generated
    settings that differ. before: None for a new recipe, without generated settings. price: of one
    GPU hour, None for the recipes' own. Raises Stop if one of them is not valid."""
    old = _planned(before, price) if before else {}
    new = _planned(after, price)
    found = []
    for name in dict.fromkeys([*old, *new]):
        (was, unit), (now, of) = old.get(name, (None, "")), new.get(name, (None, ""))
        if of or unit or (before and was != now):
            found.append(Difference(name, was, now, unit=of or unit))
    return found


def _planned(document: Document, price: float | None) -> dict[str, tuple[Any, str]]:
    """Figures of each stage with their units, and the settings of its generated config, which have
    none and are without the folders of a run, by their names."""
    recipe, _ = validate.valid(document, look=False)
    figures: dict[str, tuple[Any, str]] = {}
    plan = translate(recipe, place(recipe))
    forecasts = list[forecast.Forecast]()
    with suppress(UnknownArchitecture):
        forecasts = forecast.of(recipe, plan, price)
    for one in forecasts:
        name = one.stage.name
        figures[f"{name}: GPU memory"] = one.memory.total, "bytes of each GPU"
        figures[f"{name}: room on a GPU"] = one.usable, "bytes of each GPU"
        figures[f"{name}: time"] = one.time.total_seconds if one.time else None, "seconds"
        figures[f"{name}: GPU hours"] = one.gpu_hours, "hours"
        if one.price is not None:
            figures[f"{name}: cost"] = one.cost, f"at {one.price:g} a GPU hour"
    for stage in plan.stages:
        file = "/".join(filter(None, (stage.folder, stage.config_file)))
        for name, value in flat(stage.config):
            if not name.startswith(_FOLLOWING) and not name.endswith(_FOLLOWING):
                # The folder of checkpoints ends with the stage's key, which any change changes.
                if isinstance(value, str):
                    told = value.removesuffix(f"/{stage.keys['']}")
                else:
                    told = value
                figures[f"{file}: {name}"] = without_place(told, plan.place), ""
    return figures


# The format of a figure, by the first word of its unit.
_SHOWN = {"bytes": units.gib, "seconds": units.duration, "hours": units.speed, "at": units.speed}


def row(one: Difference) -> tuple[str, str, str, str]:
    """A difference for people: its name, both values, and its meaning."""
    show = _SHOWN.get(
        one.unit.partition(" ")[0], lambda value: shortened(reading.written(value), 60)
    )
    before, after = ("-" if value is None else show(value) for value in (one.before, one.after))
    said = one.meaning or (one.unit if one.unit.startswith(("bytes of", "at ")) else "")
    return one.name, before, after, said.removeprefix("bytes ")


def markdown(settings: Sequence[Difference], plans: Sequence[Difference]) -> str:
    """Both as tables in Markdown, if they have rows. Texts are escaped, because anybody can open a
    pull request."""
    tables = []
    for heading, meaning, differences in (("setting", "what it is", settings), ("plan", "", plans)):
        rows = [
            [re.sub(r"([\\|`*_<>\[\]@#~&])", r"\\\1", cell) for cell in row(one)]
            for one in differences
        ]
        lines = []
        for cells in [[heading, "before", "after", meaning], ["---"] * 4, *rows]:
            lines.append(f"| {' | '.join(cells)} |")
        tables += ["\n".join(lines)] if rows else []
    return "\n\n".join(tables)


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
        whole = {"before": before, "after": after, "settings": settings}
        whole |= {"plan": planned} if plans else {}
        say(json_text(whole))
    elif style == "markdown":
        say(markdown(settings, planned) or "No setting differs.")
    else:
        for head, some in (("SETTING", settings), ("PLAN", planned)):
            if some:
                table([(head, before, after, ""), *map(row, some)])
                say()
        if not settings:
            say("No setting differs.")
        if len(settings) > 1:
            count = f"{len(settings)} settings differ"
        else:
            count = "One setting differs"
        end(
            f"{count if settings else 'No setting differs'} between {before} and {after}.",
            "plan",
            new.file,
        )
