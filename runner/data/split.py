"""Sides: rows of any kind, read to a spool, and written as training and validation side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from runner.data import spool
from runner.data.report import MOST_NAMED, Report
from runner.data.split_settings import SIDES, TwoSides
from runner.data.spool import Kind, Spool
from runner.tools.files import replacing
from runner.tools.problem import Stop

GROUP_BYTES = 16 * 2**20


def read(source: TwoSides, kinds: Sequence[Kind[Any]], folder: Path, report: Report) -> tuple[Spool, np.ndarray]:
    """The items of all rows, and the numbers of those that are equal to none before them. kinds: one for each data set."""
    all_of_them = spool.of_sets(source, kinds, folder, report)
    kept = all_of_them.first_of_each_key()
    report.duplicates = len(all_of_them) - len(kept)
    report.duplicate_lines = all_of_them.where(source, np.delete(np.arange(len(all_of_them)), kept)[:MOST_NAMED])
    report.distinct = all_of_them.distinct_groups(kept)
    return all_of_them, kept


def write(
    items: Spool,
    kept: np.ndarray,
    columns: Callable[[pa.RecordBatch], pa.Table],
    source: TwoSides,
    out: Path,
    report: Report,
) -> Report:
    """Splits the items whose numbers are `kept`, and writes both sides and the report. columns: what is written of a batch,
    in the same types for every batch.

    Raises Stop where too few rows are left.
    """
    is_validation = drawn(items.groups[kept], source.validation_share)
    sides = [kept[~is_validation], kept[is_validation]]
    report.train_rows, report.validation_rows = map(len, sides)
    for index, counts in enumerate(report.sets):
        counts.train_rows = int((items.origins[sides[0]] == index).sum())
    if not all(map(len, sides)):
        lines = "\n".join(report.lines())
        raise Stop(
            f"Too few rows are left to train and to validate on.\n{lines}\n"
            f"At least two different {report.unit}s are needed."
        )
    for name, side in zip(SIDES, sides, strict=True):
        with replacing(out / f"{name}.parquet") as partial:
            _write(map(columns, items.batches(side)), partial)
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    report.write(out)
    return report


def _write(tables: Iterator[pa.Table], file: Path) -> None:
    """Tables of the same columns as one file."""
    first = next(tables)
    with parquet.ParquetWriter(file, first.schema, compression="zstd") as writer, ThreadPoolExecutor(1) as pool:
        # A group is compressed while the next is made.
        written: Future[None] | None = None
        for group in _groups(chain([first], tables)):
            if written:
                written.result()
            written = pool.submit(writer.write_table, group)
        if written:
            written.result()


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables together, as groups of rows of about GROUP_BYTES."""
    group, size = [], 0
    for table in tables:
        group.append(table)
        if (size := size + table.nbytes) >= GROUP_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)


def drawn(groups: np.ndarray, share: float) -> np.ndarray:
    """Whether each item is for validation. Groups are drawn in their order until `share` of all items is reached; all of a
    group go to the same side, and one is left for training."""
    order, starts = spool.runs(groups)
    sizes = np.diff(np.append(starts, len(groups)))
    target, taken = max(1, round(share * len(groups))), 0
    chosen = np.zeros(len(groups), bool)
    count = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if taken >= target or count == len(starts) - 1:
            break
        if count and taken + size > target:
            continue
        chosen[order[start : start + size]] = True
        count += 1
        taken += size
    return chosen
