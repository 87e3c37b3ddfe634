"""Seen: the first rows as the model will see them, long before anything is prepared."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.data import PREPARERS
from runner.tools.problem import Stop

# Of a document, what a model is given to go on from: so many words.
BEGINNING = 8
# Bytes of files that are not prepared only to see what would be asked; and of their rows so many are read.
LARGE, AMONG = 100_000_000, 50


@dataclass(frozen=True)
class Seen:
    """A row: what is asked in it, or how its text begins; and all of it, with the marks around each message. picture: of a row
    that is one, as PNG; its text then says what it shows."""

    asked: str
    text: str
    picture: bytes = b""

    @classmethod
    def of_document(cls, text: str) -> Seen:
        return cls(" ".join(text.split()[:BEGINNING]), text)


def first(data: Mapping[str, Any], most: int) -> list[Seen]:
    """The first rows of a stage's `data` that give something to learn; none of a kind whose rows are no text.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in PREPARERS:
        return []
    settings = _settings(data)
    return list(islice(importlib.import_module(PREPARERS[data["kind"]]).first(settings), most))


def held_out(data: Mapping[str, Any]) -> list[str]:
    """What the rows ask that the preparation would keep for validation, or how such documents begin; of a large file what its first
    rows ask.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in PREPARERS:
        return []
    settings = _settings(data)
    files = [one.file for one in settings.sets if one.file]
    if sum(file.stat().st_size for file in files if file.is_file()) <= LARGE:
        # Too few rows, or too many bad ones, are said where they are prepared.
        with suppress(Stop):
            if data["kind"] == "plain-text":
                from runner.data import plain_text

                return [seen.asked for seen in plain_text.first(settings, "validation")]
            return _prepared(settings)
    return [seen.asked for seen in first(data, AMONG)]


def _prepared(settings: Any) -> list[str]:
    """The questions of the validation side, made in a folder that goes away again. A sample of all rows leaves out what is only
    looked for in reports."""
    from pyarrow import parquet

    module = importlib.import_module(PREPARERS[settings.kind])
    with TemporaryDirectory() as folder:
        module.prepare(settings, Path(folder), sample_rows=sys.maxsize)
        table = parquet.read_table(Path(folder) / "validation.parquet", columns=["full-question"])
    return [str(question) for question in table["full-question"].to_pylist()]


def _settings(data: Mapping[str, Any]) -> Any:
    from pydantic import TypeAdapter

    from runner.data.chat import Chat
    from runner.data.lyrics import Lyrics
    from runner.data.plain_text import PlainText

    kinds: dict[str, type] = {"chat": Chat, "lyrics": Lyrics, "plain-text": PlainText}
    return TypeAdapter(kinds[data["kind"]]).validate_python(data)
