"""Scenario last-layers: supervised fine-tuning of the last transformer layers on questions and answers."""

from collections.abc import Iterator

from runner.catalog import Model
from runner.plan import EngineConfig, Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.contract import Measurable
from runner.scenarios.shared import axolotl, common
from runner.tools.problem import Problem


def translate(recipe: Recipe, place: Place) -> Plan:
    def config(place: Place) -> EngineConfig:
        patterns = unfrozen_parameters(recipe.facts, recipe.train.last_layers, recipe.train.lm_head)
        return axolotl.on_conversations(recipe, place, {"unfrozen_parameters": patterns} if patterns else {})

    return axolotl.plan(
        recipe, place, config, lambda place: axolotl.questions_and_answers(recipe, place), measurable(recipe)[""]
    )


def measurable(recipe: Recipe) -> dict[str, Measurable]:
    return {"": Measurable("chat")}


def unfrozen_parameters(model: Model, last_layers: int, lm_head: bool) -> list[str]:
    """Patterns, as Axolotl's `unfrozen_parameters` reads them, for the last layers and the LM head. None for the whole
    model: all layers with the LM head, and then the embedding and the last norm too.

    A tied LM head has no parameter of its own: its weight is the embedding's, and unfreezing `lm_head` by name would
    unfreeze nothing.
    """
    first = model.num_hidden_layers - last_layers
    if first == 0 and lm_head:
        return []
    patterns = [f"^{model.layers_path}.{layer}." for layer in range(first, model.num_hidden_layers)]
    if lm_head:
        patterns.append(f"^{model.embedding if model.tied else model.lm_head}$")
    return patterns


def trained_layers(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.model_facts:
        return
    layers, asked = recipe.model_facts.num_hidden_layers, recipe.train.last_layers
    if asked > layers:
        message = f"`last_layers` is {asked}, and `{recipe.model.base}` has {layers} layers."
        hint = f"Write at most {layers}; with `lm_head: true` that trains every weight of the model."
        yield recipe.problem("train.last_layers", message, hint)
    if asked == 0 and not recipe.train.lm_head:
        message = "Nothing is trained: `last_layers` is 0 and `lm_head` is false."
        hint = "Raise `last_layers`, or set `lm_head: true`."
        yield recipe.problem("train.last_layers", message, hint)


RULES = (trained_layers, common.cadence_rule())
