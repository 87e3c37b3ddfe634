"""Steps: how many a run has, and how long the rows are that it sees."""

from __future__ import annotations

import math

from runner.estimate.workload import Workload

# The longest of a few rows, as Axolotl pads them to a multiple of 64, over the mean one: 1.21 for 8 of the survival rows
# (benchmarks/packing.py).
PADDING = 1.2


def steps(workload: Workload) -> int | None:
    """Steps of the optimizer; None where nobody knows the rows. Axolotl counts the rows of all epochs together, so that one
    smaller step ends the run and not each epoch (0.19.0, calculate_total_num_steps), and gives that to the Trainer."""
    if workload.max_steps:
        return workload.max_steps
    rows = _rows(workload)
    return None if rows is None else max(1, math.ceil(rows * workload.epochs / workload.effective_batch_size))


def steps_of(rows: float | None, batch: int, epochs: float) -> int | None:
    """Steps of so many rows in batches of so many, over all GPUs, where each epoch ends with a smaller one."""
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
