"""Files of rows, one class for each ending; here those of text files. Lines that are not rows are
always reported."""

import codecs
import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from runner.tools.files import table
from runner.tools.problem import Severity, Stop

FIRST_BYTES = (
    4_000_000  # bytes in which the first row of a file must end for its columns to be known
)
NOT_UTF8 = "bytes that are not UTF-8; save the file again with the encoding UTF-8"
KEPT = (
    "surrogateescape"  # wrong bytes are read as lone surrogates, so that their line can be reported
)
# The most characters of a table's row over several lines; beyond them, a quote counts as not
# closed.
LONGEST_RECORD = 2**20


class Bad(NamedTuple):
    """A line that is not a row, and why."""

    reason: str


DataRow = Mapping[str, Any]  # a row of a person's data, by column
Numbered = tuple[int, DataRow | Bad]


class FilePart(NamedTuple):
    """A part of a file, from start up to end (exclusive): bytes of a file of lines, or rows of a
    Parquet file. first: the number of its first row, from 1."""

    start: int
    end: int
    first: int


class Unreadable(Exception):
    """Why columns cannot be read, or rows cannot be counted. severity: `note` if only a library is
    missing."""

    def __init__(
        self,
        reason: str,
        severity: Severity = "error",
        hint: str = "Open it, and compare its first line with its file extension.",
    ) -> None:
        super().__init__(reason)
        self.severity = severity
        self.hint = hint


