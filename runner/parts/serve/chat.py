"""Chatting with what a stage has left: its models stay in memory, and each question is put to all of them, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.recipe.recipe import Recipe
from runner.run import inference as ask
from runner.run.stage_folder import StageFolder
from runner.trainer.generation import Loaded

# A question and what each side has said to it.
Turn = tuple[str, tuple[str, ...]]


class Sides(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """Of who answers."""
        ...

    @property
    def asked_with(self) -> str:
        """What they are asked, as a person calls it."""
        ...

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        """What each side has said so far, again and again, all of it last. earlier: what was said before. Raises Stop where the
        question cannot be put."""
        ...


@dataclass(frozen=True)
class Models:
    """Two models that answer in words, one after the other, because they share a processor. A model that has learned to answer
    knows its own earlier answers; one that continues a text begins anew each time."""

    both: tuple[Loaded, Loaded]
    names: tuple[str, ...] = ("original", "trained")

    @property
    def asked_with(self) -> str:
        return "a question" if self.both[0].chat.chat else "the beginning of a text"

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        said = ["" for _ in self.both]
        for number, loaded in enumerate(self.both):
            turns = [(asked, answers[number]) for asked, answers in earlier]
            for said[number] in loaded.stream(question, turns):
                yield tuple(said)


@dataclass(frozen=True)
class Pictures:
    """The one model of a recipe for images; what it began with were random weights."""

    classes: Callable[[Path], Mapping[str, float]]
    names: tuple[str, ...] = ("trained",)
    asked_with: str = "the file of a picture"

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        yield (ask.shares(self.classes(Path(question).expanduser())),)


def sides(recipe: Recipe, folder: StageFolder) -> Models | Pictures:
    """Who answers of a stage, loaded. Raises Stop where nobody can."""
    if classes := ask.of_pictures(folder):
        return Pictures(classes)
    return Models(ask.loaded(*ask.models(recipe, folder)))
