"""Report: what became of the rows, in figures and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from runner.files import read_json, write_json
from runner.prepared import Rows, asked

REPORT_FILE = "report.json"
SHOWN_BAD_LINES = 10


@dataclass
class SetCounts:
    """One of the data sets: as a person names it, the share of its rows that is taken, 0 to 1, its rows, and those of them
    that are trained on."""

    name: str
    share: float = 1.0
    rows_in: int = 0
    train_rows: int = 0


@dataclass
class Report:
    """Counts of rows; token lengths of whole conversations; sizes in bytes.

    sets: the same by data set. not_taken: rows beyond the share of their data set.

    form: that of the rows, and how it is known; empty where there is but one. not_drawn: rows that the seeded draw of a part passed by.
    unit: what must not be on both sides of the split. tasks: rows of each kind of task, empty where there is one kind.
    key: hash of everything that the result depends on. bad_lines: where it stands (see `rows.where`; 0 where that is nowhere) and why.
    token_lengths: `min`, `median`, `p95`, `max` in tokens, empty where no tokenizer is at hand.
    """

    key: str = ""
    source: str = ""
    form: str = ""
    rows_in: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad_lines: list[tuple[int | str, str]] = field(default_factory=list)
    sets: list[SetCounts] = field(default_factory=list)
    not_taken: int = 0
    duplicates: int = 0
    not_drawn: int = 0
    unit: str = "question"
    distinct: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    sampled_from: int | None = None
    train_rows: int = 0
    validation_rows: int = 0
    token_lengths: dict[str, int] = field(default_factory=dict)
    tokenizer: str = ""
    bytes_before: int | None = None
    bytes_after: int = 0

    def lines(self) -> Iterator[str]:
        """The report for a person, a line a fact."""
        several = self.sets if len(self.sets) > 1 else []
        yield f"rows in              {self.rows_in:>9,}   from {f'{len(several)} data sets' if several else self.source}"
        for index, one in enumerate(several):
            part = f", of which a share of {one.share:g} is taken" if one.share < 1 else ""
            yield f"  {f'sets[{index}]':<19}{one.rows_in:>9,}   {one.name}{part}"
        if self.form:
            yield f"form                           {self.form}"
        if self.not_taken:
            yield f"not taken            {self.not_taken:>9,}   beyond the `share` of their data set, drawn by the seed"
        for reason, count in self.dropped.most_common():
            yield f"  dropped            {count:>9,}   {reason}"
        for number, reason in self.bad_lines[:SHOWN_BAD_LINES]:
            yield f"    line {number}: {reason}"
        if len(self.bad_lines) > SHOWN_BAD_LINES:
            yield f"    and {len(self.bad_lines) - SHOWN_BAD_LINES:,} more bad lines, all in {REPORT_FILE}"
        yield f"exact duplicates     {self.duplicates:>9,}   taken out"
        yield f"{f'distinct {self.unit}s':<21}{self.distinct:>9,}"
        if self.not_drawn:
            yield f"not drawn            {self.not_drawn:>9,}   more than the recipe asks for"
        if self.sampled_from is not None:
            yield f"sampled              {self.train_rows + self.validation_rows:>9,}   of {self.sampled_from:,}"
        yield f"training rows        {self.train_rows:>9,}"
        for index, one in enumerate(several):
            yield f"  {f'sets[{index}]':<19}{one.train_rows:>9,}   {one.train_rows / max(1, self.train_rows):.1%} of them"
        yield f"validation rows      {self.validation_rows:>9,}   no {self.unit} on both sides"
        for task, count in self.tasks.items():
            yield f"  {task.replace('_', ' '):<19}{count:>9,}"
        if self.token_lengths:
            shown = ", ".join(f"{name} {value:,}" for name, value in self.token_lengths.items())
            yield f"tokens a row         {shown}   (tokenizer of {self.tokenizer})"
        else:
            yield f"tokens a row         not counted: {self.tokenizer}"
        before = f"{self.bytes_before:,} → " if self.bytes_before is not None else ""
        yield f"bytes                {before}{self.bytes_after:,}"

    def write(self, folder: Path) -> None:
        # asdict() rebuilds a Counter from pairs, which counts the pairs.
        write_json(folder / REPORT_FILE, asdict(self) | {"dropped": dict(self.dropped)})

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The report that lies in a folder of prepared data, or None."""
        facts: dict[str, Any] | None = read_json(folder / REPORT_FILE)
        if not isinstance(facts, dict):
            return None
        try:
            sets = [SetCounts(**one) for one in facts["sets"]]
            return cls(**facts | {"dropped": Counter(facts["dropped"]), "sets": sets})
        except (TypeError, KeyError):
            return None


def rows_of(report: Report, data: Mapping[str, Any]) -> Rows:
    """What others must know of rows with this report; data: what was asked for."""
    usual = report.token_lengths.get("median")
    return Rows(report.train_rows, report.validation_rows, report.sampled_from, asked(data), usual)
