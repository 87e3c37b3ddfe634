"""Scenarios: one folder a technique, found by what lies in it. `contract.py` says what a folder brings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from runner import parts
from runner.catalog import Model
from runner.data import PREPARERS, RenderedExample, reading
from runner.plan import Place, Plan, Stage
from runner.recipe.recipe import Recipe, Settings
from runner.scenarios.contract import Architecture, Forecasting, Measurable, Preparer, Rehearsal, Rule, Translation

if TYPE_CHECKING:
    from runner.data.report import Report


@cache
def packages() -> dict[str, str]:
    """Every scenario, those of parts too: its package, by the name that recipes give it, sorted."""
    folders = [file.parent for file in Path(__file__).parent.glob("*/translation.py")]
    ours = {
        folder.name.replace("_", "-"): f"{__name__}.{folder.name}"
        for folder in folders
        if (folder / "schema.yaml").is_file()
    }
    return dict(sorted((ours | parts.table("scenarios")).items()))


def names() -> tuple[str, ...]:
    """Every scenario by the name that recipes give it, sorted."""
    return tuple(packages())


@cache
def part(scenario: str, name: str) -> ModuleType | None:
    """The module `name` of a scenario's folder, imported now; None where the folder has none."""
    module = f"{packages()[scenario]}.{name}"
    return importlib.import_module(module) if find_spec(module) else None


def translate(recipe: Recipe, place: Place) -> Plan:
    """The Plan of a recipe at a place; pure. Raises Stop where `advanced` contradicts the recipe."""
    return cast(Translation, part(recipe.scenario, "translation")).translate(recipe, place)


def measurable(recipe: Recipe) -> Mapping[str, Measurable]:
    """What can be measured of a recipe's stages, by the section that has their gates; empty where the scenario does not say."""
    module = part(recipe.scenario, "translation")
    return cast(Translation, module).measurable(recipe) if hasattr(module, "measurable") else {}


def rules(scenario: str, look: bool = True) -> tuple[Rule, ...]:
    """What a recipe of this scenario must obey beyond what every recipe must. look: whether its files are looked at."""
    module = part(scenario, "rules") or part(scenario, "translation")
    files: tuple[Rule, ...] = getattr(module, "FILE_RULES", ()) if look else ()
    return (*getattr(module, "RULES", ()), *files)


def model_facts(scenario: str, settings: Settings) -> Model | None:
    """The model that a recipe itself describes; None where recipes of this scenario name one. Raises BrokenSetting where the
    schema refuses what it needs."""
    module = part(scenario, "architecture")
    return cast(Architecture, module).model_facts(settings) if module else None


def rehearsal(scenario: str) -> Rehearsal:
    """What a rehearsal puts in place of the real thing, and when it has learned: the scenario's own module, else that of
    language models on rows."""
    return cast(Rehearsal, part(scenario, "rehearsal") or importlib.import_module(f"{__name__}.shared.rehearsal"))


def prepare(data: Mapping[str, Any], out: Path, **options: Any) -> Report:
    """Writes what a stage's `data` asks for into `out`; a no-op where it already lies there."""
    preparers = PREPARERS | parts.table("preparers")
    preparer = cast(Preparer, importlib.import_module(preparers[data["kind"]]))
    return reading(preparer.prepare)(data, out, **options)


def first(stage: Stage) -> dict[str, Iterator[RenderedExample]]:
    """The rows that a stage trains on or prepares, one after the other, as the model is to see each, by what they are for; empty
    where nobody shows them."""
    if stage.data:
        preparers = PREPARERS | parts.table("preparers")
        shown = getattr(importlib.import_module(preparers[stage.data["kind"]]), "first", None)
        return {stage.name: reading(shown)(stage.data)} if shown else {}
    scenario, _, function = stage.config.get("work", "").partition(".")
    # What every scenario may have as work is of none, and its rows are those of the stage that trains.
    shows = getattr(part(scenario, "work"), "FIRST", {}).get(function) if function else None
    return reading(shows)(stage.config) if shows else {}


def work(name: str) -> Callable[[Mapping[str, Any], Callable[[str], None]], None]:
    """The work of a stage that trains nothing, by `SCENARIO.NAME`: a function of the scenario's module `work`, which gets
    the stage's config and a function to tell what it does."""
    scenario, _, function = name.partition(".")
    carry_out: Callable[..., None] = getattr(part(scenario, "work"), function)
    return reading(carry_out)


def forecasting() -> Forecasting | None:
    """What tells a recipe's needs before it runs; None where no part does."""
    return next((cast("Forecasting", module) for module in parts.modules("forecast")), None)
