"""Spool: rows on disk between reading and writing, however many; memory holds only what tells them apart and orders them."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from runner.data import data_sets, rows
from runner.data.report import Report
from runner.data.rows import Share, shares_of
from runner.recipe.templates import NoText
from runner.tools.names import listed
from runner.trainer import parent_watch

# Rows are put on disk in batches of about so many characters.
BATCH_CHARACTERS = 2**20
# A process of its own has to read so many bytes before it has earned its start, half a second.
SHARE_BYTES = 16 * 2**20


class Spooled(Protocol):
    """Something to learn from; items with the same key are learned once, and those of one group stay on one side of the
    split."""

    @property
    def key(self) -> str: ...
    @property
    def group(self) -> str: ...


Item = TypeVar("Item", bound=Spooled)


@dataclass(frozen=True)
class Kind(Generic[Item]):
    """What becomes of rows. Both are functions that another process can be handed.

    item: of a row, or the reason why it has none; it raises KeyError with a column that the row lacks, NoText where
    the row is to be named with a reason of its own. batch: the columns of items, in the same types for all of them.
    """

    item: Callable[[Mapping[str, Any]], Item | str]
    batch: Callable[[Sequence[Item]], pa.RecordBatch]


@dataclass(frozen=True)
class Spool:
    """Items on disk, in the order they came.

    files: Arrow streams, one after the other. keys, groups: hashes of each item's key and group, as pairs of 64 bits;
    groups are in an order that the seed fixes. lines, origins: where each came from, the line of a data set, by its number.
    characters: of each item's text.
    """

    files: tuple[Path, ...]
    keys: np.ndarray
    groups: np.ndarray
    lines: np.ndarray
    origins: np.ndarray
    characters: np.ndarray

    def where(self, sources: data_sets.DataSets, kept: np.ndarray) -> list[data_sets.Where]:
        """Where the items with these numbers stand, as messages name them."""
        places = zip(self.origins[kept].tolist(), self.lines[kept].tolist(), strict=True)
        return [data_sets.where(sources, *place) for place in places]

    def __len__(self) -> int:
        return len(self.lines)

    def batches(self, kept: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
        """The items in order, those whose numbers are in `kept` (sorted), all where None."""
        start = 0
        for file in self.files:
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    end = start + len(batch)
                    if kept is not None:
                        first, last = np.searchsorted(kept, (start, end))
                        if last - first < len(batch):
                            batch = batch.take(pa.array(kept[first:last] - start))
                    if len(batch):
                        yield batch
                    start = end

    def first_of_each_key(self) -> np.ndarray:
        """The numbers of the items that are equal to none before them."""
        order, starts = runs(self.keys)
        return np.sort(order[starts])

    def distinct_groups(self, kept: np.ndarray) -> int:
        return len(runs(self.groups[kept])[1])


def runs(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts pairs, and where in it each run of equal ones begins; of equal ones the first stays first."""
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    ordered = pairs[order]
    new = np.ones(len(pairs), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return order, np.flatnonzero(new)


def hashes(texts: Sequence[str], before: str = "") -> np.ndarray:
    """SHA-256 of each text behind `before`, its first 128 bits as two numbers that sort as the whole does."""
    digests = b"".join([hashlib.sha256((before + text).encode()).digest()[:16] for text in texts])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


@contextmanager
def folder(out: Path) -> Iterator[Path]:
    """A folder for a spool below `out`, which is taken away again; a killed process leaves it to the next of its number."""
    place = out / f".rows.{os.getpid()}.partial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Writer(Generic[Item]):
    """Puts items into an Arrow stream, `file`. batch: as in Kind. seed: of the order of groups."""

    def __init__(self, batch: Callable[[Sequence[Item]], pa.RecordBatch], seed: int, file: Path) -> None:
        self.batch, self.file, self.before = batch, file, f"{seed}\n"
        self._held: list[tuple[Item, str, int, int]] = []
        self._characters = 0
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._stream: Any = None

    def add(self, item: Item, line: int, origin: int) -> None:
        key = item.key
        self._held.append((item, key, line, origin))
        self._characters += len(key)
        if self._characters >= BATCH_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        items, keys, *places = zip(*self._held, strict=True)
        batch = self.batch(items)
        if self._stream is None:
            self._stream = pa.ipc.new_stream(str(self.file), batch.schema)
        self._stream.write_batch(batch)
        groups = hashes([item.group for item in items], self.before)
        numbers = (*places, list(map(len, keys)))
        self._parts.append((hashes(keys), groups, *(np.array(each, np.int64) for each in numbers)))
        self._held, self._characters = [], 0

    def close(self) -> Spool:
        self._flush()
        if self._stream is not None:
            self._stream.close()
        hashed, number = np.empty((0, 2), np.uint64), np.empty(0, np.int64)
        arrays = zip((hashed, hashed, number, number, number), *self._parts, strict=True)
        return Spool((self.file,) if self._stream is not None else (), *map(np.concatenate, arrays))


def joined(spools: Sequence[Spool]) -> Spool:
    """Spools as one, one after the other."""
    arrays = (
        np.concatenate([getattr(spool, name) for spool in spools])
        for name in ("keys", "groups", "lines", "origins", "characters")
    )
    return Spool(tuple(file for spool in spools for file in spool.files), *arrays)


def of_sets(sources: data_sets.DataSets, kinds: Sequence[Kind[Any]], place: Path, report: Report) -> Spool:
    """The items of all rows of the data sets that are taken, counted in `report`; a large file of lines or of row groups is
    read by as many processes as there are cores. kinds: one for each data set."""
    spools = []
    for index, kind in enumerate(kinds):
        parts = _parts(sources.sets[index].file)
        jobs = [
            (sources, index, part, kind, place / f"{index}-{number}.arrow")
            for number, part in enumerate(parts or [None])
        ]
        if not parts:
            spools.append(of_rows(*jobs[0], report))
            continue
        # Fresh interpreters, because a copy of this one would copy the locks of threads that it does not have.
        context = get_context("spawn")
        with ProcessPoolExecutor(len(parts), context, parent_watch.end_with, (os.getpid(),)) as pool:
            for spool, counted in pool.map(_apart, jobs):
                spools.append(spool)
                report.add(counted)
    return joined(spools)


def _parts(file: Path | None) -> list[Share] | None:
    """The parts of a file that is worth several processes; None for any other."""
    if not file or not file.is_file():
        return None
    count = min(len(os.sched_getaffinity(0)), file.stat().st_size // SHARE_BYTES)
    return shares_of(file, None, count) if count > 1 else None


def _apart(job: tuple[data_sets.DataSets, int, Share, Kind[Any], Path]) -> tuple[Spool, Report]:
    # Rows make no cycles, and looking for some takes a fifth of the time.
    gc.disable()
    report = Report.of(job[0])
    return of_rows(*job, report), report


def of_rows(
    sources: data_sets.DataSets, index: int, share: Share | None, kind: Kind[Any], file: Path, report: Report
) -> Spool:
    """The items of a data set, or of a share of its file; a line that gives none goes into the report and is left out."""
    writer: Writer[Any] = Writer(kind.batch, sources.seed, file)
    for number, row in report.whole(sources, index, rows.read(sources.sets[index], share)):
        try:
            item = kind.item(row)
        except KeyError as column:
            reason, why = "a column is missing", f"no column `{column.args[0]}`; there are {listed(list(row)[:10])}"
        except NoText as error:
            reason, why = "no conversation", str(error)
        else:
            if not isinstance(item, str):
                writer.add(item, number, index)
                continue
            reason, why = item, ""
        report.lose(data_sets.where(sources, index, number), reason, why)
    return writer.close()
