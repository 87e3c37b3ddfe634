"""Rules for adapters and for what they learn from: songs, or questions and answers."""

from __future__ import annotations

from collections.abc import Iterator

from runner import catalog
from runner.recipe import templates
from runner.recipe.recipe import Recipe
from runner.scenarios.lora.translation import asked
from runner.scenarios.shared import cadence, gates
from runner.tools.names import listed, setting
from runner.tools.problem import Problem

USUAL_SCALE = 4
PARTS = ("artist", "genre")


def layers(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts
    # Of an architecture that nobody has looked at, only its trace knows the layers.
    if not facts or facts.model_type not in catalog.model_types():
        return
    for index, name in enumerate(recipe.train.lora_layers or ()):
        if name not in facts.linear:
            yield recipe.document.problem(
                ("train", "lora_layers", index),
                f"`{recipe.model.base}` has no linear layer `{name}`.",
                f"Its linear layers are {listed(facts.linear)}. Delete `lora_layers` to give each of them an adapter.",
            )


def adapter_scale(recipe: Recipe) -> Iterator[Problem]:
    """An adapter counts alpha / rank times; a rank that was lowered alone makes that large."""
    rank, alpha = recipe.train.lora_rank, recipe.train.lora_alpha
    if alpha > USUAL_SCALE * rank:
        yield recipe.document.problem(
            ("train", "lora_alpha"),
            f"The adapter counts alpha / rank = {alpha / rank:g} times; 1 to 2 is usual, and far more breaks training.",
            f"Write `lora_alpha: {2 * rank}` for a rank of {rank}.",
            severity="note",
        )


def one_kind(recipe: Recipe) -> Iterator[Problem]:
    """Data is songs or conversations, by whether the recipe names songs."""
    if recipe.data.get("songs") is None:
        return
    for home, data in recipe.data_sets():
        there = [name for name in ("question", "answer") if data.get(name) is not None]
        there += ["form"] if data.get("form") != "auto" else []
        if not there:
            continue
        yield recipe.document.problem(
            (*home, there[0]),
            f"`{setting(home)}` names `songs` and also {listed(there)}; a row can be a song or a conversation, not both.",
            "Keep one of the two.",
            key=True,
        )


def songs(recipe: Recipe) -> Iterator[Problem]:
    chosen = recipe.data.songs
    if not chosen:
        return
    if not sum(chosen.tasks.values()):
        yield recipe.document.problem(
            ("data", "songs", "tasks"),
            "No task has a share, so nothing would be asked.",
            f"Give at least one of {listed(chosen.tasks)} a share above 0.",
            key=True,
        )
    named = templates.columns(chosen.instruction_form)
    if sorted(named) != sorted(PARTS) or templates.unclosed(chosen.instruction_form) is not None:
        yield recipe.document.problem(
            ("data", "songs", "instruction_form"),
            "The form of the instruction must name `[artist]` and `[genre]`, each once, and nothing else in brackets.",
            "For example: Generate a song verse in the style of [artist] in the genre of [genre].",
        )
    if chosen.min_words > chosen.max_words:
        yield recipe.document.problem(
            ("data", "songs", "min_words"),
            f"The shortest song has {chosen.min_words} words, and the longest {chosen.max_words}: none would be left.",
            "Lower `min_words`, or raise `max_words`.",
        )


def metrics(recipe: Recipe) -> list[str]:
    """What can be measured of the adapter."""
    return gates.producible("chat", recipe.evaluation.tasks or (), asked=asked(recipe))


RULES = (layers, adapter_scale, one_kind, songs, cadence.rule(), gates.rule(metrics))
