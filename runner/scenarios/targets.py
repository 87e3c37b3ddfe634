"""Targets: the places where a recipe can run, and its folders there. Targets belong to parts."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from runner import parts
from runner.plan import RUNS, Place
from runner.recipe.recipe import Recipe

if TYPE_CHECKING:
    from runner.scenarios.contract import Target

# All targets of `recipe render`.
NAMES = tuple(parts.table("targets"))


def target(name: str) -> Target:
    return cast("Target", import_module(parts.table("targets")[name]))


def place(recipe: Recipe, name: str | None = None) -> Place:
    """The folders of a recipe's machines on a target, by default the first that the recipe has a section for, or this
    machine. Without a name, data files are beside the recipe. Raises Stop if the recipe lacks the target's section."""
    if name and hasattr(target(name), "place"):
        return target(name).place(recipe)
    for first in map(target, NAMES):  # imported one by one, because the first is usually enough
        if hasattr(first, "place") and first.named(recipe):
            there = first.place(recipe)
            return there if name else replace(there, files_dir=None)
    folder = os.path.abspath(f"{RUNS}/{recipe.name}")
    return Place(f"{folder}/config", f"{folder}/data", folder, f"{folder}/scratch")


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    return tuple(name for name in NAMES if target(name).named(recipe))
