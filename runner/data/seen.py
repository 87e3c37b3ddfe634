"""Seen: the first rows as the model will see them, long before anything is prepared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from runner.data import rows
from runner.recipe.templates import NoText

if TYPE_CHECKING:
    from runner.data.chat import Chat, Conversation
    from runner.data.lyrics import Lyrics
    from runner.data.plain_text import PlainText

# Of a document, what a model is given to go on from: so many words.
BEGINNING = 8


@dataclass(frozen=True)
class Seen:
    """A row: what is asked in it, or how its text begins; and all of it, with the marks around each message."""

    asked: str
    text: str


def first(data: Mapping[str, Any], most: int) -> list[Seen]:
    """The first rows of a stage's `data` that give something to learn; none of a kind whose rows are no text.

    Raises Stop where the rows cannot be read at all.
    """
    from pydantic import TypeAdapter

    from runner.data.chat import Chat
    from runner.data.lyrics import Lyrics
    from runner.data.plain_text import PlainText

    kinds: dict[str, tuple[type, Any]] = {
        "chat": (Chat, _conversations),
        "lyrics": (Lyrics, _songs),
        "plain-text": (PlainText, _documents),
    }
    if data.get("kind") not in kinds:
        return []
    settings, reader = kinds[data["kind"]]
    return list(islice(reader(TypeAdapter(settings).validate_python(data)), most))


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


def _documents(source: PlainText) -> Iterator[Seen]:
    from runner.data.plain_text import TextReport, documents

    for text in documents(source, "train", TextReport()):
        yield Seen(" ".join(text.split()[:BEGINNING]), text)
