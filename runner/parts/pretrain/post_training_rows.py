"""The rows of the stages after pretraining: preferences for DPO, and a domain's conversations mixed with general ones, so that
learning the one does not forget the other."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from runner.data import RenderedExample, blocks, chat, doctor, items, rows
from runner.data.conversation_formats import rendered
from runner.data.report import Report
from runner.data.tokenizers import TokenizerFor
from runner.parts.pretrain.stages import Mixture, Preference, Preferences
from runner.recipe import templates
from runner.tools.files import replacing
from runner.trainer.generation import messages

# What Axolotl reads of prepared conversations.
READ = ("messages", "tools")


def prepare_preferences(preferences: Preferences, out: Path, tokenizer_for: TokenizerFor | None = None) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `messages`, `chosen`, `rejected`) and `report.json`.

    tokenizer_for: gives the tokenizer that counts what training will cut of longer rows.
    Raises Stop where too few rows are left to train and validate on.
    """

    def read(place: Path, report: Report) -> tuple[items.Spool, np.ndarray]:
        codecs = [items.RowCodec(one.preference, _batch) for one in preferences.sets]
        return items.without_duplicates(preferences, codecs, place, report)

    return items.prepare(
        preferences,
        out,
        read,
        partial(PreferenceColumns, preferences),
        tokenizer=preferences.tokenizer,
        tokenizer_for=tokenizer_for,
    )


def _batch(preferences: Sequence[Preference]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([vars(preference) for preference in preferences])


class PreferenceColumns:
    """What becomes of spooled preferences."""

    def __init__(self, asked: Preferences, spool: items.Spool) -> None:
        self.asked, self.spool = asked, spool

    def said(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        for row in batch.to_pylist():
            yield "\n".join((row["prompt"], row["chosen"], row["rejected"])), row["chosen"]

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        asked = [messages(self.asked.system_prompt, prompt) for prompt in batch["prompt"].to_pylist()]
        return pa.table({"messages": asked, "chosen": batch["chosen"], "rejected": batch["rejected"]})

    def measured(self, kept: np.ndarray, tokenizer_for: TokenizerFor | None, report: Report) -> np.ndarray:
        """Counts the tokens of each row's longer answer behind its prompt, and what training cuts of both."""

        def texts(answer: str) -> Iterator[str]:
            for batch in self.spool.batches(kept):
                for row in batch.to_pylist():
                    conversation = messages(self.asked.system_prompt, row["prompt"], row[answer])
                    yield rendered(self.asked.special_tokens, conversation)

        tokenizer = tokenizer_for(texts("chosen")) if tokenizer_for and len(kept) else None
        if tokenizer is None:
            report.tokenizer = "the tokenizer is not here; longer rows are cut in training"
            return kept
        report.tokenizer = str(tokenizer.name_or_path)
        lengths = np.stack([blocks.lengths(texts(answer), tokenizer) for answer in ("chosen", "rejected")])
        longer, limit = lengths.max(axis=0), self.asked.sequence_len
        report.token_lengths = blocks.figures(longer)
        lines = self.spool.where(self.asked, kept[longer > limit])
        lost = int((lengths - limit).clip(min=0).sum())
        report.findings += doctor.too_long(longer, limit, lines, lost, " are cut in training")
        return kept


def first(preferences: Preferences) -> Iterator[RenderedExample]:
    """The rows that make a preference, one after the other: the question with the answer to prefer, and below it the other."""
    for one in preferences.sets:
        for row in rows.good(one):
            with suppress(templates.NoText):
                found = one.preference(row)
                if isinstance(found, Preference):
                    conversation = messages(preferences.system_prompt, found.prompt, found.chosen)
                    text = rendered(preferences.special_tokens, conversation)
                    yield RenderedExample(found.prompt, f"{text}\n\nrejected: {found.rejected}")


def prepare_mixture(
    mixture: Mixture, out: Path, general: Path, tokenizer_for: TokenizerFor
) -> tuple[Report, list[str]]:
    """Writes `out/train.parquet` (mixed) and `out/validation.parquet` (the domain alone); gives the domain's report, and
    lines about the mixture.

    general: Parquet with the general conversations, of which the rest is drawn, each at most once.
    """
    from datasets import Dataset

    share = mixture.domain_share
    report = chat.prepare(mixture, out / "domain", tokenizer_for=tokenizer_for)
    domain, others = (
        table.select([name for name in READ if name in table.column_names])
        for table in map(parquet.read_table, (out / "domain" / "train.parquet", general))
    )
    count = min(len(others), round(len(domain) * (1 - share) / share))
    drawn = sorted(random.Random(mixture.seed).sample(range(len(others)), count))
    # Permissive, because turns of the one may have what those of the other do not.
    mixed = pa.concat_tables([domain, others.take(drawn)], promote_options="permissive").replace_schema_metadata()
    _write(Dataset(mixed).shuffle(seed=mixture.seed).with_format("arrow")[:], out / "train.parquet")
    _write(parquet.read_table(out / "domain" / "validation.parquet"), out / "validation.parquet")
    short = round(len(domain) * (1 - share) / share) - count
    return report, [
        f"mixed                {len(domain):>9,} of the domain, {count:,} general: {len(domain) / len(mixed):.0%} domain",
        *([f"  note: {short:,} general rows are missing for a share of {share:.0%}"] if short else []),
    ]


def _write(table: Any, file: Path) -> None:
    with replacing(file) as partial:
        parquet.write_table(table, partial, compression="zstd")
