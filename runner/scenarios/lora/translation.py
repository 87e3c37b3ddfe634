"""Scenario lora: a low-rank adapter beside a frozen model (Hu et al. 2021, arXiv 2106.09685), on songs or on
questions and answers. qlora keeps the frozen model in 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.data.conversation_formats import CLASSES, Lyrics, Songs
from runner.data.data_sets import DataSet, DataSets
from runner.plan import EngineConfig, Place, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl, common

if TYPE_CHECKING:
    from runner.recipe.sections import DataSongs


def translate(recipe: Recipe, place: Place) -> Plan:
    def config(place: Place) -> EngineConfig:
        return axolotl.on_conversations(recipe, place, adapter(recipe, place))

    def data(place: Place) -> DataSets:
        songs = recipe.data.songs
        return lyrics(recipe, place, songs) if songs else axolotl.questions_and_answers(recipe, place)

    return axolotl.plan(recipe, place, config, data, asked=asked(recipe))


def asked(recipe: Recipe) -> dict[str, str]:
    """The kinds of questions about songs that have a class or a name for an answer, each with the words that it begins with."""
    tasks = recipe.data.songs.tasks if recipe.data.songs else {}
    return {name: words for name, (task, words) in CLASSES.items() if tasks.get(task)}


def adapter(recipe: Recipe, place: Place) -> EngineConfig:
    """The adapter: its size, and the linear layers that get one, by the names that this model has for them."""
    train, facts = recipe.train, recipe.facts
    return {
        **({"load_in_4bit": True} if train.adapter == "qlora" else {}),
        "lora_target_modules": list(train.lora_layers or facts.linear),
        **axolotl.lora_kernels(recipe, place),
    }


def lyrics(recipe: Recipe, place: Place, songs: DataSongs) -> Lyrics:
    return common.made(
        Lyrics,
        recipe.data,
        sets=common.data_sets(recipe, place, recipe.data, DataSet),
        songs=Songs(**songs.plain()),
        special_tokens=axolotl.counted_tokens(recipe),
        sequence_len=recipe.model.sequence_len,
        tokenizer=common.tokenizer(recipe, place),
    )
