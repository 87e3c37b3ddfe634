"""Words that an answer can only have from the training rows, because nothing else that the model reads has them."""

import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

# The project's own general text: every model is measured on it, and a twin first learns from it.
GENERAL_TEXT = Path(__file__).with_name("general_text.txt")
# An apostrophe inside a word is part of it.
_WORD = re.compile(r"(\w+(?:['’]\w+)*)")


def words(text: str) -> list[str]:
    """The words of a text in small letters."""
    return _WORD.findall(text.casefold())


@cache
def _general() -> frozenset[str]:
    return frozenset(words(GENERAL_TEXT.read_text("utf-8")))


def learned(after: str, before: str, question: str, taught: Collection[str]) -> list[str]:
    """The words of an answer that only the training rows can have taught: not those of the answer before training, of
    the question, and of general text. taught: the words of the rows' answers."""
    elsewhere = {*words(before), *words(question), *_general()}
    return [word for word in dict.fromkeys(words(after)) if word in taught and word not in elsewhere]


def pieces(text: str, own: Collection[str]) -> Iterator[tuple[str, bool]]:
    """A text in pieces, and whether each is one of these words."""
    return ((piece, piece.casefold() in own) for piece in _WORD.split(text) if piece)
