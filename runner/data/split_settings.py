"""Split: what every kind of rows is asked for that becomes `train.parquet` and `validation.parquet`, and whether it lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.data import data_sets, tokenizers
from runner.data.report import Report
from runner.data.tokenizers import Pretrained
from runner.tools.names import content_hash
from runner.tools.problem import Stop

SIDES = ("train", "validation")

# Given texts, the tokenizer to count them with; None where there is none on this machine.
TokenizerFor = Callable[[Iterable[str]], Any]


@dataclass(frozen=True, kw_only=True)
class TwoSides(data_sets.DataSets):
    """Rows, and the `validation_share` of them, 0 to 1, that a draw by `seed` keeps for validation. max_lost_share: of them, that
    may be bad or too long, 0 to 1."""

    validation_share: float
    max_lost_share: float = 0.01


def begin(source: TwoSides, tokenizer: Pretrained | None = None, sample_rows: int | None = None) -> Report:
    """An empty report, whose key says what the result depends on: settings, the rows' file, and the tokenizer whose
    tokens are counted."""
    tokens = tokenizers.content(tokenizer.base) if tokenizer else ""
    report = Report.of(source)
    report.key = content_hash([asdict(source), source.content, tokens, sample_rows], 32)
    return report


def already(out: Path, report: Report, tokenizer_for: TokenizerFor | None = None) -> Report | None:
    """The report of the same preparation, where both sides lie in `out`; what could not be counted for want of a
    tokenizer is tried again.

    Raises Stop where `out` holds Parquet files that this program did not prepare: somebody's own.
    """
    known = Report.read(out)
    if known is None and any(out.glob("*.parquet")):
        raise Stop(
            f"`{out}` holds Parquet files that the runner did not make.", "Name another folder for prepared data."
        )
    there = all((out / f"{side}.parquet").is_file() for side in SIDES)
    counted = known is not None and (bool(known.token_lengths) or tokenizer_for is None)
    return known if known and known.key == report.key and there and counted else None
