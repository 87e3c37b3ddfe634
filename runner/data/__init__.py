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

# Who prepares the kinds of data that several scenarios may name; a scenario's own are in its folder.
PREPARERS = {
    "chat": "runner.data.chat",
    "lyrics": "runner.data.chat",
    "plain-text": "runner.data.blocks",
    "preferences": "runner.data.preferences",
}
# Of a document, what a model is given to continue from: so many words.
BEGINNING = 8
# Bytes of files that are not prepared only to see what would be asked; and of their rows so many are read.
LARGE, AMONG = 100_000_000, 50

Made = TypeVar("Made")


@dataclass(frozen=True)
class RenderedExample:
    """A row: what is asked in it, or how its text begins; and all of it, with the marks around each message. picture:
    of a row that is one, as PNG; its text then says what it shows."""

    asked: str
    text: str
    picture: bytes = b""

    @classmethod
    def of_document(cls, text: str) -> RenderedExample:
        return cls(" ".join(text.split()[:BEGINNING]), text)


def reading(function: Callable[..., Made]) -> Callable[..., Made]:
    """A function of a dataclass as one of its JSON form, which is what plans carry."""
    from pydantic import validate_call

    reads: Callable[..., Made] = validate_call(function)
    return reads


def first(data: Mapping[str, Any], most: int) -> list[RenderedExample]:
    """The first rows of a stage's `data` that give something to learn; none of a kind whose rows are no text.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in PREPARERS:
        return []
    return list(islice(reading(importlib.import_module(PREPARERS[data["kind"]]).first)(data), most))


def held_out(data: Mapping[str, Any]) -> list[str]:
    """What the rows ask that the preparation would keep for validation, or how such documents begin; of a large file
    what its first rows ask.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in PREPARERS:
        return []
    files = [Path(one["path"]) for one in data["sets"] if one["path"]]
    if sum(file.stat().st_size for file in files if file.is_file()) <= LARGE:
        preparer = importlib.import_module(PREPARERS[data["kind"]])
        # Too few rows, or too many bad ones, are said where they are prepared.
        with suppress(Stop):
            if data["kind"] == "plain-text":
                return [example.asked for example in reading(preparer.first)(data, "validation")]
            from pyarrow import parquet

            with TemporaryDirectory() as folder:
                # A sample of all rows leaves out what is only looked for in reports.
                reading(preparer.prepare)(data, Path(folder), sample_rows=sys.maxsize)
                asked = parquet.read_table(Path(folder) / "validation.parquet", columns=["full-question"])
            return [str(question) for question in asked["full-question"].to_pylist()]
    return [example.asked for example in first(data, AMONG)]


def general_documents() -> list[str]:
    return [part.strip() for part in GENERAL_TEXT.read_text(encoding="utf-8").split("\n%%\n")]
