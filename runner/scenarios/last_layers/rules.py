"""Rules for layers: something is trained, and no more than there is."""

from __future__ import annotations

from collections.abc import Iterator

from runner.recipe.recipe import Recipe
from runner.scenarios.shared import cadence, gates
from runner.tools.problem import Problem


def trained_layers(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.model_facts:
        return
    layers, asked = recipe.model_facts.num_hidden_layers, recipe.train.last_layers
    if asked > layers:
        yield recipe.document.problem(
            ("train", "last_layers"),
            f"`last_layers` is {asked}, and `{recipe.model.base}` has {layers} layers.",
            f"Write at most {layers}.",
        )
    if asked == 0 and not recipe.train.lm_head:
        yield recipe.document.problem(
            ("train", "last_layers"),
            "Nothing is trained: `last_layers` is 0 and `lm_head` is false.",
            "Raise `last_layers`, or set `lm_head: true`.",
        )


RULES = (
    trained_layers,
    cadence.rule(),
    gates.rule(lambda recipe: gates.producible("chat", recipe.evaluation.tasks or ())),
)
