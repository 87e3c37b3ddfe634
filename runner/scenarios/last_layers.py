"""Scenario last-layers: supervised fine-tuning of the last transformer layers on questions and answers."""

from __future__ import annotations

from runner.catalog import Model
from runner.plan import Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl


def translate(recipe: Recipe, place: Place) -> Plan:
    config = {
        **axolotl.model(recipe),
        "unfrozen_parameters": unfrozen_parameters(recipe.model_facts, recipe.train.last_layers, recipe.train.lm_head),
        **axolotl.conversations(recipe, place),
        **axolotl.training(recipe, place),
    }
    return axolotl.plan(recipe, place, config, data=questions_and_answers(recipe))


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


def questions_and_answers(recipe: Recipe) -> dict:
    """What `runner.execute.data.chat` must prepare."""
    data = recipe.data
    return {
        "kind": "chat",
        "hub": data.hub,
        "revision": data.revision,
        "subset": data.subset,
        "split": data.split,
        "path": str(recipe.folder / data.path) if data.path else None,
        "question": data.question,
        "answer": data.answer,
        "system_prompt": data.system_prompt,
        "validation_share": data.validation_share,
        "seed": data.seed,
        "sequence_len": recipe.model.sequence_len,
    }
