"""Samples of rows: how many a file or folder has, and some of them, in about a second."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from runner.data.chat_logs import JsonFile, chat_of
from runner.data.reshaping import reshaped
from runner.data.row_files import (
    Bad,
    RowFile,
    Table,
    Unreadable,
    ending_of,
    has_rules,
    library,
    texts_between,
)
from runner.data.rows import reader_of
from runner.data.table_layout import open_table
from runner.tools.files import is_text_file, read_json, saved_by_datasets, text_files
from runner.tools.problem import Stop

MOST = 4096  # at most this many rows are sampled, and at least half as many if there are enough
# Bytes that are read for a sample; for a larger file the rows are estimated from this part. Tables
# are slower to read.
READ = 256_000_000
READ_OF_TABLE = 32_000_000
PARTS = 32  # parts of a larger file of lines that are read for a sample, evenly apart
CIFAR_RECORD = 3073  # bytes of an image and its label in CIFAR-10's binary files
# The golden ratio's part of 2^32: its multiples are spread evenly, without a common rhythm with
# alternating rows.
_GOLDEN, _ALL = 2654435769, 2**32
_GAP = re.compile(r"\s*[\[,]\s*")  # before a row of a list


@dataclass(frozen=True)
class SampledRows:
    """count: of rows; rows: some of them, each a dict of columns, a text, or the size of a text in
    bytes. unit: their name in messages. about: whether the count is an estimate."""

    count: int
    rows: list[Any]
    unit: str
    about: bool = False

    @classmethod
    def of_part(cls, count: int, rows: list[Any], unit: str, read: int, size: int) -> Self:
        """Estimated from `count` rows in the `read` of `size` bytes."""
        if read:
            count = round(count * size / read)
        return cls(count, rows, unit, read < size)


def evenly(rows: Iterable[object]) -> tuple[int, list[Any]]:
    """The number of rows, and at most MOST of them, spread evenly."""
    kept: list[tuple[int, Any]] = []
    bound = _ALL
    count = 0
    for count, row in enumerate(rows, 1):
        place = count * _GOLDEN % _ALL
        if place < bound:
            kept.append((place, row))
            if len(kept) > MOST:
                bound //= 2
                kept = [placed_row for placed_row in kept if placed_row[0] < bound]
    return count, [row for _, row in kept]


@dataclass
class _Excerpt:
    """Lines of a file: about `most` bytes, from `parts` places evenly apart. read: the bytes of the
    lines so far."""

    file: Path
    most: int
    parts: int = 1
    read: int = 0

    def __iter__(self) -> Iterator[bytes]:
        size = self.file.stat().st_size
        with self.file.open("rb") as content:
            for part in range(self.parts):
                content.seek(part * size // self.parts)
                if part:
                    content.readline()  # the rest of a line
                end = self.read + self.most // self.parts
                while self.read < end and (line := content.readline()):
                    self.read += len(line)
                    yield line


def _json_lines(file: Path, columns: Iterable[str]) -> SampledRows:
    size = file.stat().st_size
    parts = 1
    if size > READ:
        parts = PARTS
    lines = _Excerpt(file, READ, parts)
    count, kept = evenly(line for line in lines if line.strip())
    rows = []
    for line in kept:
        with suppress(ValueError, RecursionError):  # the preparation of the rows reports them
            rows.append(json.loads(line.removeprefix(codecs.BOM_UTF8)))
    return SampledRows.of_part(count, reshaped(rows), "lines", lines.read, size)


def _json(file: Path, columns: Iterable[str]) -> SampledRows:
    size = file.stat().st_size
    read = 0
    decode = json.JSONDecoder().raw_decode
    with file.open("rb") as content:
        text = content.read(READ_OF_TABLE).removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    is_whole = size <= READ_OF_TABLE
    if not text.lstrip().startswith("["):
        return _whole(JsonFile(), file)

    def rows() -> Iterator[Any]:
        nonlocal read
        while gap := _GAP.match(text, read):
            start = gap.end()
            if start == len(text) or text[start] == "]":
                break
            try:
                row, read = decode(text, start)
            except ValueError:
                if is_whole:
                    raise
                break  # the last one of the part is incomplete
            yield row

    count, sampled = evenly(rows())
    kept = reshaped(sampled)
    if is_whole:
        return SampledRows(count, kept, "rows")
    return SampledRows.of_part(count, kept, "rows", read, len(text) * size // READ_OF_TABLE)


def _documents(file: Path) -> SampledRows:
    lines = _Excerpt(file, READ_OF_TABLE)
    # One character for each byte: the lengths are those in bytes.
    as_text = (line.decode("latin-1") for line in lines)
    documents = (text for _, text in texts_between(enumerate(as_text, 1), has_rules(file)))
    count, kept = evenly(sum(map(len, document)) for document in documents)
    return SampledRows.of_part(count, kept, "documents", lines.read, file.stat().st_size)


def _table(file: Path, columns: Iterable[str]) -> SampledRows:
    """Quoted text may contain line ends. An invalid byte spoils only its own row."""
    size = file.stat().st_size
    with open_table(file, errors="replace") as (content, layout):
        header = layout.header
        if header is None:
            return SampledRows(0, [], "rows")
        if header.cloze or header.stamped:
            return _whole(Table(), file)

        def lines() -> Iterator[str]:
            budget = READ_OF_TABLE
            for line in content:
                budget -= len(line)
                yield line
                if budget < 0:
                    return

        records = islice(csv.reader(lines(), delimiter=layout.separator), header.skipped, None)
        count, kept = evenly(record for record in records if any(map(str.strip, record)))
        read = content.buffer.tell()
    rows = [dict(zip(header.names, record, strict=False)) for record in kept]
    return SampledRows.of_part(count, reshaped(rows), "rows", read, size)


def _whole(reader: RowFile, path: Path) -> SampledRows:
    """All rows of a file that cannot be read in part."""
    good_rows = (row for _, row in reader.rows(path) if not isinstance(row, Bad))
    count, kept = evenly(good_rows)
    return SampledRows(count, kept, "rows")


def _parquet_rows(file: Path) -> int:
    with library("pyarrow.parquet", "Parquet").ParquetFile(file) as content:
        return int(content.metadata.num_rows)


def _parquet(file: Path, columns: Iterable[str]) -> SampledRows:
    with library("pyarrow.parquet", "Parquet").ParquetFile(file) as content:
        facts = content.metadata
        wanted = [name for name in columns if name in content.schema_arrow.names] or None
        groups = [index for index in range(facts.num_row_groups) if facts.row_group(index).num_rows]
        largest = max((facts.row_group(index).total_byte_size for index in groups), default=0)
        groups = groups[:: 1 + len(groups) * largest // READ_OF_TABLE]
        batches = content.iter_batches(batch_size=1024, row_groups=groups, columns=wanted)
        rows = _of_batches(batches, sum(facts.row_group(index).num_rows for index in groups))
        return SampledRows(facts.num_rows, rows, "rows")


def _of_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """At most about MOST of the `count` rows of Arrow's batches, evenly apart."""
    step = -(-count // MOST) | 1
    rows = []
    offset = 0
    for batch in batches:
        rows += batch.take(list(range(offset, batch.num_rows, step))).to_pylist()
        offset = (offset - batch.num_rows) % step
    return rows


def _saved(folder: Path, split: str | None, columns: Iterable[str]) -> SampledRows:
    library("pyarrow", "a folder of `datasets`")
    import pyarrow as pa

    if (folder / "dataset_dict.json").is_file():
        folder = folder / str(split)
    state = read_json(folder / "state.json") or {}
    batches = list[Any]()
    for data_file in state["_data_files"]:
        path = folder / data_file["filename"]
        batches += pa.ipc.open_stream(pa.memory_map(str(path)))
    count = sum(batch.num_rows for batch in batches)
    if batches:
        present = [name for name in columns if name in batches[0].schema.names]
        if present:
            batches = [batch.select(present) for batch in batches]
    return SampledRows(count, _of_batches(batches, count), "rows")


def _texts(folder: Path) -> SampledRows:
    count, kept = evenly(text.stat().st_size for text in text_files(folder))
    if not count:
        raise Unreadable(f"`{folder}` contains no texts")
    return SampledRows(count, kept, "files")


def image_count(folder: Path) -> SampledRows:
    """Images in class folders, Parquet files or CIFAR-10's binary files, without entries named
    `test…`."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "test"))]
    binary = [entry for entry in entries if entry.suffix == ".bin"]
    if binary:
        count = sum(entry.stat().st_size // CIFAR_RECORD for entry in binary)
        return SampledRows(count, [], "images")
    files = [entry for entry in entries if entry.suffix == ".parquet"]
    if files:
        return SampledRows(sum(map(_parquet_rows, files)), [], "images")
    count = 0
    for entry in entries:
        if entry.is_dir():
            images = (file for file in entry.rglob("*") if file.is_file())
            count += sum(not file.name.startswith(".") for file in images)
    if not count:
        raise Unreadable(f"`{folder}` contains no images")
    return SampledRows(count, [], "files in the folders")


# By the file's ending. columns: the ones to read, if possible; all if there are none.
SAMPLERS: dict[str, Callable[[Path, Iterable[str]], SampledRows]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    **dict.fromkeys((".csv", ".tsv"), _table),
    ".parquet": _parquet,
}


def sample(
    path: Path,
    split: str | None = None,
    columns: Iterable[str] = (),
    images: bool = False,
    sheet: str | None = None,
    text_column: str | None = None,
) -> SampledRows:
    """How many rows a file or folder has, and some of them, in about a second. columns: the ones to
    read, if possible; all if there are none. images: rows are images, which are only counted.
    sheet: of a spreadsheet; text_column: of plain text, whose .txt files are documents. Raises
    Unreadable."""
    try:
        if images and path.is_dir():
            return image_count(path)
        if images and path.suffix == ".parquet":
            return SampledRows(_parquet_rows(path), [], "rows")
        if path.is_dir():
            if saved_by_datasets(path):
                return _saved(path, split, columns)
            if text_column and text_files(path):
                return _texts(path)
        suffix = ending_of(path)
        if is_text_file(path) and text_column and path.exists():
            return _documents(path)
        reader = reader_of(path, split, text_column, sheet)
        if reader and path.is_file() and chat_of(path):
            return _whole(reader, path)
        sampler = SAMPLERS.get(suffix)
        if sampler and path.is_file():
            return sampler(path, columns)
        if reader and path.exists():
            return _whole(reader, path)
    except Unreadable as error:
        if error.severity == "note":
            raise Unreadable(f"{error}: {error.hint}") from None
        raise Unreadable(str(error)) from None
    except Stop as stop:
        raise Unreadable(str(stop).split("\n")[0].rstrip(".")) from None
    except OSError as error:
        raise Unreadable(f"`{path}` cannot be read: {error.strerror or 'it is damaged'}") from None
    except Exception:  # each library raises its own error for a broken file
        raise Unreadable(f"`{path}` is not valid for its file extension") from None
    if path.exists():
        raise Unreadable(f"`{path}` is not a data file")
    raise Unreadable(f"the data file `{path}` does not exist")
