"""Scenarios: what each technique makes of a recipe. A scenario is one module with `translate(recipe, place) -> Plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner.plan import Place, Plan
from runner.recipe.changes import Change
from runner.recipe.recipe import Recipe
from runner.scenarios import causal_lm, image_classification, last_layers

# A new scenario costs one line here.
SCENARIOS = {
    "causal-lm": causal_lm.translate,
    "image-classification": image_classification.translate,
    "last-layers": last_layers.translate,
}

# What a scenario puts in place of its own settings in a rehearsal, beyond what all of them do; a line where it needs some.
REHEARSALS: dict[str, Callable[[Recipe, str], Iterator[Change]]] = {
    "causal-lm": causal_lm.rehearsal,
}


def translate(recipe: Recipe, place: Place) -> Plan:
    """The Plan of a recipe at a place; pure. Raises Stop where `advanced` contradicts the recipe."""
    return SCENARIOS[recipe.scenario](recipe, place)
