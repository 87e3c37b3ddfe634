"""Prepares rows as Parquet. Each kind of data has a module with a frozen dataclass of settings,
`prepare`, which takes it, and `first`, which shows rows as the model will see them."""

from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from runner.tools.text import GENERAL_TEXT

# The preparers of the kinds of data that several scenarios may have; a scenario's own are in its
# folder.
PREPARERS = {
    "plain-text": "runner.data.blocks",
    "lyrics": "runner.data.song_rows",
    **dict.fromkeys(("chat", "preferences", "labels", "prompts"), "runner.data.chat"),
}
BEGINNING = 8  # the number of words of a document that a model gets to continue

Made = TypeVar("Made")


class RenderedExample(NamedTuple):
    """A row: its question or the beginning of its text, and the complete row with the marks around
    each message. picture: the row's image, as PNG; its text is then the class."""

    asked: str
    text: str
    picture: bytes = b""

    @classmethod
    def of_document(cls, text: str) -> Self:
        return cls(" ".join(text.split()[:BEGINNING]), text)


def reading(function: Callable[..., Made]) -> Callable[..., Made]:
    """A function that takes a dataclass, changed to take its JSON form, which plans contain."""
    from pydantic import validate_call

    reads: Callable[..., Made] = validate_call(function)
    return reads


def general_documents() -> list[str]:
    return [part.strip() for part in GENERAL_TEXT.read_text(encoding="utf-8").split("\n%%\n")]
