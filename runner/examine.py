"""Examine: a recipe file, judged as far as anything can be judged before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.plan import Plan
from runner.problem import Problem, Stop
from runner.recipe import changes as changing
from runner.recipe import reading
from runner.recipe.changes import Change
from runner.recipe.check import judge
from runner.recipe.recipe import Recipe


def examine(file: Path | str, changes: Iterable[Change] = ()) -> list[Problem]:
    """Every Problem with the recipe in a file, notes included; translating it, too, must find nothing wrong."""
    try:
        document, _ = changing.apply(reading.read(file), changes)
    except Stop as stop:
        return stop.problems or [Problem(str(file), 0, 0, stop.text)]
    recipe, problems = judge(document)
    if recipe is None or any(problem.severity == "error" for problem in problems):
        return problems
    # Only a recipe without errors needs what follows.
    from runner.scenarios import translate
    from runner.targets import place

    try:
        plan = translate(recipe, place(recipe))
    except Stop as stop:
        return problems + stop.problems
    return problems + _foreseen(recipe, plan)


def _foreseen(recipe: Recipe, plan: Plan) -> list[Problem]:
    """Notes, in the figures of `recipe plan`: stages that do not fit their GPU, claims and pods that are too small, a
    learning rate that never stops rising. No data file is opened for them."""
    from runner.estimate import forecast, storage

    try:
        forecasts = forecast.of(recipe, plan, look=False)
        found = [forecast.too_large(recipe, stage, severity="note") for stage in forecasts]
    except KeyError:
        return []  # an architecture without formulas; `plan` says so
    found += storage.problems(recipe.document, plan, forecasts, severity="note")
    return [problem for problem in (*found, *forecast.notes(recipe, forecasts)) if problem]
