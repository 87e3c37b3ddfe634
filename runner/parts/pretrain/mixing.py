"""Mixing: a domain's conversations with general ones, so that learning the one does not forget the other."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.data import chat
from runner.data.report import Report
from runner.data.split_settings import TokenizerFor
from runner.tools.files import replacing

# What Axolotl reads of prepared conversations.
READ = ("messages", "tools")


@dataclass(frozen=True, kw_only=True)
class Mixture(chat.Chat):
    """A domain's conversations. domain_share: their part of the training rows, above 0 and up to 1."""

    domain_share: float


def prepare(mixture: Mixture, out: Path, general: Path, tokenizer_for: TokenizerFor) -> tuple[Report, list[str]]:
    """Writes `out/train.parquet` (mixed) and `out/validation.parquet` (the domain alone); gives the domain's report, and
    lines about the mixture.

    general: Parquet with the general conversations, of which the rest is drawn, each at most once.
    """
    from datasets import Dataset
    from pyarrow import concat_tables, parquet

    share = mixture.domain_share
    report: Report = chat.prepare(mixture, out / "domain", tokenizer_for=tokenizer_for)
    domain, others = (
        table.select([name for name in READ if name in table.column_names])
        for table in map(parquet.read_table, (out / "domain" / "train.parquet", general))
    )
    count = min(len(others), round(len(domain) * (1 - share) / share))
    drawn = sorted(random.Random(mixture.seed).sample(range(len(others)), count))
    # Permissive, because turns of the one may have what those of the other do not.
    mixed = concat_tables([domain, others.take(drawn)], promote_options="permissive").replace_schema_metadata()
    _write(Dataset(mixed).shuffle(seed=mixture.seed).with_format("arrow")[:], out / "train.parquet")
    _write(parquet.read_table(out / "domain" / "validation.parquet"), out / "validation.parquet")
    short = round(len(domain) * (1 - share) / share) - count
    return report, [
        f"mixed                {len(domain):>9,} of the domain, {count:,} general: {len(domain) / len(mixed):.0%} domain",
        *([f"  note: {short:,} general rows are missing for a share of {share:.0%}"] if short else []),
    ]


def _write(table: Any, file: Path) -> None:
    from pyarrow import parquet

    with replacing(file) as partial:
        parquet.write_table(table, partial, compression="zstd")
