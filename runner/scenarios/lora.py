"""Scenario lora: a low-rank adapter beside a frozen model (Hu et al. 2021, arXiv 2106.09685), on songs or on
questions and answers. qlora keeps the frozen model in 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""

from __future__ import annotations

from typing import Any

from runner.plan import Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl, conversations


def translate(recipe: Recipe, place: Place) -> Plan:
    config = {
        **axolotl.model(recipe),
        **adapter(recipe, place),
        **axolotl.cross_entropy(recipe),
        **conversations.settings(recipe, place),
        **axolotl.training(recipe, place),
    }
    data = songs(recipe, place) if recipe.data.songs else conversations.questions_and_answers(recipe, place)
    return axolotl.plan(recipe, place, config, data=data)


def adapter(recipe: Recipe, place: Place) -> dict[str, Any]:
    """The adapter: its size, and the linear layers that get one, by the names that this model has for them."""
    train, facts = recipe.train, recipe.model_facts
    return {
        "adapter": train.adapter,
        **({"load_in_4bit": True} if train.adapter == "qlora" else {}),
        "lora_r": train.lora_rank,
        "lora_alpha": train.lora_alpha,
        "lora_dropout": train.lora_dropout,
        "lora_target_modules": list(train.lora_layers or facts.linear),
        **axolotl.lora_kernels(recipe, place),
    }


def songs(recipe: Recipe, place: Place) -> dict[str, Any]:
    """What `runner.execute.data.lyrics` must prepare."""
    return conversations.data_source(recipe, place) | {
        "kind": "lyrics",
        "stream": True,
        "songs": recipe.data.songs.plain(),
    }
