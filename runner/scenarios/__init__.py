"""Scenarios: what each technique makes of a recipe. A scenario is one module with `translate(recipe, place) -> Plan`."""

from __future__ import annotations

from runner.plan import Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import image_classification, last_layers

# A new scenario costs one line here.
SCENARIOS = {
    "image-classification": image_classification.translate,
    "last-layers": last_layers.translate,
}


def translate(recipe: Recipe, place: Place) -> Plan:
    """The Plan of a recipe at a place; pure. Raises Stop where `advanced` contradicts the recipe."""
    return SCENARIOS[recipe.scenario](recipe, place)