class RowFile:
    """How files of one ending, or folders of one kind, are read. Callers put a library's errors
    into words."""

    def columns(self, file: Path) -> list[str]:
        """The columns' names, from the first row. Raises Unreadable."""
        raise NotImplementedError

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """Every row, or those of a part. Raises Stop if the file does not have this form."""
        raise NotImplementedError

    def marks(
        self, file: Path, most: int | None, count: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """Where the file can be cut, as (place, number of the row there), close enough for `count`
        parts, and where its first `most` rows end; None if it cannot be cut."""
        return None


def _named(row: object, escaped: bool) -> DataRow | Bad:
    """A row of JSON, or why it is not one. escaped: whether it may contain half a character
    (`\\ud83d` alone), which no tokenizer accepts."""
    if not isinstance(row, dict):
        return Bad("not an object with named columns")
    if escaped and not _whole(json.dumps(row, ensure_ascii=False)):
        return Bad("half a character, an escape such as \\ud83d without its other half")
    return row


def _whole(text: str) -> bool:
    """Whether a text has no lone surrogates, which replace invalid bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Json(RowFile):
    """Rows as objects of JSON. in_list: whether they are in a list, else in lines."""

    in_list: bool

    def columns(self, file: Path) -> list[str]:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            text = lines.read(FIRST_BYTES).lstrip()
        if not text:
            raise Unreadable("it is empty.")
        if self.in_list and not text.startswith("["):
            hint = "A file with one object on each line must end in .jsonl."
            raise Unreadable("it does not contain a list of rows.", hint=hint)
        if not self.in_list and text.startswith("["):
            raise Unreadable(
                "it contains a list, not one object on each line.",
                hint="Such a file must end in .json.",
            )
        try:
            row, _ = json.JSONDecoder().raw_decode(
                text, max(0, text.find("{")) if self.in_list else 0
            )
        except (ValueError, RecursionError):
            raise Unreadable("its first row is not JSON.") from None
        if not isinstance(row, dict):
            raise Unreadable("its first row is not an object with named columns.")
        return list(row)


class JsonLines(Json):
    in_list = False

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        quick: Callable[[bytes], Any] | None = None
        with suppress(ImportError):
            import orjson

            quick = orjson.loads
        with file.open("rb") as lines:
            part = part or FilePart(0, file.stat().st_size, 1)
            lines.seek(part.start)
            remaining = part.end - part.start
            for number, line in enumerate(lines, part.first):
                if remaining <= 0:
                    break
                remaining -= len(line)
                if not line.isspace():
                    yield (
                        number,
                        _of_line(
                            line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, quick
                        ),
                    )

    def marks(
        self, file: Path, most: int | None, count: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """Counts lines without parsing them, so that each part has their numbers."""
        size = file.stat().st_size
        if count == 1 and most is None:
            return [(0, 1)], size
        marks = [(0, 1)]
        place = 0
        rows = 0
        apart = size // (100 * count)
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 2):
                rows += bool(line.strip())
                if most is not None and rows > most:
                    break
                place += len(line)
                if place - marks[-1][0] > apart:
                    marks.append((place, number))
        return marks, place


def _of_line(line: bytes, quick: Callable[[bytes], object] | None) -> DataRow | Bad:
    """The row of a line of JSON. quick: orjson's reader, if it is installed."""
    try:
        row = quick(line) if quick else None
        if type(row) is dict and _exact(row.values()):
            return row
    except (ValueError, RecursionError):
        pass  # The standard library reports the error, or accepts the line, for example NaN.
    try:
        return _named(json.loads(line.decode()), escaped=b"\\u" in line)
    except UnicodeDecodeError as error:
        return Bad(f"byte {error.start + 1} of the line begins {NOT_UTF8}")
    except (ValueError, RecursionError) as error:
        return Bad(f"not JSON ({getattr(error, 'msg', 'nested too deep')})")


def _exact(values: Iterable[object]) -> bool:
    """Whether values are those of the standard library: orjson makes floats of whole numbers beyond
    64 bits."""
    for value in values:
        if isinstance(value, str):
            continue
        if isinstance(value, float):
            if abs(value) >= 2**63:
                return False
        elif isinstance(value, dict | list) and not _exact(
            value.values() if isinstance(value, dict) else value
        ):
            return False
    return True


class JsonList(Json):
    in_list = True

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        try:
            text = file.read_text(encoding="utf-8-sig", errors=KEPT)
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Stop(
                f"`{file}` is not JSON, at line {getattr(error, 'lineno', '?')}.",
                "A file with one object on each line must end in .jsonl.",
            ) from None
        if not isinstance(rows, list):
            raise Stop(f"`{file}` does not contain a list of rows.", "Write [ … ] around the rows.")
        broken = not _whole(text)
        escaped = broken or "\\u" in text
        for number, row in enumerate(rows, 1):
            parsed = _named(row, escaped)
            yield (
                number,
                Bad(NOT_UTF8)
                if broken and isinstance(row, dict) and isinstance(parsed, Bad)
                else parsed,
            )


class Documents(RowFile):
    """Documents of a text file, separated by empty lines, each with its first line's number.
    column: of their text."""

    def __init__(self, column: str | None) -> None:
        self.column = str(column)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        with file.open(encoding="utf-8-sig", errors=KEPT) as lines:
            for empty, numbered in groupby(
                enumerate(lines, 1), lambda numbered_line: numbered_line[1].isspace()
            ):
                if not empty:
                    first_number, line = next(numbered)
                    text = "".join([line, *(line for _, line in numbered)]).rstrip("\n")
                    yield first_number, {self.column: text} if _whole(text) else Bad(NOT_UTF8)


class _Lines(Iterator[str]):
    """Lines of a table. number: of the last line, from 1. taken: the current record's lines, which
    can be returned."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._again = deque[str]()
        self.number = 0
        self.taken = list[str]()
        self._size = 0

    def begin(self) -> None:
        self.taken = []
        self._size = 0

    def __next__(self) -> str:
        if self._again:
            line = self._again.popleft()
        else:
            line = next(self._lines)
        self.taken.append(line)
        self.number += 1
        self._size += len(line)
        if self._size > LONGEST_RECORD and len(self.taken) > 1:
            raise csv.Error(f"a row of more than {LONGEST_RECORD:,} characters")
        return line

    def give_back(self, count: int) -> None:
        self._again.extendleft(reversed(self.taken[-count:]))
        self.number -= count


class Table(RowFile):
    """Rows below the line with the names of the columns, CSV or TSV."""

    def columns(self, file: Path) -> list[str]:
        with table(file) as (lines, separator):
            names = next(csv.reader(lines, delimiter=separator), None)
        return names or nameless()

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """An open quote absorbs the following lines. Only its own line is lost; the others are read
        again."""
        with table(file, errors=KEPT) as (text, separator):
            lines = _Lines(text)
            reader = csv.reader(lines, delimiter=separator, strict=True)
            header: list[str] = []
            while True:
                lines.begin()
                number = lines.number + 1
                fields = [""]
                error = ""
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as reason:
                    error = f"not CSV ({reason})"
                if not error and not header:
                    header = fields
                    continue
                fault = error
                if not error and len(fields) not in (0, len(header)):
                    fault = f"{len(fields)} columns, but the first line names {len(header)}"
                if fault and _absorbs_rows(lines.taken, separator, header, bool(error)):
                    lines.give_back(len(lines.taken) - 1)
                    fault = "a quotation mark opens in it and does not close; close it, or write it twice if it belongs to the text"
                if not fault and not all(field.isascii() or _whole(field) for field in fields):
                    fault = NOT_UTF8
                if fault:
                    yield number, Bad(fault)
                elif fields:
                    yield number, dict(zip(header, fields, strict=True))


def _absorbs_rows(lines: list[str], separator: str, header: list[str], is_broken: bool) -> bool:
    """Whether a faulty record of several lines begins with an open quote: it is not CSV, or its
    further lines are rows."""
    return len(lines) > 1 and (is_broken or _are_rows(lines[1:], separator, header))


def _are_rows(lines: list[str], separator: str, header: list[str]) -> bool:
    try:
        return all(
            len(fields) == len(header)
            for fields in csv.reader(lines, delimiter=separator, strict=True)
        )
    except csv.Error:
        return False


def nameless() -> list[str]:
    raise Unreadable("it has no first line with the names of its columns.")
