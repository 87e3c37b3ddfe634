"""Rows of a data file, a folder or a hub dataset: columns, counts, samples and all rows. Of the readers this module
has those that need a library, Parquet and XLSX, and those of folders."""

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from runner.data import data_sets, row_files
from runner.data.data_sets import DataSource
from runner.data.row_files import Bad, DataRow, FilePart, Numbered, RowFile, SampledRows, Unreadable, evenly, nameless
from runner.tools import packaged
from runner.tools.files import TEXTS, read_json, saved_by_datasets, text_files
from runner.tools.names import listed
from runner.tools.problem import Stop, worded

# Bytes of an image and its label in CIFAR-10's binary files.
CIFAR_RECORD = 3073
_ROW = re.compile(rb"<row[ >]")


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        reason = f"reading {what} needs {name.split('.')[0]}, which is not installed"
        raise Unreadable(reason, "note", packaged.install("train")) from None


class Sheet(RowFile):
    """The rows of the first sheet of a spreadsheet, below the one with the names of its columns."""

    def columns(self, file: Path) -> list[str]:
        load = _library("openpyxl", "XLSX").load_workbook
        try:
            first = next(load(file, read_only=True).worksheets[0].iter_rows(values_only=True), ())
        except Exception:
            raise Unreadable("it is not XLSX.") from None
        return [str(name) for name in first if name is not None] or nameless()

    def sample(self, file: Path, columns: Iterable[str]) -> SampledRows:
        """For a large sheet the first rows, because cells are slow to read."""
        _library("openpyxl", "XLSX")
        small = file.stat().st_size <= row_files.SMALL_SHEET
        numbered = list(islice(self.rows(file), None if small else row_files.MOST))
        count, kept = evenly(row for _, row in numbered)
        if small or count < row_files.MOST:
            return SampledRows(count, kept, "rows")
        from openpyxl import load_workbook

        with closing(load_workbook(file, read_only=True)) as book:
            sheet = book.worksheets[0]._worksheet_path
        with ZipFile(file) as files, files.open(sheet) as text:
            whole = sum(len(_ROW.findall(part)) for part in iter(lambda: text.read(2**20), b"")) - 1
        return SampledRows(round(whole * count / (numbered[-1][0] - 1)), kept, "rows", True)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        try:
            book = load_workbook(file, read_only=True, data_only=True)
        except (InvalidFileException, BadZipFile, KeyError):
            raise Stop(*worded("data.not-xlsx", file=file)) from None
        with closing(book):
            header: tuple[Any, ...] = ()
            for number, fields in enumerate(book.worksheets[0].iter_rows(values_only=True), 1):
                if not header:
                    header = fields
                elif any(field is not None for field in fields):
                    named = zip(header, fields, strict=False)
                    yield number, {str(name): field for name, field in named if name is not None}


