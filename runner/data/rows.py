"""Rows of a data file, a folder or a hub dataset: columns, and all rows. Of the readers this module
has those that need a library, Parquet and XLSX, and those of folders."""

import csv
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

from runner.data import data_sets, row_files
from runner.data.row_files import Bad, DataRow, FilePart, Numbered, RowFile, Unreadable, nameless
from runner.tools import packaged
from runner.tools.files import TEXTS, read_json, saved_by_datasets, text_files
from runner.tools.problem import Stop, did_you_mean, listed


def library(name: str, file_kind: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        reason = f"reading {file_kind} needs {name.split('.')[0]}, which is not installed"
        raise Unreadable(reason, "note", packaged.install("train")) from None


class Sheet(RowFile):
    """The rows of the first sheet of a spreadsheet, below the one with the names of its columns."""

    def columns(self, file: Path) -> list[str]:
        load = library("openpyxl", "XLSX").load_workbook
        try:
            header = next(load(file, read_only=True).worksheets[0].iter_rows(values_only=True), ())
        except Exception:
            raise Unreadable("it is not XLSX.") from None
        return [str(name) for name in header if name is not None] or nameless()

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        from zipfile import BadZipFile

        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        try:
            book = load_workbook(file, read_only=True, data_only=True)
        except (InvalidFileException, BadZipFile, KeyError):
            raise Stop(
                f"`{file}` is not XLSX.",
                "Open it with the program that wrote it, and save it as CSV.",
            ) from None
        with closing(book):
            header: tuple[Any, ...] = ()
            for number, fields in enumerate(book.worksheets[0].iter_rows(values_only=True), 1):
                if not header:
                    header = fields
                elif any(field is not None for field in fields):
                    pairs = zip(header, fields, strict=False)
                    yield number, {str(name): field for name, field in pairs if name is not None}


class Parquet(RowFile):
    def columns(self, file: Path) -> list[str]:
        parquet = library("pyarrow.parquet", "Parquet")
        try:
            return list(parquet.read_schema(file).names)
        except Exception:
            raise Unreadable("it is not Parquet.") from None

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """For a part, the rows of the row groups that begin in it."""
        from pyarrow import ArrowInvalid, parquet

        try:
            with parquet.ParquetFile(file) as content:
                *starts, row_count = _starts_of_groups(content.metadata)
                part = part or FilePart(0, row_count, 1)
                groups = []
                for index, start in enumerate(starts):
                    if part.start <= start < part.end:
                        groups.append(index)
                batches = content.iter_batches(1000, row_groups=groups)
                rows_of_part = islice(
                    (row for batch in batches for row in batch.to_pylist()), part.end - part.start
                )
                yield from enumerate(rows_of_part, part.first)
        except ArrowInvalid:
            raise Stop(
                f"`{file}` is not Parquet.",
                "Open it with the program that wrote it, and save it as CSV.",
            ) from None

    def marks(
        self, file: Path, most: int | None, count: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """Each part is whole row groups, so some are empty if there are fewer groups than parts."""
        from pyarrow import ArrowInvalid, parquet

        try:
            starts = _starts_of_groups(parquet.read_metadata(file))
        except (ArrowInvalid, OSError):
            return None
        row_count = starts.pop()
        return [(start, start + 1) for start in starts], row_count if most is None else min(
            row_count, most
        )


def _starts_of_groups(facts: Any) -> list[int]:
    """The number of rows before each row group of a Parquet file, and finally of all."""
    return list(
        accumulate(
            (facts.row_group(index).num_rows for index in range(facts.num_row_groups)), initial=0
        )
    )


class SavedFolder(RowFile):
    """A folder that `datasets` has saved, or one of its splits."""

    def __init__(self, split: str | None) -> None:
        self.split = split

    def columns(self, folder: Path) -> list[str]:
        splits = (read_json(folder / "dataset_dict.json") or {}).get("splits")
        if splits and self.split not in splits:
            raise Unreadable(
                f"it has no split `{self.split}`.", hint=f"Its splits are {listed(splits)}."
            )
        facts = read_json((folder / str(self.split) if splits else folder) / "dataset_info.json")
        if not facts or not facts.get("features"):
            raise Unreadable(
                "its `dataset_info.json` names no columns.",
                hint="Save it again with `save_to_disk`.",
            )
        return list(facts["features"])

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        from datasets import load_from_disk

        try:
            rows = load_from_disk(str(folder))
        except Exception as error:
            raise Stop(
                f"`{folder}` cannot be read: {data_sets.reason_of(error)}.",
                "Save it again with `save_to_disk`.",
            ) from None
        if isinstance(rows, dict):
            if self.split not in rows:
                raise Stop(
                    f"`{folder}` has no split `{self.split}`.",
                    f"It has {listed(rows)}; write one of them as `split`.",
                )
            rows = rows[self.split]
        yield from enumerate(rows, 1)


class TextFolder(RowFile):
    """Text files below a folder, each one document, sorted by name. column: the name of their
    text."""

    def __init__(self, column: str | None) -> None:
        self.column = column

    def columns(self, folder: Path) -> list[str]:
        hint = f"Name a file, save it with `save_to_disk`, or, for plain text, put files ending in {listed(TEXTS, 'or')} in it."
        raise Unreadable("it is a folder that `datasets` did not save.", hint=hint)

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        if self.column:
            files = text_files(folder)
        else:
            files = []
        if not files:
            if self.column:
                texts = f", or put files ending in {' or '.join(TEXTS)} in it"
            else:
                texts = ""
            raise Stop(
                f"`{folder}` is a folder without readable data.",
                f"Name a file in it. Or save it with the `save_to_disk` of `datasets`{texts}.",
            )
        for number, file in enumerate(files, 1):
            try:
                yield number, {str(self.column): file.read_text(encoding="utf-8-sig")}
            except UnicodeDecodeError:
                yield number, Bad(f"{file.relative_to(folder)} is not text in UTF-8")


READERS: dict[str, RowFile] = {
    ".jsonl": row_files.JsonLines(),
    ".json": row_files.JsonList(),
    ".csv": row_files.Table(),
    ".tsv": row_files.Table(),
    ".parquet": Parquet(),
    ".xlsx": Sheet(),
}
# What people name that holds no rows, by its ending.
WITHOUT_ROWS: dict[str, dict[str, str]] = {
    ending: kind
    for kind in packaged.toml(__file__, "without_rows.toml")["kinds"]
    for ending in kind["endings"]
}
# Those whose first rows are read without the others, and without a slow library.
ROW_BY_ROW = (".jsonl", ".csv", ".tsv")


def _reader(path: Path, split: str | None = None, column: str | None = None) -> RowFile | None:
    """The reader of a file or folder, or None. split: of a folder with several; column: the name
    for its texts."""
    if path.is_dir():
        if saved_by_datasets(path):
            return SavedFolder(split)
        return TextFolder(column)
    if path.suffix == ".txt":
        return row_files.Documents(column)
    return READERS.get(path.suffix)


def read(
    source: data_sets.DataSource,
    part: FilePart | None = None,
    *,
    column: str | None = None,
    stream: bool = False,
) -> Iterator[Numbered]:
    """Rows as (line, row), one at a time except for .json files. stream: whether rows from the hub
    are not saved on disk. column: the name for texts of a .txt file or a folder, which cannot be
    read without it. Raises Stop if the file or the dataset cannot be read."""
    file = source.file
    if not file:
        with data_sets.from_hub(source, stream) as dataset:
            yield from enumerate(dataset, 1)
        return
    reader = _reader(file, source.split, column)
    if not reader or (file.suffix == ".txt" and not column and not file.is_dir()):
        endings = [*READERS, *([".txt"] if column else [])]
        raise Stop(
            f"`{file}` is not a readable data file.",
            f"Its name must end in {', '.join(endings[:-1])} or {endings[-1]}.",
        )
    try:
        yield from reader.rows(file, part)
    except FileNotFoundError:
        raise Stop(f"The data file `{file}` does not exist.") from None
    except UnicodeDecodeError:
        raise Stop(
            f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8."
        ) from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def good(source: data_sets.DataSource, *, stream: bool = False) -> Iterator[DataRow]:
    """The readable rows."""
    return (row for _, row in read(source, stream=stream) if not isinstance(row, Bad))


def first(file: Path, most: int, split: str | None = None) -> list[DataRow]:
    """The first readable rows of a file or folder, at most this many. Raises Stop if it cannot be
    read."""
    source = data_sets.DataSource(hub=None, revision=None, subset=None, split=split, path=str(file))
    return list(islice(good(source), most))


def parts_of_file(file: Path, most: int | None, count: int) -> list[FilePart] | None:
    """The first `most` rows of a local file, all for None, in `count` parts of about equal size;
    None if it cannot be cut: a row of a CSV may continue on the next line, and JSON is one
    value."""
    if file.is_file():
        reader = READERS.get(file.suffix)
    else:
        reader = None
    if reader:
        cut = reader.marks(file, most, count)
    else:
        cut = None
    if cut is None:
        return None
    marks, end = cut
    marks = [*(mark for mark in marks if mark[0] < end), (end, 0)]
    # Each part ends at the first mark behind its share of the whole.
    ends = [bisect_left(marks, (-(-end * part // count), 0)) for part in range(count + 1)]
    parts = []
    for begin, after in pairwise(ends):
        parts.append(FilePart(marks[begin][0], marks[after][0], marks[begin][1]))
    return parts


def hint_of_near_file(file: Path) -> str:
    """The beginning of a hint, with the file or folder beside a missing one whose name is nearest;
    empty without one."""
    if not file.parent.is_dir():
        return ""
    beside = [each.name for each in file.parent.iterdir() if not each.name.startswith(".")]
    return did_you_mean(file.name, beside)


def columns(file: Path, split: str | None = None) -> list[str]:
    """Column names of a data file, or of a split of a folder that `datasets` has saved. Raises
    Unreadable."""
    without_rows = WITHOUT_ROWS.get(file.suffix.lower())
    if without_rows and not file.is_dir():
        raise Unreadable(f"{without_rows['holds']}.", hint=without_rows["way_out"])
    try:
        if file.is_dir():
            reader = _reader(file, split)
        else:
            reader = None
        return (reader or READERS.get(file.suffix, READERS[".jsonl"])).columns(file)
    except Unreadable as error:
        if error.severity == "note":
            raise Unreadable(
                f"{error}, so its columns cannot be checked.", error.severity, error.hint
            ) from None
        raise
    except (UnicodeDecodeError, csv.Error):
        hint = "Save it again with the encoding UTF-8; a spreadsheet calls that `CSV UTF-8`."
        raise Unreadable("it is not text in UTF-8.", hint=hint) from None
    except OSError as error:
        raise Unreadable(f"{error.strerror}.") from None
