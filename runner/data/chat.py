"""Questions and answers become conversations: filled templates, no duplicates, a split that leaks no question."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.catalog import ChatTemplate
from runner.data import split
from runner.data.report import Report
from runner.data.split import TokenizerFor, TwoSides
from runner.data.tokenizers import Pretrained
from runner.training.answers import messages


@dataclass(frozen=True, kw_only=True)
class Conversations(TwoSides):
    """What becomes of conversations, whatever is in them.

    special_tokens: those around each message. sequence_len: tokens that a conversation may have; tokenizer: whose tokens
    those are.
    """

    system_prompt: str | None
    special_tokens: ChatTemplate
    sequence_len: int
    tokenizer: Pretrained | None = None


@dataclass(frozen=True, kw_only=True)
class Chat(Conversations):
    """Questions and answers, each a template with the rows' columns in brackets."""

    kind: Literal["chat"] = "chat"
    question: str
    answer: str


@dataclass(frozen=True)
class Pair:
    question: str
    answer: str

    @property
    def group(self) -> str:
        """Pairs with the same group stay on one side of the split: the question, however it is spaced or cased."""
        return split.same(self.question)


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
    pairs = split.collect(chat, (chat.question, chat.answer), _pair, report)
    if sample_rows is not None and len(pairs) > sample_rows:
        report.sampled_from = len(pairs)
        kept = sorted(random.Random(chat.seed).sample(range(len(pairs)), sample_rows))
        pairs = [pairs[index] for index in kept]
    return finish(pairs, chat, out, tokenizer_for, report)


def _pair(question: str, answer: str) -> Pair | str:
    return Pair(question, answer) if question and answer else "the question or the answer is empty"


def finish(
    pairs: Sequence[Pair], conversations: Conversations, out: Path, tokenizer_for: TokenizerFor | None, report: Report
) -> Report:
    """Leaves out what is too long, splits, and writes. Raises Stop where too few rows are left."""
    kept = _within_length(pairs, conversations, tokenizer_for, report)
    return split.finish(kept, lambda side: _columns(side, conversations.system_prompt), conversations, out, report)


def _columns(side: list[Pair], system_prompt: str | None) -> dict[str, list[Any]]:
    return {
        "full-question": [pair.question for pair in side],
        "answer": [pair.answer for pair in side],
        "messages": [messages(system_prompt, pair.question, pair.answer) for pair in side],
    }


def _within_length(
    pairs: Sequence[Pair], conversations: Conversations, tokenizer_for: TokenizerFor | None, report: Report
) -> list[Pair]:
    """Counts tokens; leaves out what the model would not see whole."""
    turns = (messages(conversations.system_prompt, pair.question, pair.answer) for pair in pairs)
    texts = [rendered(conversations.special_tokens, conversation) for conversation in turns]
    tokenizer = tokenizer_for(texts) if tokenizer_for and texts else None
    if tokenizer is None:
        report.tokenizer = "the base model's tokenizer is not on this machine"
        return list(pairs)
    report.tokenizer = getattr(tokenizer, "said_as", str(tokenizer.name_or_path))
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
    kept = [pair for pair, length in zip(pairs, lengths, strict=True) if length <= limit]
    if len(kept) < len(pairs):
        report.dropped[f"longer than {limit} tokens"] = len(pairs) - len(kept)
    return kept


def rendered(template: ChatTemplate, conversation: list[dict[str, str]]) -> str:
    """A conversation with the special tokens around each message, as the model is to see it."""
    return "".join(template.message(turn["role"], turn["content"]) for turn in conversation)
