"""Rows to Parquet: a kind of data is one module, with a frozen dataclass of its settings, `prepare`, which takes it,
and `first`, which shows rows as the model will see them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from runner.tools.own_words import GENERAL_TEXT
from runner.tools.problem import Stop

# The preparers of the kinds of data that several scenarios may have; a scenario's own are in its folder.
PREPARERS = {
    "chat": "runner.data.chat",
    "lyrics": "runner.data.chat",
    "plain-text": "runner.data.blocks",
    "preferences": "runner.data.chat",
}
# The number of words of a document that a model gets to continue.
BEGINNING = 8
# From this size on, files are not prepared only to find demo questions; this many of their rows are read instead.
LARGE, AMONG = 100_000_000, 50

Made = TypeVar("Made")


@dataclass(frozen=True)
class RenderedExample:
    """A row: its question or the beginning of its text, and the complete row with the marks around each message.
    picture: the row's image, as PNG; its text is then the class."""

    asked: str
    text: str
    picture: bytes = b""

    @classmethod
    def of_document(cls, text: str) -> RenderedExample:
        return cls(" ".join(text.split()[:BEGINNING]), text)


def reading(function: Callable[..., Made]) -> Callable[..., Made]:
    """A function of a dataclass as one of its JSON form, which plans contain."""
    from pydantic import validate_call

    reads: Callable[..., Made] = validate_call(function)
    return reads


def first(data: Mapping[str, Any], most: int) -> list[RenderedExample]:
    """The first rows of a stage's `data` that are learned; none if the rows are no text. Raises Stop if they cannot be
    read."""
    if data.get("kind") not in PREPARERS:
        return []
    return list(islice(reading(importlib.import_module(PREPARERS[data["kind"]]).first)(data), most))


def held_out(data: Mapping[str, Any]) -> list[str]:
    """The questions of the rows that preparation would hold out, or the beginnings of such documents; those of the
    first rows if the file is large. Raises Stop if the rows cannot be read."""
    if data.get("kind") not in PREPARERS:
        return []
    files = [Path(one["path"]) for one in data["sets"] if one["path"]]
    if sum(file.stat().st_size for file in files if file.is_file()) <= LARGE:
        preparer = importlib.import_module(PREPARERS[data["kind"]])
        # Too few rows, or too many bad ones, are reported when they are prepared.
        with suppress(Stop):
            if data["kind"] == "plain-text":
                return [example.asked for example in reading(preparer.first)(data, "validation")]
            from pyarrow import parquet

            with TemporaryDirectory() as folder:
                # A sample of all rows leaves out checks that only reports need.
                reading(preparer.prepare)(data, Path(folder), sample_rows=sys.maxsize)
                asked = parquet.read_table(Path(folder) / "validation.parquet", columns=["full-question"])
            return [str(question) for question in asked["full-question"].to_pylist()]
    return [example.asked for example in first(data, AMONG)]


def general_documents() -> list[str]:
    return [part.strip() for part in GENERAL_TEXT.read_text(encoding="utf-8").split("\n%%\n")]
