"""Files of rows, one class for each ending; here those of text files. Lines that are not rows are
always reported."""

import codecs
import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from runner.data.chat_texts import words_of_subtitles
from runner.data.clippings import are_clippings, texts_of_clippings
from runner.data.logged_turns import with_messages
from runner.data.row_lists import field_paths, holds_lists, list_of_rows
from runner.data.table_layout import (
    CARD_SIDES,
    SAMPLED_CHARACTERS,
    STAMP,
    Header,
    cards_of_cloze,
    encoding_of,
    is_filled,
    open_table,
    without_sounds,
)
from runner.tools import packaged
from runner.tools.files import once_per_file
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


# The lines in which the properties of a note end, and one of them: a name, an entry or a remark.
MOST_FRONT_LINES = 200
PROPERTY = re.compile(r"[\w. -]{1,60}(:(\s|$)|\s?=)|\s+\S|- |#|\[|\]")
# The line above properties, and those that may be below them.
FRONT_ENDS = {"---": ("---", "..."), "+++": ("+++",)}


# A line that separates texts, such as `* * *` or `---`, and how many of them are no chance.
RULE = re.compile(r"\s*(?:(?:[*_=~#•·–—-]\s*){3,}|⁂\s*)$")
LEAST_RULES = 4


class Bad(NamedTuple):
    """A line that is not a row, and why."""

    reason: str


# The lines of a workbook's further sheets are counted from multiples of this, so that each line has
# its sheet: Excel has at most 1,048,576 in one.
LINES_OF_SHEET = 10_000_000

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


def library(name: str, file_kind: str) -> Any:
    """A module of a library that only this kind of file needs. Raises Unreadable."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        reason = f"reading {file_kind} needs {package}, which is not installed"
        extra = packaged.bringing(package) or "train"
        raise Unreadable(reason, "note", packaged.remedy(extra)) from None


# What is before an object of a list in JSON, the first one and another.
_BEFORE_OBJECT = r"\s*\[\s*(?=\{)"
_NEXT_OBJECT = r"\s*,\s*(?=\{)"
# The first bytes of a workbook: of Excel since 2007 and LibreOffice, and of Excel before.
WORKBOOKS = {b"PK\x03\x04": ".xlsx", b"\xd0\xcf\x11\xe0": ".xls"}
OF_WORKBOOKS = (".xlsx", ".xls", ".ods", ".xlsm", ".xlsb")
OF_TABLES = (".csv", ".tsv")
# Other endings of the same content.
OTHER_ENDINGS = {".ndjson": ".jsonl", ".jsonlines": ".jsonl"}
# What begins a page or XML, behind the mark of UTF-8.
MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*<")


HEAD_BYTES = 100


def ending_of(file: Path) -> str:
    """A file's ending in lower case; where a table and a workbook are taken for each other, the one
    that its first bytes say."""
    ending = file.suffix.lower()
    if ending in (*OF_TABLES, *OF_WORKBOOKS) and file.is_file():
        return _ending_by_content(file)
    return OTHER_ENDINGS.get(ending, ending)


@once_per_file
def _ending_by_content(file: Path) -> str:
    ending = file.suffix.lower()
    with file.open("rb") as content:
        head = content.read(HEAD_BYTES)
    workbook = WORKBOOKS.get(head[:4])
    if ending in OF_TABLES:
        return workbook or ending
    if not head or workbook or MARKUP.match(head) or _holds_control(head):
        return ending
    with open_table(file, errors="replace") as (_, layout):
        return ".csv" if layout.is_certain else ending


def is_no_text(file: Path) -> bool:
    """Whether a file has bytes at its beginning that no text has, whatever its ending is."""
    with file.open("rb") as content:
        head = content.read(HEAD_BYTES)
    return _holds_control(head) and not encoding_of(file).startswith(("utf-16", "iso2022"))


def _holds_control(head: bytes) -> bool:
    """Whether a file begins with bytes that no text has; the zeros of UTF-16 are some of text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    return any(byte < 9 or 13 < byte < 32 for byte in head)


class RowFile:
    """How files of one ending, or folders of one kind, are read. Callers put a library's errors
    into words."""

    def columns(self, file: Path) -> list[str]:
        """The columns' names, from the first row. Raises Unreadable."""
        raise NotImplementedError

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """Every row, or those of a part. Raises Stop if the file does not have this form."""
        raise NotImplementedError

    def rows_of_beginning(self, file: Path, most: int) -> list[DataRow]:
        """The first rows, if they are found without reading all; else none."""
        return []

    def unread(self, file: Path) -> list[str]:
        """What the file or folder holds beside the rows that are read: other sheets, other files.
        Raises Unreadable."""
        return []

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
    if escaped and not is_encodable(json.dumps(row, ensure_ascii=False)):
        return Bad("half a character, an escape such as \\ud83d without its other half")
    return row


