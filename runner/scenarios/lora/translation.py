"""Scenario lora: a low-rank adapter beside a frozen model (Hu et al. 2021, arXiv 2106.09685), on songs or on
questions and answers. qlora keeps the frozen model in 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner import catalog
from runner.catalog import Model
from runner.data.conversation_formats import CLASSES, Lyrics, Songs
from runner.data.data_sets import DataSet, DataSets
from runner.plan import EngineConfig, Place, Plan
from runner.recipe import templates
from runner.recipe.recipe import Recipe
from runner.scenarios.contract import Measurable
from runner.scenarios.shared import axolotl, common
from runner.tools.names import listed, setting
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import DataSongs

# What the form of a song's instruction names.
PARTS = ("artist", "genre")


def translate(recipe: Recipe, place: Place) -> Plan:
    def config(place: Place) -> EngineConfig:
        return axolotl.on_conversations(recipe, place, adapter(recipe, place))

    def data(place: Place) -> DataSets:
        songs = recipe.data.songs
        return _lyrics(recipe, place, songs) if songs else axolotl.questions_and_answers(recipe, place)

    return axolotl.plan(recipe, place, config, data, measurable(recipe)[""])


def measurable(recipe: Recipe) -> dict[str, Measurable]:
    tasks = recipe.data.songs.tasks if recipe.data.songs else {}
    # Questions about songs with a class or a name for an answer, each kind with the words that it begins with.
    asked = {name: words for name, (task, words) in CLASSES.items() if tasks.get(task)}
    return {"": Measurable("chat", asked)}


def adapter(recipe: Recipe, place: Place) -> EngineConfig:
    """The adapter: its size, and the linear layers that get one, by the names that this model has for them."""
    train, facts = recipe.train, recipe.facts
    # What fits none of a known model's layers is a name of another one's.
    named = (name for one in train.lora_layers or facts.linear for name in list(fitting(facts, one)) or [one])
    return {
        **({"load_in_4bit": True} if train.adapter == "qlora" else {}),
        "lora_target_modules": list(dict.fromkeys(named)),
        **axolotl.lora_kernels(recipe, place),
    }


def fitting(facts: Model, asked: str) -> dict[str, int]:
    """The linear layers that a name or pattern means, as peft reads one against a layer's path, with how many of the
    model's layers have it so. Raises re.error for a broken pattern."""
    pattern = re.compile(rf"(?:.*\.)?(?:{asked})")
    found = {
        name: sum(bool(pattern.fullmatch(facts.linear_path(layer, name))) for layer in range(facts.num_hidden_layers))
        for name in facts.linear
    }
    return {name: times for name, times in found.items() if times}


def _lyrics(recipe: Recipe, place: Place, songs: DataSongs) -> Lyrics:
    return common.made(
        Lyrics,
        recipe.data,
        sets=common.data_sets(recipe, place, recipe.data, DataSet),
        songs=Songs(**songs.plain()),
        special_tokens=axolotl.counted_tokens(recipe),
        sequence_len=recipe.model.sequence_len,
        tokenizer=common.tokenizer(recipe, place),
    )


def layers(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts
    # Of an architecture that nobody has looked at, only its trace knows the layers.
    if not facts or facts.model_type not in catalog.model_types():
        return
    for index, name in enumerate(recipe.train.lora_layers or ()):
        try:
            found = fitting(facts, name)
        except re.error as error:
            message = f"`{name}` is not a regular expression: {error.msg}."
            hint = "Write names of layers, or fix the pattern."
        else:
            some = min(found.values(), default=0) % facts.num_hidden_layers
            if found and not some:
                continue
            message = f"`{recipe.model.base}` has no linear layer `{name}`."
            hint = (
                f"Its linear layers are {listed(facts.linear)}. Delete `lora_layers` to give each of them an adapter."
            )
            if some:
                message = (
                    f"`{name}` fits {some} of the model's {facts.num_hidden_layers} layers, and an adapter is in all."
                )
                hint = f"Write {listed(found)}, and the layers' numbers as `advanced.axolotl.peft_layers_to_transform`."
        yield recipe.problem(("train", "lora_layers", index), message, hint)


def one_kind(recipe: Recipe) -> Iterator[Problem]:
    """Data is songs or conversations, by whether the recipe names songs."""
    if recipe.data.get("songs") is None:
        return
    for home, data in recipe.data_sets():
        there = [name for name in ("question", "answer") if data.get(name) is not None]
        there += ["form"] if data.get("form") != "auto" else []
        if not there:
            continue
        message = f"`{setting(home)}` names `songs` and also {listed(there)}; a row can be a song or a conversation, not both."
        yield recipe.problem((*home, there[0]), message, "Keep one of the two.", key=True)


def songs(recipe: Recipe) -> Iterator[Problem]:
    chosen = recipe.data.songs
    if not chosen:
        return
    if not sum(chosen.tasks.values()):
        message = "No task has a share, so nothing would be asked."
        hint = f"Give at least one of {listed(chosen.tasks)} a share above 0."
        yield recipe.problem("data.songs.tasks", message, hint, key=True)
    named = templates.columns(chosen.instruction_form)
    if sorted(named) != sorted(PARTS) or templates.unclosed(chosen.instruction_form) is not None:
        message = (
            "The form of the instruction must name `[artist]` and `[genre]`, each once, and nothing else in brackets."
        )
        hint = "For example: Generate a song verse in the style of [artist] in the genre of [genre]."
        yield recipe.problem("data.songs.instruction_form", message, hint)
    if chosen.min_words > chosen.max_words:
        message = (
            f"The shortest song has {chosen.min_words} words, and the longest {chosen.max_words}: none would be left."
        )
        hint = "Lower `min_words`, or raise `max_words`."
        yield recipe.problem("data.songs.min_words", message, hint)


RULES = (layers, one_kind, songs, common.cadence_rule())
