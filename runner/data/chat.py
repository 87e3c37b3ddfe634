"""Rows become conversations, whatever their form: no duplicates, none too long, a split that leaks no question."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.data import RenderedExample, conversation_formats, data_sets, rows
from runner.data.conversation_formats import OWN, Conversation, Conversations, Form, NoConversation, pair, unwritten
from runner.data.report import Report
from runner.data.tokenizers import TokenizerFor
from runner.recipe import templates
from runner.tools.names import listed
from runner.tools.problem import Stop

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class ChatSet(data_sets.DataSet):
    """Rows in one form. form: None where the rows tell it. question, answer: where they have that of columns, templates with
    the columns in brackets."""

    form: Form | None = "columns"
    question: str | None = None
    answer: str | None = None

    def conversation(self, template: str, row: Mapping[str, Any]) -> Conversation | str:
        """That of a row, or why it has none. template: what Axolotl calls the one that is to write it."""
        assert self.form is not None
        if self.form != "columns":
            if not all(map(row.__contains__, conversation_formats.COLUMNS[self.form])) and (
                other := conversation_formats.told(row)
            ):
                raise NoConversation(f"it has the form {other}, and the others {self.form}")
            tools = row.get("tools")
            conversation = Conversation(
                conversation_formats.turns(self.form, row),
                conversation_formats.as_json(tools, "its `tools` are") if tools else "",
            )
            if template != OWN and (name := unwritten(conversation, "")):
                raise NoConversation(
                    f"it has `{name}`, which the chat template `{template}` does not write; `chat_template: {OWN}` takes the "
                    "model's own"
                )
            return conversation
        question = templates.fill(self.question or "", row).strip()
        answer = templates.fill(self.answer or "", row).strip()
        return Conversation(pair(question, answer)) if question and answer else "the question or the answer is empty"

    def told(self) -> ChatSet:
        """With the form of its first row that has the columns of one. Raises Stop where none has."""
        if self.form:
            return self
        columns: list[str] = []
        for row in rows.good(self):
            if form := conversation_formats.told(row):
                return replace(self, form=form)
            columns = columns or list(row)
        if columns:
            raise Stop(
                f"The rows of {self.name} have the columns of no form that is known; they are {listed(columns)}.",
                conversation_formats.NO_FORM,
            )
        # Whatever the form: there is no row, which whoever reads them counts.
        return replace(self, form="messages")


@dataclass(frozen=True, kw_only=True)
class ChatData(Conversations):
    """Conversations, each data set in a form of its own."""

    kind: Literal["chat"] = "chat"
    sets: tuple[ChatSet, ...]


def prepare(
    chat: ChatData,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `full-question`, `answer`, `messages`) and `report.json`.

    tokenizer_for: where it gives a tokenizer, conversations longer than `sequence_len` tokens are left out.
    sample_rows: keep at most so many pairs, drawn by the seed.
    Raises Stop where too few rows are left to train and validate on.
    """
    from runner.data import items, turns

    def read(place: Path, report: Report) -> tuple[items.Spool, np.ndarray]:
        sets = [one.told() for one in chat.sets]
        said = (
            f"{one.form}{'' if stated.form else ', told from the columns'}"
            for one, stated in zip(sets, chat.sets, strict=True)
        )
        report.form = "; ".join(dict.fromkeys(said))
        codecs = [items.RowCodec(partial(one.conversation, chat.special_tokens.axolotl), turns.batch) for one in sets]
        spooled, kept = items.without_duplicates(chat, codecs, place, report)
        if sample_rows is not None and len(kept) > sample_rows:
            report.sampled_from = len(kept)
            kept = kept[sorted(random.Random(chat.seed).sample(range(len(kept)), sample_rows))]
        return spooled, kept

    return items.prepare(
        chat,
        out,
        read,
        partial(turns.ConversationColumns, chat),
        tokenizer=chat.tokenizer,
        tokenizer_for=tokenizer_for,
        sample_rows=sample_rows,
    )


def first(chat: ChatData) -> Iterator[RenderedExample]:
    """The rows that make a conversation, one after the other."""
    for one in map(ChatSet.told, chat.sets):
        for row in rows.good(one):
            with suppress(NoConversation, templates.NoText):
                conversation = one.conversation(chat.special_tokens.axolotl, row)
                if isinstance(conversation, Conversation):
                    yield chat.rendered(conversation)
