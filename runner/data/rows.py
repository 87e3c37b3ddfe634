"""Rows of a data file, a folder or a hub dataset: one reader for whoever checks columns, counts rows, or reads all of them."""

import csv
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from runner.data import data_sets, row_tables
from runner.data.data_sets import DataSource
from runner.data.row_files import (
    Bad,
    DataRow,
    Documents,
    FilePart,
    JsonLines,
    JsonList,
    Numbered,
    RowFile,
    SampledRows,
    Table,
    Unreadable,
)
from runner.data.row_tables import Parquet, Sheet
from runner.tools.files import saved_by_datasets
from runner.tools.problem import Stop

READERS: dict[str, RowFile] = {
    ".jsonl": JsonLines(),
    ".json": JsonList(),
    ".csv": Table(),
    ".tsv": Table(),
    ".parquet": Parquet(),
    ".xlsx": Sheet(),
}
DOCUMENTS = Documents()
# The rows of a part, from (0 the first) and to before; None is the end.
Span = tuple[int, int | None]


def read(
    source: DataSource, part: FilePart | None = None, *, column: str | None = None, stream: bool = False
) -> Iterator[Numbered]:
    """Rows as (line, row). All but .json files come a row at a time, however large they are; from the hub they do where
    `stream` is set, and are else kept on disk. A folder is one that `datasets` has saved.
    part: only that of the file. column: what the documents of a .txt file, or a folder of such files, are called, which
    else cannot be read.

    Raises Stop where the file or the dataset cannot be read at all.
    """
    file = source.file
    if not file:
        yield from data_sets.hub_rows(source, stream)
        return
    if file.is_dir():
        saved = saved_by_datasets(file)
        yield from row_tables.saved_rows(file, source.split) if saved else row_tables.text_rows(file, column)
        return
    reader = READERS.get(file.suffix)
    if not reader and not (column and file.suffix == ".txt"):
        endings = [*READERS, *([".txt"] if column else [])]
        raise Stop(
            f"`{file}` is no data file that can be read.",
            f"Its name must end in {', '.join(endings[:-1])} or {endings[-1]}.",
        )
    try:
        yield from reader.rows(file, part) if reader else DOCUMENTS.documents(file, str(column))
    except FileNotFoundError:
        raise Stop(f"There is no data file `{file}`.") from None
    except UnicodeDecodeError:
        raise Stop(f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8.") from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def good(source: DataSource, *, stream: bool = False) -> Iterator[DataRow]:
    """The rows of those lines that are some, as `read` gives them."""
    return (row for _, row in read(source, stream=stream) if not isinstance(row, Bad))


def parts_of_file(file: Path, most: int | None, count: int) -> list[FilePart] | None:
    """The first `most` rows of a local file, all of them where None, in `count` parts of about equal size that can be read by
    themselves, one after the other the same rows as the whole; None where the kind of file has none: a line of a CSV may go on in
    the next, JSON is one value."""
    reader = READERS.get(file.suffix) if file.is_file() else None
    cut = reader.marks(file, most, count) if reader else None
    if cut is None:
        return None
    marks, end = cut
    ends = iter([*(place for place, _ in marks if place < end), end])
    begin, parts = (0, 1), []
    numbers = dict(marks)
    place = 0
    for part in range(1, count + 1):
        while place * count < end * part:
            place = next(ends)
        parts.append(FilePart(begin[0], place, begin[1]))
        begin = (place, numbers.get(place, 0))
    return parts


def spans(source: DataSource, most: int | None, count: int) -> list[Span]:
    """A file or folder that cannot be cut into parts, in `count` parts: the rows of each, from and to. It is parsed once to
    count them."""
    if count == 1:
        return [(0, most)]
    whole = sum(1 for _ in islice(read(source), most))
    return [(whole * part // count, whole * (part + 1) // count) for part in range(count)]


def columns(file: Path, split: str | None = None) -> list[str]:
    """Column names of a data file, of its first row alone, or of a split of a folder that `datasets` has saved.

    Raises Unreadable with the reason in plain words.
    """
    try:
        if file.is_dir():
            return row_tables.saved_columns(file, split)
        return READERS.get(file.suffix, READERS[".jsonl"]).columns(file)
    except Unreadable as error:
        if error.severity == "note":
            raise Unreadable(f"{error}, so its columns are not checked.", error.severity, error.hint) from None
        raise
    except (UnicodeDecodeError, csv.Error):
        raise Unreadable(
            "it is not text in UTF-8.",
            hint="Save it again with the encoding UTF-8; a spreadsheet calls that `CSV UTF-8`.",
        ) from None
    except OSError as error:
        raise Unreadable(f"{error.strerror}.") from None


def sample(path: Path, split: str | None = None, columns: Iterable[str] = (), images: bool = False) -> SampledRows:
    """How many rows there are in what the preparers read, and some of them from everywhere in it, in about a second. split: of a
    folder that `datasets` has saved. columns: those that are wanted of a file whose columns can be read alone; all where there are
    none. images: whether rows are images, which are only counted.

    Raises Unreadable where it cannot be read, or where a library for it is not installed.
    """
    try:
        if images and path.is_dir():
            return row_tables.image_count(path)
        if path.is_dir():
            saved = saved_by_datasets(path)
            return row_tables.saved_sample(path, split, columns) if saved else row_tables.text_sample(path)
        if images and path.suffix == ".parquet":
            return SampledRows(Parquet().count(path), [], "rows")
        reader = DOCUMENTS if path.suffix == ".txt" else READERS.get(path.suffix)
        if reader and path.is_file():
            return reader.sample(path, columns)
    except Unreadable as error:
        raise Unreadable(f"{error}: {error.hint}" if error.severity == "note" else str(error)) from None
    except OSError as error:
        raise Unreadable(f"`{path}` cannot be read: {error.strerror or 'it is damaged'}") from None
    except Exception:  # each library has its own for files that are none
        raise Unreadable(f"`{path}` does not hold what its name says") from None
    raise Unreadable(f"there is no data file `{path}`" if not path.exists() else f"`{path}` is no data file")
