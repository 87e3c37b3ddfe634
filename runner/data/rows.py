"""Rows of a data file or a hub dataset, each with its line number; a line that is no row is named, never lost."""

from __future__ import annotations

import codecs
import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

from runner.data import data_sets
from runner.data.data_sets import Source
from runner.tools.files import TEXTS, saved_by_datasets, table, text_files
from runner.tools.names import listed
from runner.tools.problem import Stop


@dataclass(frozen=True)
class Bad:
    """A line that is no row, and why."""

    reason: str


NOT_UTF8 = "bytes that are not UTF-8; save the file again with the encoding UTF-8"
# Wrong bytes are read as half characters, so that the line that has them can be named.
KEPT = "surrogateescape"
# Characters of a table's row that goes over several lines; behind so many a quote counts as not closed.
LONGEST_RECORD = 2**20

Numbered = tuple[int, dict[str, Any] | Bad]
# The rows of a part, from (0 the first) and to before; None is the end.
Span = tuple[int, int | None]


def read(
    source: Source, share: Share | None = None, *, column: str | None = None, stream: bool = False
) -> Iterator[Numbered]:
    """Rows as (line, row). All but .json files come a row at a time, however large they are; from the hub they do where
    `stream` is set, and are else kept on disk. A folder is one that `datasets` has saved.
    share: only that part of the file. column: what the documents of a .txt file, or a folder of such files, are called, which
    else cannot be read.

    Raises Stop where the file or the dataset cannot be read at all.
    """
    file = source.file
    if not file:
        yield from data_sets.hub_rows(source, stream)
        return
    if file.is_dir():
        yield from _saved(file, source.split) if saved_by_datasets(file) else _texts(file, column)
        return
    readers: dict[str, Callable[..., Iterator[Numbered]]] = {
        ".jsonl": _jsonl,
        ".json": _json,
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
        ".xlsx": _xlsx,
    }
    if column:
        readers[".txt"] = lambda file: _txt(file, column)
    reader = readers.get(file.suffix)
    if reader is None:
        raise Stop(
            f"`{file}` is no data file that can be read.",
            f"Its name must end in {', '.join(list(readers)[:-1])} or {list(readers)[-1]}.",
        )
    try:
        yield from reader(file, share) if share else reader(file)
    except FileNotFoundError:
        raise Stop(f"There is no data file `{file}`.") from None
    except UnicodeDecodeError:
        raise Stop(f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8.") from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def spans(source: Source, most: int | None, count: int) -> list[Span]:
    """A file or folder that cannot be cut into shares, in `count` parts: the rows of each, from and to. It is parsed once to
    count them."""
    if count == 1:
        return [(0, most)]
    whole = sum(1 for _ in islice(read(source), most))
    return [(whole * part // count, whole * (part + 1) // count) for part in range(count)]


def _jsonl(file: Path, share: Share | None = None) -> Iterator[Numbered]:
    quick = _quick()
    with file.open("rb") as lines:
        part = share or Share(0, file.stat().st_size, 1)
        lines.seek(part.start)
        left = part.end - part.start
        for number, line in enumerate(lines, part.first):
            if left <= 0:
                break
            left -= len(line)
            if not line.isspace():
                yield number, _of_line(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, quick)


def _quick() -> Callable[[bytes], Any]:
    """orjson's reader, which comes with what trains; without it, one that leaves every line to the standard library."""
    try:
        from orjson import loads
    except ImportError:
        return lambda line: None
    return cast(Callable[[bytes], Any], loads)


def _of_line(line: bytes, quick: Callable[[bytes], Any]) -> dict[str, Any] | Bad:
    try:
        row = quick(line)
        if type(row) is dict and _exact(row.values()):
            return row
    except (ValueError, RecursionError):
        pass  # The standard library says what is wrong, or takes it all the same: NaN, for one.
    try:
        return _named(json.loads(line.decode()), escaped=b"\\u" in line)
    except UnicodeDecodeError as error:
        return Bad(f"byte {error.start + 1} of the line begins {NOT_UTF8}")
    except (ValueError, RecursionError) as error:
        return Bad(f"not JSON ({getattr(error, 'msg', 'nested too deep')})")


def _exact(values: Iterable[Any]) -> bool:
    """Whether values are what the standard library reads: orjson makes floats of whole numbers beyond 64 bits."""
    for value in values:
        if isinstance(value, str):
            continue
        if isinstance(value, float):
            if abs(value) >= 2**63:
                return False
        elif isinstance(value, dict | list) and not _exact(value.values() if isinstance(value, dict) else value):
            return False
    return True


def _named(row: Any, escaped: bool) -> dict[str, Any] | Bad:
    """A row of JSON, or why it is none. escaped: whether it may hold half a character (`\\ud83d` alone), which JSON allows
    and no tokenizer takes."""
    if not isinstance(row, dict):
        return Bad("not an object with named columns")
    try:
        if escaped:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Bad("half a character in it, an escape such as \\ud83d without its other half")
    return row


def _txt(file: Path, column: str) -> Iterator[Numbered]:
    """Documents, with empty lines between them, each under the number of its first line."""
    with file.open(encoding="utf-8-sig", errors=KEPT) as lines:
        first = 0
        document: list[str] = []
        # An empty line ends the last one too.
        for number, line in enumerate(chain(lines, [""]), 1):
            if line.strip():
                first = first if document else number
                document.append(line)
            elif document:
                text = "".join(document).rstrip("\n")
                yield first, {column: text} if _whole(text) else Bad(NOT_UTF8)
                document = []


def _whole(text: str) -> bool:
    """Whether a text was read without bytes that are none; those stand in it as half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(file: Path) -> Iterator[Numbered]:
    try:
        text = file.read_text(encoding="utf-8-sig", errors=KEPT)
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Stop(
            f"`{file}` is not JSON, at line {getattr(error, 'lineno', '?')}.",
            "A file with one object a line must end in .jsonl.",
        ) from None
    if not isinstance(rows, list):
        raise Stop(f"`{file}` does not hold a list of rows.", "Write [ … ] around the rows.")
    broken = not _whole(text)
    escaped = broken or "\\u" in text
    for number, row in enumerate(rows, 1):
        named = _named(row, escaped)
        yield number, Bad(NOT_UTF8) if broken and isinstance(row, dict) and isinstance(named, Bad) else named


class _Lines:
    """Lines of a table, of which those of the record that is being read can be given back.

    number: of the last line that was given, from 1. taken: the record's lines.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._again = iter(lines), deque[str]()
        self.number, self.taken, self._size = 0, list[str](), 0

    def begin(self) -> None:
        self.taken, self._size = [], 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        self.number += 1
        self._size += len(line)
        if self._size > LONGEST_RECORD and len(self.taken) > 1:
            raise csv.Error(f"a row of more than {LONGEST_RECORD:,} characters")
        return line

    def give_back(self, count: int) -> None:
        self._again.extendleft(reversed(self.taken[-count:]))
        self.number -= count


def _csv(file: Path) -> Iterator[Numbered]:
    """Rows below the line with the names of the columns. A quote that is opened and not closed takes the lines behind it along,
    up to the next quote or the end: it costs its own line, and the others are read again."""
    with table(file, errors=KEPT) as (text, separator):
        lines = _Lines(text)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        header: list[str] = []
        while True:
            lines.begin()
            number, fields, reason = lines.number + 1, [""], ""
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                reason = f"not CSV ({error})"
            if not reason and not header:
                header = fields
                continue
            if not reason and len(fields) not in (0, len(header)):
                reason = f"{len(fields)} columns, and the first line names {len(header)}"
            behind = len(lines.taken) - 1
            if reason and behind and (reason.startswith("not CSV") or _rows(lines.taken[1:], separator, len(header))):
                lines.give_back(behind)
                reason = (
                    "a quote is opened in it and not closed; close it, or write it twice where it is part of a text"
                )
            if not reason and not all(field.isascii() or _whole(field) for field in fields):
                reason = NOT_UTF8
            if reason:
                yield number, Bad(reason)
            elif fields:
                yield number, dict(zip(header, fields, strict=True))


def _rows(lines: list[str], separator: str, columns: int) -> bool:
    """Whether lines are rows by themselves, all of them."""
    try:
        return all(len(fields) == columns for fields in csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error:
        return False


def _xlsx(file: Path) -> Iterator[Numbered]:
    """The rows of the first sheet, below the one with the names of its columns."""
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = load_workbook(file, read_only=True, data_only=True)
    except (InvalidFileException, BadZipFile, KeyError):
        raise Stop(f"`{file}` is not XLSX.", "Open it with the program that wrote it, and save it as CSV.") from None
    with closing(book):
        header: tuple[Any, ...] = ()
        for number, fields in enumerate(book.worksheets[0].iter_rows(values_only=True), 1):
            if not header:
                header = fields
            elif any(field is not None for field in fields):
                yield (
                    number,
                    {str(name): field for name, field in zip(header, fields, strict=False) if name is not None},
                )


def _saved(folder: Path, split: str | None) -> Iterator[Numbered]:
    """The rows of a folder that `datasets` has saved, and of its split where it has several."""
    from datasets import load_from_disk

    try:
        rows = load_from_disk(str(folder))
    except Exception as error:
        raise Stop(
            f"`{folder}` cannot be read: {data_sets.reason_of(error)}", "Save it again with `save_to_disk`."
        ) from None
    if isinstance(rows, dict):
        if split not in rows:
            raise Stop(f"`{folder}` has no split `{split}`.", f"It has {listed(rows)}; write one of them as `split`.")
        rows = rows[split]
    yield from enumerate(rows, 1)


def _texts(folder: Path, column: str | None) -> Iterator[Numbered]:
    """Text files below a folder, each one document, sorted by name."""
    files = text_files(folder) if column else []
    if not files:
        raise Stop(
            f"`{folder}` is a folder with no data that can be read.",
            "Name a file in it, or save it with the `save_to_disk` of `datasets`"
            + (f", or put files ending in {' or '.join(TEXTS)} in it." if column else "."),
        )
    for number, file in enumerate(files, 1):
        try:
            yield number, {str(column): file.read_text(encoding="utf-8-sig")}
        except UnicodeDecodeError:
            yield number, Bad(f"{file.relative_to(folder)} is not text in UTF-8")


def _parquet(file: Path, share: Share | None = None) -> Iterator[Numbered]:
    if share:
        yield from _groups(file, share)
        return
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError
    from pyarrow import parquet

    if not file.is_file():
        raise FileNotFoundError(file)
    try:
        # The library takes a file of no rows for a broken one.
        if not parquet.read_metadata(file).num_rows:
            return
        yield from enumerate(Dataset.from_parquet(str(file)), 1)
    except (DatasetGenerationError, ValueError):
        raise Stop(f"`{file}` is not Parquet.", "Open it with the program that wrote it, and save it as CSV.") from None


def _groups(file: Path, share: Share) -> Iterator[Numbered]:
    """The rows of the row groups that begin in the share, read by themselves and a batch at a time."""
    from pyarrow import parquet

    with parquet.ParquetFile(file) as whole:
        starts = starts_of_groups(whole.metadata)[:-1]
        groups = [index for index, start in enumerate(starts) if share.start <= start < share.end]
        rows = (row for batch in whole.iter_batches(1000, row_groups=groups) for row in batch.to_pylist())
        yield from enumerate(islice(rows, share.end - share.start), share.first)


@dataclass(frozen=True)
class Share:
    """A part of a file, from start to before end: bytes of a file of lines, rows of a Parquet file. first: the number of its
    first line or row, from 1."""

    start: int
    end: int
    first: int


def shares_of(file: Path, most: int | None, count: int) -> list[Share] | None:
    """The first `most` rows of a local file, all of them where None, in `count` parts that can be read by themselves, one
    after the other the same rows as the whole; None where the kind of file has none: a line of a CSV may go on in the next,
    JSON is one value.

    Lines are counted here, once, so that a part knows its numbers; nothing is parsed. Of a Parquet file each part is whole
    row groups, so some are empty where there are fewer groups than parts.
    """
    if not file.is_file():
        return None
    if file.suffix == ".jsonl":
        return _in_parts(*_marks_of_lines(file, count, most), count)
    return _shares_of_groups(file, count, most) if file.suffix == ".parquet" else None


def _in_parts(marks: list[tuple[int, int]], end: int, count: int) -> list[Share]:
    """Parts of about equal size that begin at marks, (place, number of the line or row there), and end at `end`."""
    ends = iter([*(place for place, _ in marks if place < end), end])
    begin, parts = (0, 1), []
    numbers = dict(marks)
    place = 0
    for part in range(1, count + 1):
        while place * count < end * part:
            place = next(ends)
        parts.append(Share(begin[0], place, begin[1]))
        begin = (place, numbers.get(place, 0))
    return parts


def _marks_of_lines(file: Path, count: int, most: int | None) -> tuple[list[tuple[int, int]], int]:
    """Where lines begin, (byte, number), close enough together to cut the file there, and where its first `most` rows end."""
    size = file.stat().st_size
    if count == 1 and most is None:
        return [(0, 1)], size
    marks, place, rows = [(0, 1)], 0, 0
    apart = size // (100 * count)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 2):
            if most is not None and (rows := rows + bool(line.strip())) > most:
                break
            place += len(line)
            if place - marks[-1][0] > apart:
                marks.append((place, number))
    return marks, place


def _shares_of_groups(file: Path, count: int, most: int | None) -> list[Share] | None:
    """Parts of a Parquet file; None where it is none, which whoever reads it will say."""
    from pyarrow import ArrowInvalid, parquet

    try:
        starts = starts_of_groups(parquet.read_metadata(file))
    except (ArrowInvalid, OSError):
        return None
    whole = starts.pop()
    return _in_parts([(start, start + 1) for start in starts], whole if most is None else min(whole, most), count)


def starts_of_groups(facts: Any) -> list[int]:
    """The number of rows before each row group of a Parquet file, and at last of all."""
    return list(accumulate((facts.row_group(index).num_rows for index in range(facts.num_row_groups)), initial=0))
