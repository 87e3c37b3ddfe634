"""Local rows: how many a file or folder has, and some of them from everywhere in it, in about a second however large it is."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from runner.tools import extras
from runner.tools.files import read_json, saved_by_datasets, table, text_files

# At most so many rows are looked at, and half as many at least where there are so many.
MOST = 4096
# Bytes that are read of a file; of a larger one its rows are reckoned from the part. Tables are slower to read.
READ = 256_000_000
READ_OF_TABLE = 32_000_000
# Parts of a larger file of lines that are read, evenly apart.
PARTS = 32
# Bytes of a spreadsheet up to which all of its rows are read.
SMALL_SHEET = 1_000_000
# Bytes of an image in CIFAR-10's binary files.
CIFAR_RECORD = 3073
# The golden ratio's part of 2^32: its multiples are spread evenly, and keep no step with rows that take turns.
_GOLDEN, _ALL = 2654435769, 2**32


class Unreadable(Exception):
    """Why nobody can count the rows, in plain words."""


@dataclass(frozen=True)
class LocalRows:
    """count: of rows, of which `rows` are some: a row by its columns, a document's text, or only how many bytes one has.
    unit: what a person calls them. about: whether the count is reckoned from a part of the file."""

    count: int
    rows: list[Any]
    unit: str
    about: bool = False


def of(path: Path, split: str | None = None, columns: Iterable[str] = (), images: bool = False) -> LocalRows:
    """The rows of what the preparers read. split: of a folder that `datasets` has saved. columns: those that are wanted of a
    file whose columns can be read alone; all where there are none. images: whether rows are images, which are only counted.

    Raises Unreadable where it cannot be read, or where a library for it is not installed.
    """
    try:
        if images and path.is_dir():
            return _images(path)
        if path.is_dir():
            return _saved(path, split, columns) if saved_by_datasets(path) else _texts(path)
        if path.suffix == ".parquet":
            return _parquet(path, None if images else columns)
        reader = _READERS.get(path.suffix)
        if reader and path.is_file():
            return reader(path)
    except Unreadable:
        raise
    except OSError as error:
        raise Unreadable(f"`{path}` cannot be read: {error.strerror or 'it is damaged'}") from None
    except Exception:  # each library has its own for files that are none
        raise Unreadable(f"`{path}` does not hold what its name says") from None
    raise Unreadable(f"there is no data file `{path}`" if not path.exists() else f"`{path}` is no data file")


def _evenly(rows: Iterable[Any]) -> tuple[int, list[Any]]:
    """How many rows come by, and at most MOST of them, spread evenly."""
    kept: list[tuple[int, Any]] = []
    below, count = _ALL, 0
    for count, row in enumerate(rows, 1):
        place = count * _GOLDEN % _ALL
        if place < below:
            kept.append((place, row))
            if len(kept) > MOST:
                below //= 2
                kept = [each for each in kept if each[0] < below]
    return count, [row for _, row in kept]


def _reckoned(count: int, read: int, size: int) -> int:
    """Rows of a whole file of `size` bytes, of which `read` hold so many."""
    return round(count * size / read) if read else count


def _lines(path: Path) -> LocalRows:
    size, read = path.stat().st_size, 0

    def lines() -> Iterator[bytes]:
        nonlocal read
        with path.open("rb") as file:
            for part in range(PARTS if size > READ else 1):
                start, end = (part * size // PARTS, READ // PARTS) if size > READ else (0, size)
                file.seek(start)
                if start:
                    file.readline()
                taken = 0
                for line in file:
                    taken += len(line)
                    if line.strip():
                        yield line
                    if taken >= end:
                        break
                read += taken

    count, kept = _evenly(lines())
    rows = []
    for line in kept:
        try:
            rows.append(json.loads(line.removeprefix(codecs.BOM_UTF8)))
        except (ValueError, RecursionError):
            continue  # whoever prepares the rows names it
    return LocalRows(_reckoned(count, read, size), rows, "lines", read < size)


def _array(path: Path) -> LocalRows:
    """Rows of a list, one after the other, so that the beginning of a large one is enough."""
    size = path.stat().st_size
    with path.open("rb") as file:
        text = file.read(READ_OF_TABLE).removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    whole, read, decode = size <= READ_OF_TABLE, 0, json.JSONDecoder().raw_decode
    place = len(text) - len(text.lstrip())
    if text[place : place + 1] != "[":
        raise ValueError

    def rows() -> Iterator[Any]:
        nonlocal place, read
        while True:
            place += 1
            while text[place : place + 1] in _BETWEEN:
                place += 1
            if text[place : place + 1] in ("]", ""):
                break
            try:
                row, place = decode(text, place)
            except ValueError:
                if whole:
                    raise
                break  # the last one of the part is not there to its end
            read = place
            while text[place : place + 1] in _BETWEEN:
                place += 1
            yield row
            if text[place : place + 1] != ",":
                break

    count, kept = _evenly(rows())
    return LocalRows(
        count if whole else _reckoned(count, read, len(text) * size // READ_OF_TABLE), kept, "rows", not whole
    )


_BETWEEN = (" ", "\t", "\r", "\n")


def _records(path: Path) -> LocalRows:
    """Records below the line of names; quoted text may hold line ends of its own. A byte that is no UTF-8 is part of one row."""
    size = path.stat().st_size
    with table(path, errors="replace") as (file, separator):

        def lines() -> Iterator[str]:
            left = READ_OF_TABLE
            for line in file:
                left -= len(line)
                yield line
                if left < 0:
                    return

        records = (record for record in csv.reader(lines(), delimiter=separator) if record)
        names = next(records, [])
        count, kept = _evenly(records)
        read = file.buffer.tell()
    rows = [dict(zip(names, record, strict=False)) for record in kept]
    return LocalRows(_reckoned(count, read, size), rows, "rows", read < size)


def _documents(path: Path) -> LocalRows:
    """Documents with empty lines between them."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def documents() -> Iterator[int]:
            lines = iter(lambda: file.readline() if file.tell() < READ_OF_TABLE else b"", b"")
            for text, document in groupby(lines, key=lambda line: bool(line.strip())):
                if text:
                    yield sum(map(len, document))

        count, kept = _evenly(documents())
        read = file.tell()
    return LocalRows(_reckoned(count, read, size), kept, "documents", read < size)


