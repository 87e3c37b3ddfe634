"""Steps: how many a run has, and how long the rows are that it sees."""

from __future__ import annotations

import math

from runner.estimate.workload import Workload

# The longest of a few rows, as Axolotl pads them to a multiple of 64, over the mean one: 1.21 for 8 of the survival rows
# (benchmarks/packing.py).
PADDING = 1.2


def steps(workload: Workload) -> int | None:
    """Steps of the optimizer; None where nobody knows the rows. The last, smaller step of an epoch counts (Trainer)."""
    if workload.max_steps:
        return workload.max_steps
    return steps_of(_rows(workload), workload.effective_batch_size, workload.epochs)


def steps_of(rows: float | None, batch: int, epochs: float) -> int | None:
    """Steps of so many rows in batches of so many, over all GPUs."""
    return None if rows is None else max(1, math.ceil(math.ceil(rows / batch) * epochs))


def _rows(workload: Workload) -> float | None:
    """Rows of one epoch as training sees them: packed rows fill the whole length."""
    return packed(workload, workload.rows)


def packed(workload: Workload, rows: int | None) -> float | None:
    if workload.packing and workload.row_tokens and rows:
        return max(1.0, rows * workload.row_tokens / workload.sequence_len)
    return rows


def row_tokens(workload: Workload) -> float:
    """Tokens that a GPU computes for one row, padding counted where there is some; the whole length where nobody knows the rows'
    own."""
    if workload.packing or workload.row_tokens is None:
        return workload.sequence_len
    padding = PADDING if workload.micro_batch_size > 1 and not workload.joined else 1.0
    return min(workload.sequence_len, workload.row_tokens * padding)
