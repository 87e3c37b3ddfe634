"""Elapsed: how long training has taken so far, as each stage notes it beside its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.tools.files import Record
from runner.tools.run_files import TIME_LIMIT


@dataclass(frozen=True)
class TimeUsed(Record):
    """What a stage has used of the recipe's time for training, restarts among it, and whether that has ended it."""

    FILE = TIME_LIMIT
    limit_seconds: float = 0.0
    used_seconds: float = 0.0
    reached: bool = False


def elapsed_seconds(run_dirs: Iterable[str | Path]) -> float:
    """Seconds of training in these folders together, restarts among them; a folder without a note counts as none."""
    return sum(TimeUsed.read(Path(folder)).used_seconds for folder in run_dirs)