def is_encodable(text: str) -> bool:
    """Whether a text has no half characters, which no tokenizer accepts, and which stand for
    invalid bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _beginning(file: Path) -> str:
    """The beginning of a file of JSON. Raises Unreadable if it is empty."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        text = lines.read(FIRST_BYTES).lstrip()
    if not text:
        raise Unreadable("it is empty.")
    return text


def _first_columns(text: str) -> list[str]:
    """The columns of the row that begins a text. Raises Unreadable."""
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise Unreadable("its first row is not JSON.") from None
    return column_names(with_messages(row))


class JsonLines(RowFile):
    """Rows as objects of JSON, each on a line."""

    def columns(self, file: Path) -> list[str]:
        text = _beginning(file)
        if text.startswith("["):
            raise Unreadable(
                "it contains a list, not one object on each line.",
                hint="Such a file must end in .json.",
            )
        return _first_columns(text)

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
                if line.isspace():
                    continue
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, _of_line(line, quick)

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


class JsonList(RowFile):
    """Rows as a list of objects of JSON, alone or inside an object; or an object whose keys are
    questions, with a text as the answer of each."""

    def columns(self, file: Path) -> list[str]:
        text = _beginning(file)
        if text.startswith("[") and not text[1:].lstrip().startswith("["):
            names = _first_columns(text[max(0, text.find("{")) :])
            if not holds_lists(names):
                return names
        try:
            rows = list_of_rows(value_of_json(file.read_text(encoding="utf-8-sig")))
        except (ValueError, RecursionError):
            raise Unreadable("it is not JSON.", hint=LINES_OF_JSON) from None
        if not rows:
            raise Unreadable("it does not contain a list of rows.", hint=LINES_OF_JSON)
        return column_names(rows[0])

    def rows_of_beginning(self, file: Path, most: int) -> list[DataRow]:
        """Those of a plain list."""
        try:
            beginning = _beginning(file)
        except UnicodeDecodeError:
            return []  # `rows` names the rows with wrong bytes
        rows = _first_objects(beginning, most)
        if rows and holds_lists(column_names(with_messages(rows[0]))):
            return []
        return rows

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        try:
            text = file.read_text(encoding="utf-8-sig", errors=KEPT)
            rows = list_of_rows(value_of_json(text))
        except (ValueError, RecursionError) as error:
            raise Stop(
                f"`{file}` is not JSON, at line {getattr(error, 'lineno', '?')}.", LINES_OF_JSON
            ) from None
        if rows is None:
            raise Stop(f"`{file}` does not contain a list of rows.", "Write [ … ] around the rows.")
        broken = not is_encodable(text)
        escaped = broken or "\\u" in text
        for number, row in enumerate(rows, 1):
            parsed = _named(row, escaped)
            if broken and isinstance(row, dict) and isinstance(parsed, Bad):
                parsed = Bad(NOT_UTF8)
            yield number, parsed


def _first_objects(text: str, most: int) -> list[DataRow]:
    """The first objects of a list in JSON, as far as its beginning goes; none without a list."""
    decoder = json.JSONDecoder()
    objects = list[DataRow]()
    gap = re.match(_BEFORE_OBJECT, text)
    while gap and len(objects) < most:
        try:
            row, end = decoder.raw_decode(text, gap.end())
        except (ValueError, RecursionError):
            break
        objects.append(row)
        gap = re.compile(_NEXT_OBJECT).match(text, end)
    return objects


def value_of_json(text: str) -> object:
    """The value of a text in JSON; of one with several objects, one after another, their list.
    Raises ValueError of the first fault."""
    try:
        return json.loads(text)
    except ValueError as error:
        fault = error
    decoder = json.JSONDecoder()
    objects = []
    place = 0
    while place < len(text):
        try:
            entry, place = decoder.raw_decode(text, place)
        except ValueError:
            raise fault from None
        if not isinstance(entry, dict):
            raise fault
        objects.append(entry)
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
    return objects


class YamlList(RowFile):
    """Rows as a list of objects of YAML, each value as it is written."""

    def columns(self, file: Path) -> list[str]:
        rows = self._rows(file)
        if not rows:
            raise Unreadable("it does not contain a list of rows.", hint=AS_JSON)
        return column_names(rows[0])

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        for number, row in enumerate(self._rows(file) or (), 1):
            yield number, _named(row, escaped=True)

    def _rows(self, file: Path) -> list[Any] | None:
        import yaml  # few checks read such rows

        try:
            value = yaml.load(file.read_text(encoding="utf-8-sig"), yaml.CBaseLoader)
        except (yaml.YAMLError, RecursionError):
            raise Unreadable("it is not YAML.", hint=AS_JSON) from None
        return list_of_rows(value)


