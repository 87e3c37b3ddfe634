"""Seen: the first rows as the model will see them, long before anything is prepared."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from runner.data import PREPARERS, rows
from runner.problem import Stop
from runner.recipe.templates import NoText

if TYPE_CHECKING:
    from runner.data.chat import Chat, Conversation
    from runner.data.lyrics import Lyrics
    from runner.data.plain_text import PlainText

# Of a document, what a model is given to go on from: so many words.
BEGINNING = 8
# Bytes of files that are not prepared only to see what would be asked; and of their rows so many are read.
LARGE, AMONG = 100_000_000, 50


@dataclass(frozen=True)
class Seen:
    """A row: what is asked in it, or how its text begins; and all of it, with the marks around each message."""

    asked: str
    text: str


def first(data: Mapping[str, Any], most: int) -> list[Seen]:
    """The first rows of a stage's `data` that give something to learn; none of a kind whose rows are no text.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in READERS:
        return []
    return list(islice(READERS[data["kind"]](_settings(data)), most))


def held_out(data: Mapping[str, Any]) -> list[str]:
    """What the rows ask that the preparation would keep for validation, or how such documents begin; of a large file what its first
    rows ask.

    Raises Stop where the rows cannot be read at all.
    """
    if data.get("kind") not in READERS:
        return []
    settings = _settings(data)
    files = [one.file for one in settings.sets if one.file]
    if sum(file.stat().st_size for file in files if file.is_file()) <= LARGE:
        # Too few rows, or too many bad ones, are said where they are prepared.
        with suppress(Stop):
            if data["kind"] == "plain-text":
                return [seen.asked for seen in _documents(settings, "validation")]
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


def _conversations(chat: Chat) -> Iterator[Seen]:
    for one in chat.sets:
        told = one.told()
        for _, row in rows.read(told):
            with suppress(NoText, KeyError):
                found = None if isinstance(row, rows.Bad) else told.conversation(chat.special_tokens.axolotl, row)
                if found and not isinstance(found, str):
                    yield _seen(chat, found)


def _songs(lyrics: Lyrics) -> Iterator[Seen]:
    from runner.data.lyrics import tasks

    for task in tasks(lyrics):
        yield _seen(lyrics, task)


def _seen(source: Chat | Lyrics, conversation: Conversation) -> Seen:
    from runner.data.chat import rendered

    return Seen(conversation.question, rendered(source.special_tokens, source.told(conversation)))


def _documents(source: PlainText, side: str = "train") -> Iterator[Seen]:
    from runner.data.plain_text import TextReport, documents

    for text in documents(source, side, TextReport()):
        yield Seen(" ".join(text.split()[:BEGINNING]), text)


READERS: dict[str, Callable[[Any], Iterator[Seen]]] = {
    "chat": _conversations,
    "lyrics": _songs,
    "plain-text": _documents,
}
