"""Scenario last-layers: supervised fine-tuning of the last transformer layers on questions and answers."""

from runner.catalog import Model
from runner.plan import EngineConfig, Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl


def translate(recipe: Recipe, place: Place) -> Plan:
    def config(place: Place) -> EngineConfig:
        patterns = unfrozen_parameters(recipe.facts, recipe.train.last_layers, recipe.train.lm_head)
        return axolotl.on_conversations(recipe, place, {"unfrozen_parameters": patterns})

    return axolotl.plan(recipe, place, config, lambda place: axolotl.questions_and_answers(recipe, place))


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
