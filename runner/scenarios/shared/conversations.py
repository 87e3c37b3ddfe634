"""Conversations: what scenarios that train on them say to Axolotl, and what they have prepared."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runner import catalog
from runner.catalog import ChatTemplate
from runner.plan import Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common


def special_tokens(recipe: Recipe) -> ChatTemplate | None:
    """The special tokens around each message: those that the model was trained to see, unless the recipe says otherwise. None
    where they are in the model's own tokenizer, and nobody has looked."""
    asked = recipe.data.get("chat_template")
    if asked == "chatml":
        return catalog.chat_template("chatml")
    if asked is None:
        return None
    known = recipe.facts.chat_template
    return catalog.chat_template(known) if known else None


def dataset(folder: str, split: str) -> dict[str, Any]:
    """One file of prepared conversations, trained on the assistant's words and its end-of-turn token alone."""
    return {
        "path": f"{folder}/{split}.parquet",
        "ds_type": "parquet",
        "split": "train",
        "type": "chat_template",
        "field_messages": "messages",
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
    }


def preferences(folder: str, split: str) -> dict[str, Any]:
    """One file of prepared preferences: a conversation, a better and a worse answer to it."""
    return {
        "path": f"{folder}/{split}.parquet",
        "ds_type": "parquet",
        "split": "train",
        "type": "chat_template.default",
        "field_messages": "messages",
        "field_chosen": "chosen",
        "field_rejected": "rejected",
    }


def settings(recipe: Recipe, place: Place) -> dict[str, Any]:
    """Prepared conversations, with the special tokens that the model knows."""
    facts, known = recipe.facts, special_tokens(recipe)
    own = recipe.data.chat_template == "tokenizer_default"
    config: dict[str, Any] = {"chat_template": known.axolotl if known and not own else "tokenizer_default"}
    if known and known.end != facts.eos_token:
        # Axolotl looks for end-of-text at the end of a turn, and would leave this one untrained: answers without end.
        config["eot_tokens"] = [known.end]
    if facts.pad_token:
        config["special_tokens"] = {"pad_token": facts.pad_token}
    return config | {
        "datasets": [dataset(place.data_dir, "train")],
        "test_datasets": [dataset(place.data_dir, "validation")],
        "val_set_size": 0,
        "dataset_prepared_path": place.tokenised_dir,
    }


def questions_and_answers(recipe: Recipe, place: Place) -> dict[str, Any]:
    """What `runner.data.chat` must prepare."""
    return data_source(recipe, place) | {"kind": "chat", "question": recipe.data.question, "answer": recipe.data.answer}


def data_source(recipe: Recipe, place: Place) -> dict[str, Any]:
    """Where rows come from, how they are split, and what becomes of conversations, whatever is in them."""
    data = recipe.data
    return {
        **common.source(recipe, place, data),
        "system_prompt": data.system_prompt,
        # Those of each message, for counting tokens; ChatML's stand in where only the model's tokenizer knows its own.
        "special_tokens": asdict(special_tokens(recipe) or catalog.chat_template("chatml")),
        "validation_share": data.validation_share,
        "seed": data.seed,
        "sequence_len": recipe.model.sequence_len,
        "tokenizer": common.tokenizer(recipe, place),
    }