class Parquet(RowFile):
    def columns(self, file: Path) -> list[str]:
        parquet = _library("pyarrow.parquet", "Parquet")
        try:
            return list(parquet.read_schema(file).names)
        except Exception:
            raise Unreadable("it is not Parquet.") from None

    def count(self, file: Path) -> int:
        with _library("pyarrow.parquet", "Parquet").ParquetFile(file) as content:
            return int(content.metadata.num_rows)

    def sample(self, file: Path, columns: Iterable[str]) -> SampledRows:
        with _library("pyarrow.parquet", "Parquet").ParquetFile(file) as content:
            facts = content.metadata
            wanted = [name for name in columns if name in content.schema_arrow.names] or None
            groups = [index for index in range(facts.num_row_groups) if facts.row_group(index).num_rows]
            largest = max((facts.row_group(index).total_byte_size for index in groups), default=0)
            groups = groups[:: 1 + len(groups) * largest // row_files.READ_OF_TABLE]
            batches = content.iter_batches(batch_size=1024, row_groups=groups, columns=wanted)
            rows = _of_batches(batches, sum(facts.row_group(index).num_rows for index in groups))
            return SampledRows(facts.num_rows, rows, "rows")

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """For a part, the rows of the row groups that begin in it."""
        from pyarrow import ArrowInvalid, parquet

        try:
            with parquet.ParquetFile(file) as content:
                *starts, whole = _starts_of_groups(content.metadata)
                part = part or FilePart(0, whole, 1)
                groups = [index for index, start in enumerate(starts) if part.start <= start < part.end]
                batches = content.iter_batches(1000, row_groups=groups)
                there = islice((row for batch in batches for row in batch.to_pylist()), part.end - part.start)
                yield from enumerate(there, part.first)
        except ArrowInvalid:
            raise Stop(*worded("data.not-parquet", file=file)) from None

    def marks(self, file: Path, most: int | None, count: int) -> tuple[list[tuple[int, int]], int] | None:
        """Each part is whole row groups, so some are empty if there are fewer groups than parts."""
        from pyarrow import ArrowInvalid, parquet

        try:
            starts = _starts_of_groups(parquet.read_metadata(file))
        except (ArrowInvalid, OSError):
            return None
        whole = starts.pop()
        return [(start, start + 1) for start in starts], whole if most is None else min(whole, most)


def _starts_of_groups(facts: Any) -> list[int]:
    """The number of rows before each row group of a Parquet file, and finally of all."""
    return list(accumulate((facts.row_group(index).num_rows for index in range(facts.num_row_groups)), initial=0))


def _of_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """At most about MOST of the `count` rows of Arrow's batches, evenly apart."""
    step = -(-count // row_files.MOST) | 1
    rows, first = [], 0
    for batch in batches:
        rows += batch.take(list(range(first, batch.num_rows, step))).to_pylist()
        first = (first - batch.num_rows) % step
    return rows


class SavedFolder(RowFile):
    """A folder that `datasets` has saved, or one of its splits."""

    def __init__(self, split: str | None) -> None:
        self.split = split

    def columns(self, folder: Path) -> list[str]:
        splits = (read_json(folder / "dataset_dict.json") or {}).get("splits")
        if splits and self.split not in splits:
            raise Unreadable(f"it has no split `{self.split}`.", hint=f"Its splits are {listed(splits)}.")
        facts = read_json((folder / str(self.split) if splits else folder) / "dataset_info.json")
        if not facts or not facts.get("features"):
            raise Unreadable("its `dataset_info.json` names no columns.", hint="Save it again with `save_to_disk`.")
        return list(facts["features"])

    def sample(self, folder: Path, columns: Iterable[str]) -> SampledRows:
        _library("pyarrow", "a folder of `datasets`")
        import pyarrow as pa

        if (folder / "dataset_dict.json").is_file():
            folder = folder / str(self.split)
        names = [one["filename"] for one in (read_json(folder / "state.json") or {})["_data_files"]]
        batches = list(chain.from_iterable(pa.ipc.open_stream(pa.memory_map(str(folder / name))) for name in names))
        count = sum(batch.num_rows for batch in batches)
        wanted = [name for name in columns if batches and name in batches[0].schema.names]
        selected = (each.select(wanted) if wanted else each for each in batches)
        return SampledRows(count, _of_batches(selected, count), "rows")

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        from datasets import load_from_disk

        try:
            rows = load_from_disk(str(folder))
        except Exception as error:
            raise Stop(*worded("data.unreadable", folder=folder, reason=data_sets.reason_of(error))) from None
        if isinstance(rows, dict):
            if self.split not in rows:
                raise Stop(*worded("data.no-split", folder=folder, split=self.split, rows=listed(rows)))
            rows = rows[self.split]
        yield from enumerate(rows, 1)


class TextFolder(RowFile):
    """Text files below a folder, each one document, sorted by name. column: the name of their text."""

    def __init__(self, column: str | None) -> None:
        self.column = column

    def columns(self, folder: Path) -> list[str]:
        hint = f"Name a file, save it with `save_to_disk`, or, for plain text, put files ending in {listed(TEXTS, 'or')} in it."
        raise Unreadable("it is a folder that `datasets` did not save.", hint=hint)

    def sample(self, folder: Path, columns: Iterable[str]) -> SampledRows:
        count, kept = evenly(text.stat().st_size for text in text_files(folder))
        if not count:
            raise Unreadable(f"`{folder}` contains no texts")
        return SampledRows(count, kept, "files")

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        files = text_files(folder) if self.column else []
        if not files:
            texts = f", or put files ending in {' or '.join(TEXTS)} in it" if self.column else ""
            raise Stop(*worded("data.folder-without-data", folder=folder, texts=texts))
        for number, file in enumerate(files, 1):
            try:
                yield number, {str(self.column): file.read_text(encoding="utf-8-sig")}
            except UnicodeDecodeError:
                yield number, Bad(f"{file.relative_to(folder)} is not text in UTF-8")


def image_count(folder: Path) -> SampledRows:
    """Images in class folders, Parquet files or CIFAR-10's binary files, without entries named `test…`."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "test"))]
    if binary := [entry for entry in entries if entry.suffix == ".bin"]:
        return SampledRows(sum(entry.stat().st_size // CIFAR_RECORD for entry in binary), [], "images")
    if files := [entry for entry in entries if entry.suffix == ".parquet"]:
        return SampledRows(sum(map(Parquet().count, files)), [], "images")
    classes = (entry for entry in entries if entry.is_dir())
    count = sum(file.is_file() and not file.name.startswith(".") for entry in classes for file in entry.rglob("*"))
    if not count:
        raise Unreadable(f"`{folder}` contains no images")
    return SampledRows(count, [], "files in the folders")


READERS: dict[str, RowFile] = {
    ".jsonl": row_files.JsonLines(),
    ".json": row_files.JsonList(),
    ".csv": row_files.Table(),
    ".tsv": row_files.Table(),
    ".parquet": Parquet(),
    ".xlsx": Sheet(),
}


def _reader(path: Path, split: str | None = None, column: str | None = None) -> RowFile | None:
    """The reader of a file or folder, or None. split: of a folder with several; column: the name for its texts."""
    if path.is_dir():
        return SavedFolder(split) if saved_by_datasets(path) else TextFolder(column)
    return row_files.Documents(column) if path.suffix == ".txt" else READERS.get(path.suffix)


def read(
    source: DataSource, part: FilePart | None = None, *, column: str | None = None, stream: bool = False
) -> Iterator[Numbered]:
    """Rows as (line, row), one at a time except for .json files. stream: whether rows from the hub are not saved on
    disk. column: the name for texts of a .txt file or a folder, which cannot be read without it. Raises Stop if the
    file or the dataset cannot be read."""
    file = source.file
    if not file:
        yield from data_sets.hub_rows(source, stream)
        return
    reader = _reader(file, source.split, column)
    if not reader or (file.suffix == ".txt" and not column and not file.is_dir()):
        endings = [*READERS, *([".txt"] if column else [])]
        raise Stop(*worded("data.not-readable", file=file, endings=", ".join(endings[:-1]), last=endings[-1]))
    try:
        yield from reader.rows(file, part)
    except FileNotFoundError:
        raise Stop(f"The data file `{file}` does not exist.") from None
    except UnicodeDecodeError:
        raise Stop(f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8.") from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def good(source: DataSource, *, stream: bool = False) -> Iterator[DataRow]:
    """The readable rows."""
    return (row for _, row in read(source, stream=stream) if not isinstance(row, Bad))


def parts_of_file(file: Path, most: int | None, count: int) -> list[FilePart] | None:
    """The first `most` rows of a local file, all for None, in `count` parts of about equal size; None if it cannot be
    cut: a row of a CSV may continue on the next line, and JSON is one value."""
    reader = READERS.get(file.suffix) if file.is_file() else None
    cut = reader.marks(file, most, count) if reader else None
    if cut is None:
        return None
    marks, end = cut
    ends = iter([*(place for place, _ in marks if place < end), end])
    begin, parts = (0, 1), []
    numbers, place = dict(marks), 0
    for part in range(1, count + 1):
        while place * count < end * part:
            place = next(ends)
        parts.append(FilePart(begin[0], place, begin[1]))
        begin = (place, numbers.get(place, 0))
    return parts


def columns(file: Path, split: str | None = None) -> list[str]:
    """Column names of a data file, or of a split of a folder that `datasets` has saved. Raises Unreadable."""
    try:
        reader = _reader(file, split) if file.is_dir() else None
        return (reader or READERS.get(file.suffix, READERS[".jsonl"])).columns(file)
    except Unreadable as error:
        if error.severity == "note":
            raise Unreadable(f"{error}, so its columns cannot be checked.", error.severity, error.hint) from None
        raise
    except (UnicodeDecodeError, csv.Error):
        hint = "Save it again with the encoding UTF-8; a spreadsheet calls that `CSV UTF-8`."
        raise Unreadable("it is not text in UTF-8.", hint=hint) from None
    except OSError as error:
        raise Unreadable(f"{error.strerror}.") from None


def sample(path: Path, split: str | None = None, columns: Iterable[str] = (), images: bool = False) -> SampledRows:
    """How many rows a file or folder has, and some of them, in about a second. columns: the ones to read, if possible;
    all if there are none. images: rows are images, which are only counted. Raises Unreadable."""
    try:
        if images and path.is_dir():
            return image_count(path)
        if images and path.suffix == ".parquet":
            return SampledRows(Parquet().count(path), [], "rows")
        if path.exists() and (reader := _reader(path, split)):
            return reader.sample(path, columns)
    except Unreadable as error:
        raise Unreadable(f"{error}: {error.hint}" if error.severity == "note" else str(error)) from None
    except OSError as error:
        raise Unreadable(f"`{path}` cannot be read: {error.strerror or 'it is damaged'}") from None
    except Exception:  # each library raises its own error for a broken file
        raise Unreadable(f"`{path}` is not valid for its file extension") from None
    raise Unreadable(f"the data file `{path}` does not exist" if not path.exists() else f"`{path}` is not a data file")
