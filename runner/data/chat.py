"""Rows become conversations, whatever their form: no duplicates, none too long, a split that leaks no question."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.catalog import ChatTemplate
from runner.data import forms, split
from runner.data.forms import CALLS, REASONING, Form, NoConversation, Turn
from runner.data.report import Report
from runner.data.rows import DataSet
from runner.data.split import TokenizerFor, TwoSides
from runner.data.tokenizers import Pretrained
from runner.names import listed
from runner.problem import Stop
from runner.recipe import templates

TrainOn = Literal["assistant", "last", "all"]
# What Axolotl's `message_field_training` names, beside each turn where not all of a role are trained.
TRAINING = "training"
# What Axolotl calls the template in the model's own tokenizer. Those that it has itself and the catalog names write roles and
# words, and nothing else.
OWN = "tokenizer_default"


@dataclass(frozen=True, kw_only=True)
class Conversations(TwoSides):
    """What becomes of conversations, whatever is in them.

    system_prompt: for those without a system turn of their own. train_on: the turns that are learned. special_tokens: those
    around each message. sequence_len: tokens that a conversation may have; tokenizer: whose tokens those are.
    """

    system_prompt: str | None
    train_on: TrainOn = "assistant"
    special_tokens: ChatTemplate
    sequence_len: int
    tokenizer: Pretrained | None = None


@dataclass(frozen=True, kw_only=True)
class ChatSet(DataSet):
    """Rows in one form. form: None where the rows tell it. question, answer: where they have that of columns, templates with
    the columns in brackets."""

    form: Form | None = "columns"
    question: str | None = None
    answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Chat(Conversations):
    """Conversations, each data set in a form of its own."""

    kind: Literal["chat"] = "chat"
    sets: tuple[ChatSet, ...]


@dataclass(frozen=True)
class Conversation(split.Grouped):
    """turns: in order; the last one answers. tools: JSON of the functions that may be called; empty where there are none."""

    turns: tuple[Turn, ...]
    tools: str = ""

    @property
    def question(self) -> str:
        return next(turn.content for turn in self.turns if turn.role == "user")

    @property
    def group(self) -> str:
        """Conversations with the same group stay on one side of the split: the first question, however it is spaced or cased."""
        return split.same(self.question)


def pair(question: str, answer: str) -> tuple[Turn, Turn]:
    return Turn("user", question), Turn("assistant", answer)


def prepare(
    chat: Chat,
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
    report = split.begin(chat, chat.tokenizer, sample_rows)
    if known := split.already(out, report, tokenizer_for):
        return known
    readings = [_Reading(one, chat.special_tokens.axolotl) for one in chat.sets]
    found = split.collect(chat, [read.conversation for read in readings], report)
    for read in readings:
        if read.form is None and read.columns:
            raise Stop(
                f"The rows of {read.rows.name} have the columns of no form that is known; they are {listed(read.columns)}.",
                forms.WANTED,
            )
    report.form = "; ".join(dict.fromkeys(read.said for read in readings if read.form))
    if sample_rows is not None and len(found) > sample_rows:
        report.sampled_from = len(found)
        kept = sorted(random.Random(chat.seed).sample(range(len(found)), sample_rows))
        found = [found[index] for index in kept]
    return finish(found, chat, out, tokenizer_for, report)


class _Reading:
    """Rows of one form, for a template that Axolotl calls so; where the recipe leaves the form open, the first row with the
    columns of one tells it."""

    def __init__(self, rows: ChatSet, template: str) -> None:
        self.rows, self.form, self.template = rows, rows.form, template
        self.columns: list[str] = []

    @property
    def said(self) -> str:
        return f"{self.form}{'' if self.rows.form else ', told from the columns'}"

    def conversation(self, row: Mapping[str, Any]) -> Conversation | str:
        self.columns = self.columns or list(row)
        self.form = self.form or forms.told(row)
        if self.form is None:
            raise NoConversation(f"its columns ({', '.join(row)}) are those of no form")
        if self.form != "columns":
            if (other := forms.told(row)) not in (self.form, None) and not set(forms.COLUMNS[self.form]) <= set(row):
                raise NoConversation(f"it has the form {other}, and the others {self.form}")
            tools = row.get("tools")
            one = Conversation(forms.turns(self.form, row), forms.as_json(tools, "its `tools` are") if tools else "")
            if self.template != OWN and (unwritten := _unwritten(one, "")):
                raise NoConversation(
                    f"it has `{unwritten}`, which the chat template `{self.template}` does not write; `chat_template: {OWN}` takes the "
                    "model's own"
                )
            return one
        parts = (self.rows.question or "", self.rows.answer or "")
        question, answer = (templates.fill(part, row).strip() for part in parts)
        return Conversation(pair(question, answer)) if question and answer else "the question or the answer is empty"


def _unwritten(one: Conversation, template: str) -> str | None:
    """What a conversation has beside its words that a template does not write, and that would be lost without a sign."""
    there = {
        name for turn in one.turns if turn.besides for name in json.loads(turn.besides) if name in (CALLS, REASONING)
    }
    return next((name for name in sorted(there | ({"tools"} if one.tools else set())) if name not in template), None)


def finish(
    found: Sequence[Conversation],
    conversations: Conversations,
    out: Path,
    tokenizer_for: TokenizerFor | None,
    report: Report,
) -> Report:
    """Leaves out what is too long, splits, and writes. Raises Stop where too few rows are left."""
    kept = _within_length(found, conversations, tokenizer_for, report)
    return split.finish(kept, lambda side: _columns(side, conversations), conversations, out, report)


def _columns(side: list[Conversation], conversations: Conversations) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "full-question": [one.question for one in side],
        "answer": [one.turns[-1].content for one in side],
        "messages": [_messages(one, conversations) for one in side],
    }
    return columns | ({"tools": [one.tools or None for one in side]} if any(one.tools for one in side) else {})


def _messages(one: Conversation, conversations: Conversations) -> list[dict[str, Any]]:
    """As Axolotl reads them, behind the recipe's system prompt where the row has none of its own."""
    prompt = conversations.system_prompt
    own = [Turn("system", prompt.strip())] if prompt and one.turns[0].role != "system" else []
    said = [turn.message() for turn in (*own, *one.turns)]
    if conversations.train_on == "last":
        for message in said:
            message[TRAINING] = message is said[-1]
    return said


