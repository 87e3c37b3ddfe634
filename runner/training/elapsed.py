"""Elapsed: how long training has taken so far, as each stage notes it beside its results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.files import read_json
from runner.training.run_files import TIME_LIMIT


def elapsed_seconds(run_dirs: Iterable[str | Path]) -> float:
    """Seconds of training in these folders together, restarts among them; a folder without a note counts as none."""
    notes = (read_json(Path(folder) / TIME_LIMIT) for folder in run_dirs)
    return sum(float(note["used_seconds"]) for note in notes if isinstance(note, dict))
