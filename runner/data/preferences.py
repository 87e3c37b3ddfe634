"""Preferences to Parquet: a question, a better and a worse answer to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data import RenderedExample, blocks, doctor, items, rows
from runner.data.conversation_formats import Preference, Preferences, rendered
from runner.data.report import Report
from runner.data.tokenizers import TokenizerFor
from runner.recipe import templates


def prepare(
    preferences: Preferences,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `full-question`, `messages`, `chosen`, `rejected`) and
    `report.json`.

    tokenizer_for: gives the tokenizer that counts what training will cut of longer rows. sample_rows: keep at most this
    many, drawn by the seed. Raises Stop if too few rows are left to train and validate on.
    """
    return PreferenceRows(preferences, preferences.tokenizer).prepare(out, tokenizer_for, sample_rows)


def _turns(system_prompt: str | None, prompt: str, answer: str = "") -> list[dict[str, str]]:
    said = {"system": (system_prompt or "").strip(), "user": prompt, "assistant": answer}
    return [{"role": role, "content": text} for role, text in said.items() if text]


def _batch(preferences: Sequence[Preference]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([vars(preference) for preference in preferences])


class PreferenceRows(items.ItemPreparer[Preferences]):
    """Rows of which each is a preference, no two the same."""

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        codecs = [items.RowCodec(one.preference, _batch) for one in self.asked.sets]
        return self.read_distinct(codecs, place, sample_rows)

    def said(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        for row in batch.to_pylist():
            yield "\n".join((row["prompt"], row["chosen"], row["rejected"])), row["chosen"]

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        asked = [_turns(self.asked.system_prompt, prompt) for prompt in batch["prompt"].to_pylist()]
        columns = {name: batch[name] for name in ("chosen", "rejected")}
        return pa.table({"full-question": batch["prompt"], "messages": asked, **columns})

    def measured(self, kept: np.ndarray, tokenizer_for: TokenizerFor | None) -> np.ndarray:
        """Counts the tokens of each row's longer answer behind its prompt, and what training cuts of both."""

        def texts(answer: str) -> Iterator[str]:
            for batch in self.spool.batches(kept):
                for row in batch.to_pylist():
                    conversation = _turns(self.asked.system_prompt, row["prompt"], row[answer])
                    yield rendered(self.asked.special_tokens, conversation)

        report, tokenizer = self.report, tokenizer_for(texts("chosen")) if tokenizer_for and len(kept) else None
        if tokenizer is None:
            report.tokenizer = "the tokenizer is not here; longer rows are cut in training"
            return kept
        report.tokenizer = str(tokenizer.name_or_path)
        lengths = np.stack([blocks.lengths(texts(answer), tokenizer) for answer in ("chosen", "rejected")])
        longer, limit = lengths.max(axis=0), self.asked.sequence_len
        report.token_lengths = blocks.figures(longer)
        lines = self.where(kept[longer > limit])
        lost = int((lengths - limit).clip(min=0).sum())
        report.findings += doctor.too_long(longer, limit, lines, lost, " are cut in training")
        return kept


def first(preferences: Preferences) -> Iterator[RenderedExample]:
    """The rows that make a preference: the question with the preferred answer, and below it the other."""
    for one in preferences.sets:
        for row in rows.good(one):
            with suppress(templates.NoText):
                found = one.preference(row)
                if isinstance(found, Preference):
                    conversation = _turns(preferences.system_prompt, found.prompt, found.chosen)
                    text = rendered(preferences.special_tokens, conversation)
                    yield RenderedExample(found.prompt, f"{text}\n\nrejected: {found.rejected}")