def _within_length(
    found: Sequence[Conversation], conversations: Conversations, tokenizer_for: TokenizerFor | None, report: Report
) -> list[Conversation]:
    """Counts tokens; leaves out what the model would not see whole."""
    texts = [rendered(conversations.special_tokens, _messages(one, conversations)) for one in found]
    tokenizer = tokenizer_for(texts) if tokenizer_for and texts else None
    if tokenizer is None:
        report.tokenizer = "the base model's tokenizer is not on this machine"
        return list(found)
    report.tokenizer = getattr(tokenizer, "said_as", str(tokenizer.name_or_path))
    template = getattr(tokenizer, "chat_template", None)
    if conversations.special_tokens.axolotl == OWN and isinstance(template, str) and not hasattr(tokenizer, "said_as"):
        written = [_unwritten(one, template) for one in found]
        for name in filter(None, written):
            report.dropped[f"`{name}`, which the tokenizer's chat template does not write"] += 1
        texts = [text for text, lost in zip(texts, written, strict=True) if not lost]
        found = [one for one, lost in zip(found, written, strict=True) if not lost]
    if not texts:
        return []
    lengths: list[int] = []
    # In parts, because the tokens of a hundred thousand rows take gigabytes as Python numbers.
    for start in range(0, len(texts), 1000):
        tokens = tokenizer(texts[start : start + 1000], add_special_tokens=False)["input_ids"]
        lengths += map(len, tokens)
    ordered = sorted(lengths)
    report.token_lengths = {
        "min": ordered[0],
        "median": round(statistics.median(ordered)),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
    limit = conversations.sequence_len
    kept = [one for one, length in zip(found, lengths, strict=True) if length <= limit]
    if len(kept) < len(found):
        report.dropped[f"longer than {limit} tokens"] = len(found) - len(kept)
    return kept


def rendered(template: ChatTemplate, conversation: list[dict[str, Any]]) -> str:
    """A conversation with the special tokens around each message, as the model is to see it; what a turn has besides its
    words stands before them, about as long as the model's own template makes it."""
    return "".join(template.message(turn["role"], _besides(turn) + turn["content"]) for turn in conversation)


def _besides(turn: Mapping[str, Any]) -> str:
    return "".join(json.dumps(turn[name], ensure_ascii=False) for name in (REASONING, CALLS) if turn.get(name))