def _sheet(path: Path) -> LocalRows:
    """Rows of the first sheet, below the one with the names; of a large one the first of them, because cells are slow to read."""
    load = _library("openpyxl", "XLSX").load_workbook
    with closing(load(path, read_only=True, data_only=True)) as book:
        sheet = book.worksheets[0]
        small = path.stat().st_size <= SMALL_SHEET
        rows = iter(sheet.iter_rows(values_only=True, max_row=None if small else MOST))
        names = [str(name) for name in next((row for row in rows if row), ())]
        looked = list(rows)
        count, filled = _evenly(
            dict(zip(names, row, strict=False)) for row in looked if any(value is not None for value in row)
        )
        if small or len(looked) < MOST - 1:
            return LocalRows(count, filled, "rows")
        with ZipFile(path) as files, files.open(sheet._worksheet_path) as text:
            whole = sum(len(_ROW.findall(part)) for part in iter(lambda: text.read(2**20), b"")) - 1
        return LocalRows(round(whole * count / len(looked)), filled, "rows", True)


_ROW = re.compile(rb"<row[ >]")


def _parquet(path: Path, columns: Iterable[str] | None) -> LocalRows:
    """columns: None where rows are only counted."""
    parquet = _library("pyarrow.parquet", "Parquet")
    with parquet.ParquetFile(path) as file:
        facts = file.metadata
        if columns is None:
            return LocalRows(facts.num_rows, [], "rows")
        wanted = [name for name in columns if name in file.schema_arrow.names] or None
        groups = [index for index in range(facts.num_row_groups) if facts.row_group(index).num_rows]
        largest = max((facts.row_group(index).total_byte_size for index in groups), default=0)
        groups = groups[:: 1 + len(groups) * largest // READ_OF_TABLE]
        batches = file.iter_batches(batch_size=1024, row_groups=groups, columns=wanted)
        rows = _of_batches(batches, sum(facts.row_group(index).num_rows for index in groups))
        return LocalRows(facts.num_rows, rows, "rows")


def _saved(folder: Path, split: str | None, columns: Iterable[str]) -> LocalRows:
    """Rows of a folder that `datasets` has saved: Arrow streams, which `state.json` names."""
    _library("pyarrow", "a folder of `datasets`")
    import pyarrow as pa

    if (folder / "dataset_dict.json").is_file():
        folder = folder / str(split)
    names = [one["filename"] for one in (read_json(folder / "state.json") or {})["_data_files"]]
    batches = list(chain.from_iterable(pa.ipc.open_stream(pa.memory_map(str(folder / name))) for name in names))
    count = sum(batch.num_rows for batch in batches)
    wanted = [name for name in columns if batches and name in batches[0].schema.names]
    return LocalRows(count, _of_batches((each.select(wanted) if wanted else each for each in batches), count), "rows")


def _of_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """At most about MOST of the `count` rows of Arrow's batches, evenly apart."""
    step = -(-count // MOST) | 1
    rows, first = [], 0
    for batch in batches:
        rows += batch.take(list(range(first, batch.num_rows, step))).to_pylist()
        first = (first - batch.num_rows) % step
    return rows


def _texts(path: Path) -> LocalRows:
    """Texts of a folder, each file one document."""
    count, kept = _evenly(text.stat().st_size for text in text_files(path))
    if not count:
        raise Unreadable(f"`{path}` holds no texts")
    return LocalRows(count, kept, "files")


def _images(path: Path) -> LocalRows:
    """Images in folders, one a class, in Parquet files, or in CIFAR-10's binary ones; those in `test…` are not trained on."""
    entries = [entry for entry in path.iterdir() if not entry.name.startswith((".", "test"))]
    if binary := [entry for entry in entries if entry.suffix == ".bin"]:
        return LocalRows(sum(entry.stat().st_size // CIFAR_RECORD for entry in binary), [], "images")
    if files := [entry for entry in entries if entry.suffix == ".parquet"]:
        return LocalRows(sum(_parquet(file, None).count for file in files), [], "images")
    count = sum(
        file.is_file() and not file.name.startswith(".")
        for entry in entries
        if entry.is_dir()
        for file in entry.rglob("*")
    )
    if not count:
        raise Unreadable(f"`{path}` holds no images")
    return LocalRows(count, [], "files in the folders")


def _library(name: str, what: str) -> Any:
    """A library that only some files need, and that is slow to load."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise Unreadable(
            f"reading {what} needs {name.split('.')[0]}, which is not installed: {extras.install('train')}"
        ) from None


_READERS: dict[str, Callable[[Path], LocalRows]] = {
    ".jsonl": _lines,
    ".json": _array,
    ".csv": _records,
    ".tsv": _records,
    ".txt": _documents,
    ".xlsx": _sheet,
}