AS_JSON = "Save its rows as a list in JSON, or as a table in CSV."
LINES_OF_JSON = "A file with one object on each line must end in .jsonl."


def column_names(row: object) -> list[str]:
    """The columns of an object of JSON, those inside it by their paths. Raises Unreadable for
    anything else."""
    if not isinstance(row, dict):
        raise Unreadable("its first row is not an object with named columns.")
    return field_paths(row)


def front_lines(lines: Sequence[str]) -> int:
    """How many lines at the beginning of a note are its properties, as Obsidian and blogs write
    them in YAML, and Hugo in TOML; 0 without any."""
    if not lines:
        return 0
    ends = FRONT_ENDS.get(lines[0].strip("\ufeff \t\r\n"), ())
    if not ends:
        return 0
    for number, line in enumerate(lines[1:], 2):
        if line.strip() in ends:
            return number
        if line.strip() and not PROPERTY.match(line):
            return 0
    return 0


def plain_text(text: str) -> str:
    """The words of a text, without the properties of a note, the times of subtitles, and the books
    of clippings."""
    lines = text.splitlines(keepends=True)
    words = words_of_subtitles(lines)
    if words:
        return "\n".join(words)
    if are_clippings(lines):
        return "\n\n".join(text for _, text in texts_of_clippings(lines))
    return "".join(lines[front_lines(lines[:MOST_FRONT_LINES]) :])


@once_per_file
def holds_clippings(file: Path) -> bool:
    """Whether a text file is Kindle's list of clippings."""
    with file.open(encoding=encoding_of(file), errors=KEPT) as lines:
        return are_clippings(list(islice(lines, MOST_FRONT_LINES)))


@once_per_file
def holds_subtitles(file: Path) -> bool:
    """Whether a file begins with subtitles that can be read."""
    with file.open(encoding=encoding_of(file), errors=KEPT) as lines:
        return bool(words_of_subtitles(lines.read(SAMPLED_CHARACTERS).split("\n")))


def texts_between(
    numbered_lines: Iterable[tuple[int, str]], by_rules: bool
) -> Iterator[tuple[int, list[str]]]:
    """The lines of each text of a file, and the number of the first one. by_rules: whether lines
    such as `* * *` separate the texts; else empty lines do. A rule is never a text."""
    text_lines = list[str]()
    first_number = 0
    is_after_gap = True
    for number, line in numbered_lines:
        is_gap = not line.strip()
        is_rule = is_after_gap and RULE.match(line) is not None
        if is_rule or (is_gap and not by_rules):
            if text_lines:
                yield first_number, text_lines
            text_lines = []
        elif text_lines or not is_gap:
            if not text_lines:
                first_number = number
            text_lines.append(line)
        is_after_gap = is_gap or is_rule
    if text_lines:
        yield first_number, text_lines


@once_per_file
def has_rules(file: Path) -> bool:
    """Whether lines such as `* * *` separate the texts of a file, because it has several."""
    with file.open(encoding=encoding_of(file), errors=KEPT) as lines:
        beginning = lines.read(SAMPLED_CHARACTERS).split("\n")
    rules = 0
    for before, line in pairwise(["", *beginning]):
        rules += not before.strip() and RULE.match(line) is not None
    return rules >= LEAST_RULES


class Documents(RowFile):
    """Documents of a text file, separated by empty lines or by rules, each with its first line's
    number. column: of their text."""

    def __init__(self, column: str | None) -> None:
        self.column = str(column)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        with file.open(encoding=encoding_of(file), errors=KEPT) as lines:
            first_lines = list(islice(lines, MOST_FRONT_LINES))
            words = words_of_subtitles(first_lines)
            if words:
                text = "\n".join(words_of_subtitles([*first_lines, *lines]))
                if is_encodable(text):
                    yield 1, {self.column: text}
                else:
                    yield 1, Bad(NOT_UTF8)
                return
            if are_clippings(first_lines):
                for number, text in texts_of_clippings(chain(first_lines, lines)):
                    yield number, {self.column: text} if is_encodable(text) else Bad(NOT_UTF8)
                return
            above = front_lines(first_lines)
            numbered_lines = enumerate(chain(first_lines[above:], lines), above + 1)
            for first_number, text_lines in texts_between(numbered_lines, has_rules(file)):
                text = "".join(text_lines).rstrip("\n")
                yield first_number, {self.column: text} if is_encodable(text) else Bad(NOT_UTF8)


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
            line = next(self._lines).replace("\0", "")  # as some old programs fill cells
        self.taken.append(line)
        self.number += 1
        self._size += len(line)
        if self._size > LONGEST_RECORD and len(self.taken) > 1:
            raise csv.Error(f"a row of more than {LONGEST_RECORD:,} characters")
        return line

    def give_back(self, count: int) -> None:
        self._again.extendleft(reversed(self.taken[-count:]))
        self.number -= count


