"""Emit: everything that a recipe becomes on paper, for each place where it is to run."""

from __future__ import annotations

from runner import targets
from runner.plan import Artifact
from runner.recipe.recipe import Recipe
from runner.scenarios import translate


def emit(recipe: Recipe, wanted: tuple[str, ...] = ()) -> list[Artifact]:
    """The files of the wanted targets, or of all that the recipe names. Pure: the same recipe gives the same bytes.

    What is for plain machines names other folders than what is for the cluster, and lies in a folder of its own.
    Raises Stop where the recipe lacks a target's section.
    """
    wanted = wanted or targets.named(recipe)
    groups = [tuple(name for name in wanted if name != "nodes"), tuple(name for name in wanted if name == "nodes")]
    return [
        artifact
        for group in groups
        if group
        for artifact in targets.render(translate(recipe, targets.place(recipe, group[0])), group)
    ]
