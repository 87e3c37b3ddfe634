"""Scenario lora: a low-rank adapter beside a frozen model (Hu et al. 2021, arXiv 2106.09685), on songs or on
questions and answers. qlora keeps the frozen model in 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""

from __future__ import annotations

from typing import Any

from runner.plan import Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl, conversations

KERNELS = ("lora_qkv_kernel", "lora_o_kernel", "lora_mlp_kernel", "lora_embedding_kernel")


def translate(recipe: Recipe, place: Place) -> Plan:
    config = {
        **axolotl.model(recipe),
        **adapter(recipe, place),
        **axolotl.cross_entropy(recipe),
        **conversations.settings(recipe, place),
        **axolotl.training(recipe, place),
    }
    data = songs(recipe) if recipe.data.songs else conversations.questions_and_answers(recipe)
    return axolotl.plan(recipe, place, config, data=data)


def adapter(recipe: Recipe, place: Place) -> dict[str, Any]:
    """The adapter: its size, and the linear layers that get one, by the names that this model has for them."""
    train, facts = recipe.train, recipe.model_facts
    # Axolotl switches its fused kernels on by itself. They run on a GPU alone, and stop the run where query, key and
    # value are one layer, or where the model runs its own code.
    fused = place.accelerator and facts.fused_lora and not recipe.model.trust_remote_code
    return {
        "adapter": train.adapter,
        **({"load_in_4bit": True} if train.adapter == "qlora" else {}),
        "lora_r": train.lora_rank,
        "lora_alpha": train.lora_alpha,
        "lora_dropout": train.lora_dropout,
        "lora_target_modules": list(train.lora_layers or facts.linear),
        **dict.fromkeys(KERNELS, fused),
    }


def songs(recipe: Recipe) -> dict[str, Any]:
    """What `runner.execute.data.lyrics` must prepare."""
    return conversations.data_source(recipe) | {"kind": "lyrics", "stream": True, "songs": recipe.data.songs.plain()}