def with_continued_answers(numbered: Iterable[Numbered], continued: str) -> Iterator[Numbered]:
    """The rows of a table, each with what the lines after it add to its answer. continued: the
    column of answers; empty if no line does."""
    if not continued:
        yield from numbered
        return
    waiting: tuple[int, DataRow] | None = None
    for number, row in numbered:
        if waiting and not isinstance(row, Bad) and _continues(row, continued):
            answer = f"{waiting[1][continued] or ''}\n{row[continued]}".strip()
            waiting = waiting[0], {**waiting[1], continued: answer}
            continue
        if waiting:
            yield waiting
            waiting = None
        if isinstance(row, Bad):
            yield number, row
        else:
            waiting = number, row
    if waiting:
        yield waiting


def _continues(row: DataRow, continued: str) -> bool:
    """Whether a row has an answer alone."""
    return [name for name, cell in row.items() if is_filled(cell)] == [continued]


def with_cards(numbered: Iterable[Numbered], header: Header) -> Iterator[Numbered]:
    """The rows of a table; of one with hidden words a row for each card, with its question and
    answer. Stamps before comments are left out."""
    if not header.cloze and not header.stamped:
        yield from numbered
        return
    question_column, answer_column = CARD_SIDES
    for number, row in numbered:
        if isinstance(row, Bad):
            yield number, row
            continue
        plain_row = {**row}
        for name in header.stamped:
            plain_row[name] = STAMP.sub("", plain_row[name], count=1)
        if not header.cloze:
            yield number, plain_row
            continue
        cards = cards_of_cloze(plain_row[header.cloze]) or [(plain_row[header.cloze], "")]
        for question, answer in cards:
            yield number, {**plain_row, question_column: question, answer_column: answer}


class Table(RowFile):
    """Rows below the line with the names of the columns, CSV or TSV."""

    def columns(self, file: Path) -> list[str]:
        with open_table(file) as (_, layout):
            header = _required(layout.header)
        if not header.cloze:
            return list(header.names)
        return [*(name for name in header.names if name not in CARD_SIDES), *CARD_SIDES]

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        """An open quote absorbs the following lines. Only its own line is lost; the others are read
        again."""
        with open_table(file, errors=KEPT) as (text, layout):
            if layout.header is None:
                return
            records = self._records(text, layout.separator, layout.header)
            whole_rows = with_continued_answers(records, layout.header.continued)
            yield from with_cards(whole_rows, layout.header)

    def _records(self, text: Iterable[str], separator: str, names: Header) -> Iterator[Numbered]:
        """The rows below the names; a line that repeats the names is none."""
        header = names.names
        header_line = list(header)
        lines = _Lines(text)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        above = names.skipped
        while True:
            lines.begin()
            number = lines.number + 1
            fields = [""]
            error = ""
            try:
                fields = without_sounds(next(reader))
            except StopIteration:
                return
            except csv.Error as reason:
                error = f"not CSV ({reason})"
            if not error and above:
                above -= 1
                continue
            fault = error
            # A table that is wider than its header has empty cells behind it.
            while len(fields) > len(header) and not fields[-1].strip():
                fields.pop()
            if not error and any(map(str.strip, fields)) and len(fields) != len(header):
                fault = f"{len(fields)} columns, but the first line names {len(header)}"
            if fault and _absorbs_rows(lines.taken, separator, header, bool(error)):
                lines.give_back(len(lines.taken) - 1)
                fault = "a quotation mark opens in it and does not close; close it, or write it twice if it belongs to the text"
            if not fault and not all(field.isascii() or is_encodable(field) for field in fields):
                fault = NOT_UTF8
            if fault:
                yield number, Bad(fault)
            elif fields != header_line and any(map(str.strip, fields)):
                yield number, dict(zip(header, fields, strict=True))


def _absorbs_rows(lines: list[str], separator: str, header: Sequence[str], is_broken: bool) -> bool:
    """Whether a faulty record of several lines begins with an open quote: it is not CSV, or its
    further lines are rows."""
    return len(lines) > 1 and (is_broken or _are_rows(lines[1:], separator, header))


def _are_rows(lines: list[str], separator: str, header: Sequence[str]) -> bool:
    try:
        return all(
            len(fields) == len(header)
            for fields in csv.reader(lines, delimiter=separator, strict=True)
        )
    except csv.Error:
        return False


def _required(header: Header | None) -> Header:
    if header is None:
        raise Unreadable("it is empty.", hint="Save it again with its rows.")
    return header
