"""Scenario last-layers: supervised fine-tuning of the last transformer layers on questions and answers."""

from __future__ import annotations

from typing import Any

from runner.catalog import Model
from runner.plan import Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl, conversations


def translate(recipe: Recipe, place: Place) -> Plan:
    def config(place: Place) -> dict[str, Any]:
        patterns = unfrozen_parameters(recipe.facts, recipe.train.last_layers, recipe.train.lm_head)
        return {
            **axolotl.model(recipe, place),
            "unfrozen_parameters": patterns,
            **axolotl.fused(recipe, place),
            **conversations.settings(recipe, place),
            **axolotl.packing(recipe, place, recipe.train),
            **axolotl.training(recipe, place),
        }

    return axolotl.plan(recipe, place, config, lambda place: conversations.questions_and_answers(recipe, place))


def unfrozen_parameters(model: Model, last_layers: int, lm_head: bool) -> list[str]:
    """Patterns, as Axolotl's `unfrozen_parameters` reads them, for the last layers and the LM head.

    A tied LM head has no parameter of its own: its weight is the embedding's, and unfreezing `lm_head` by name would
    unfreeze nothing.
    """
    first = model.num_hidden_layers - last_layers
    patterns = [f"^{model.layers_path}.{layer}." for layer in range(first, model.num_hidden_layers)]
    if lm_head:
        patterns.append(f"^{model.embedding if model.tied else model.lm_head}$")
    return patterns
