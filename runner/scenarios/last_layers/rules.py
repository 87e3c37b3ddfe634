"""Rules for layers: something is trained, and no more than there is."""

from collections.abc import Iterator

from runner.recipe.recipe import Recipe
from runner.scenarios.shared import cadence, gates
from runner.tools.problem import Problem


def trained_layers(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.model_facts:
        return
    layers, asked = recipe.model_facts.num_hidden_layers, recipe.train.last_layers
    if asked > layers:
        message = f"`last_layers` is {asked}, and `{recipe.model.base}` has {layers} layers."
        hint = f"Write at most {layers}."
        yield recipe.problem("train.last_layers", message, hint)
    if asked == 0 and not recipe.train.lm_head:
        message = "Nothing is trained: `last_layers` is 0 and `lm_head` is false."
        hint = "Raise `last_layers`, or set `lm_head: true`."
        yield recipe.problem("train.last_layers", message, hint)


RULES = (
    trained_layers,
    cadence.rule(),
    gates.rule(lambda recipe: gates.producible("chat", recipe.evaluation.tasks or ())),
)
