"""Steps: how many a run has, and how long the rows are that it sees."""

import math

from runner.parts.planner.workload import MULTIPLE, Workload


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
    """So many of the data's rows as the model sees them: several in one of the whole length, or cut out of all their text."""
    if not (workload.packing and workload.lengths and rows):
        return rows
    length = workload.sequence_len
    in_one = workload.lengths.packed(length) if workload.several else length / workload.lengths.mean
    return max(1.0, rows / in_one)


def row_tokens(workload: Workload) -> float:
    """Tokens that a GPU computes for one row, padding counted where there is some: up to the longest row of its micro batch. The
    whole length where nobody knows the rows' own."""
    length = workload.sequence_len
    if workload.packing or not workload.lengths:
        return length
    if workload.joined:
        return workload.lengths.within(length)
    multiple = 1 if workload.answers > 1 else MULTIPLE
    return workload.lengths.longest(workload.micro_batch_size * workload.answers, length, multiple)


def attended(workload: Workload) -> float:
    """Tokens of the row that a mean token attends to: rows that stand in one do not see each other."""
    if workload.lengths and (workload.several if workload.packing else workload.joined):
        return workload.lengths.attended(workload.sequence_len)
    return row_tokens(workload)
