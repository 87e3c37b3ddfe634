"""Examine: a recipe file, judged as far as anything can be judged before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.problem import Problem, Stop
from runner.recipe import changes as changing
from runner.recipe import reading
from runner.recipe.changes import Change
from runner.recipe.check import judge
from runner.scenarios import translate
from runner.targets import place


def examine(file: Path | str, changes: Iterable[Change] = ()) -> list[Problem]:
    """Every Problem with the recipe in a file, notes included; translating it, too, must find nothing wrong."""
    try:
        document, _ = changing.apply(reading.read(file), changes)
    except Stop as stop:
        return stop.problems or [Problem(str(file), 0, 0, stop.text)]
    recipe, problems = judge(document)
    if recipe is None or any(problem.severity == "error" for problem in problems):
        return problems
    try:
        translate(recipe, place(recipe))
    except Stop as stop:
        problems += stop.problems
    return problems
