"""Conversations: what scenarios that train on them say to Axolotl, and what they have prepared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner import catalog
from runner.catalog import ChatTemplate
from runner.data import conversation_formats
from runner.data.chat import Chat, ChatSet
from runner.data.conversation_formats import OWN, TRAINING, TrainOn
from runner.data.tokenizers import jinja
from runner.plan import Place
from runner.recipe.recipe import Recipe, Settings
from runner.scenarios.shared import common

if TYPE_CHECKING:
    from runner.recipe.sections import Data, LoraData, SftData


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


def dataset(folder: str, split: str, train_on: TrainOn) -> dict[str, Any]:
    """One file of prepared conversations, trained on the words of some turns and their end-of-turn tokens alone: the
    assistant's, of these the last, which prepared rows mark, or all."""
    return {
        "path": f"{folder}/{split}.parquet",
        "ds_type": "parquet",
        "split": "train",
        "type": "chat_template",
        "field_messages": "messages",
        "roles_to_train": sorted(set(conversation_formats.ROLES.values())) if train_on == "all" else ["assistant"],
        **({"message_field_training": TRAINING} if train_on == "last" else {}),
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
    config: dict[str, Any] = {"chat_template": known.axolotl if known and not _own(recipe) else OWN}
    if known and config["chat_template"] == "jinja":
        config["chat_template_jinja"] = jinja(known)
    if known and known.end != facts.eos_token:
        # Axolotl looks for end-of-text at the end of a turn, and would leave this one untrained: answers without end.
        config["eot_tokens"] = [known.end]
    if facts.pad_token:
        config["special_tokens"] = {"pad_token": facts.pad_token}
    return config | {
        "datasets": [dataset(place.data_dir, "train", recipe.data.train_on)],
        "test_datasets": [dataset(place.data_dir, "validation", recipe.data.train_on)],
        "val_set_size": 0,
        "dataset_prepared_path": place.tokenised_dir,
    }


def _own(recipe: Recipe) -> bool:
    return bool(recipe.data.chat_template == OWN)


def counted_tokens(recipe: Recipe) -> ChatTemplate:
    """The special tokens of each message for counting; ChatML's stand in where only the model's tokenizer knows its own."""
    known = special_tokens(recipe) or catalog.chat_template("chatml")
    return replace(known, axolotl=OWN) if _own(recipe) or not special_tokens(recipe) else known


def questions_and_answers(recipe: Recipe, place: Place) -> Chat:
    plain = chat(recipe, place, recipe.data, recipe.model.sequence_len)
    return replace(plain, special_tokens=counted_tokens(recipe), tokenizer=common.tokenizer(recipe, place))


def chat(recipe: Recipe, place: Place, data: Data | SftData | LoraData, sequence_len: int) -> Chat:
    """Conversations in ChatML, of which a section of the recipe says where they come from."""

    def asked(one: Settings) -> dict[str, Any]:
        question, answer = one.get("question"), one.get("answer")
        return {
            "form": conversation_formats.stated(one["form"], question, answer),
            "question": question,
            "answer": answer,
        }

    return Chat(
        sets=tuple(ChatSet(**source, **asked(one)) for source, one in common.data_sets(recipe, place, data)),
        system_prompt=data.system_prompt,
        train_on=common.given(data.train_on),
        special_tokens=catalog.chat_template("chatml"),
        validation_share=common.given(data.validation_share),
        max_lost_share=data.max_lost_share,
        seed=data.seed,
        sequence_len=sequence_len,
    )
