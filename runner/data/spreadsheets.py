"""Rows of spreadsheets: of Excel, old and new, and of LibreOffice."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, time
from pathlib import Path
from typing import NamedTuple

from runner.data.columns import asks_and_answers, asks_and_answers_in_words
from runner.data.html_text import tables_of_html
from runner.data.row_files import (
    HEAD_BYTES,
    LINES_OF_SHEET,
    MARKUP,
    OF_WORKBOOKS,
    FilePart,
    Numbered,
    RowFile,
    Unreadable,
    library,
    with_continued_answers,
)
from runner.data.table_layout import (
    CARD_SIDES,
    Header,
    encoding_of,
    header_of,
    is_filled,
    labelled_records,
)
from runner.tools.files import once_per_file
from runner.tools.problem import Stop, listed

ENDINGS = OF_WORKBOOKS
NO_TABLE = "it has no sheet with a table: a line with names of columns, and rows below it."
SAVE_AGAIN = "Open it with the program that wrote it, and save it as CSV."


# Its name, and its lines of cells.
Sheet = tuple[str, Sequence[Sequence[object]]]


class SheetTable(NamedTuple):
    """The table of a sheet. records: every line of the sheet, from its first."""

    sheet: str
    header: Header
    records: Sequence[Sequence[object]]

    @property
    def row_count(self) -> int:
        return sum(any(map(is_filled, record)) for record in self.records[self.header.skipped :])


class Spreadsheet(RowFile):
    """The rows of a spreadsheet. sheet: the name of the one to read; without it, the largest table
    is read, of those with columns for questions and answers if there are some, and those of other
    sheets with the same columns."""

    def __init__(self, sheet: str | None = None) -> None:
        self.sheet = sheet

    def columns(self, file: Path) -> list[str]:
        tables = self.chosen(file)
        if not tables:
            if self.sheet:
                raise Unreadable(f"it has no sheet `{self.sheet}` with a table.")
            raise Unreadable(NO_TABLE, hint=SAVE_AGAIN)
        return list(tables[0].header.names)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        try:
            chosen = self.chosen(file)
        except Unreadable as reason:
            raise Stop(f"`{file}` cannot be read: {reason}", reason.hint) from None
        if not chosen and self.sheet:
            names = listed(table.sheet for table in tables_of(file)) or "none"
            raise Stop(
                f"`{file}` has no sheet `{self.sheet}` with a table.",
                f"Its sheets with a table are {names}; write one of them as `sheet`.",
            )
        for number, table in enumerate(chosen):
            numbered = _rows_of(table, number * LINES_OF_SHEET)
            yield from with_continued_answers(numbered, table.header.continued)

    def unread(self, file: Path) -> list[str]:
        chosen = self.chosen(file)
        return [table.sheet for table in tables_of(file) if table not in chosen]

    def chosen(self, file: Path) -> Sequence[SheetTable]:
        """The tables that are read. Raises Unreadable."""
        if self.sheet:
            return [table for table in tables_of(file) if table.sheet == self.sheet]
        return _usual_tables(file)


@once_per_file
def _usual_tables(file: Path) -> Sequence[SheetTable]:
    """The tables that are read if no sheet is named."""
    tables = tables_of(file)
    asking = [table for table in tables if asks_and_answers(table.header.names)]
    if not asking:
        asking = [table for table in tables if asks_and_answers_in_words(table.header.names)]
    largest = max(asking or tables, key=lambda table: table.row_count, default=None)
    if largest is None:
        return []
    return [table for table in tables if table.header.names == largest.header.names]


def line_in_sheet(file: Path, sheet: str | None, number: int) -> str:
    """The place of a row, after the word `line`. sheet: the one that is read, if it is chosen."""
    table_number, line = divmod(number, LINES_OF_SHEET)
    tables = Spreadsheet(sheet).chosen(file)
    if len(tables) <= max(1, table_number):
        return f"{line:,}"
    return f"{line:,} of `{tables[table_number].sheet}`"


def _rows_of(table: SheetTable, numbers_before: int) -> Iterator[Numbered]:
    """The rows below the names of a table; a line that repeats the names is none. numbers_before:
    of the sheets before it."""
    skipped = table.header.skipped
    names = table.header.names
    for number, record in enumerate(table.records[skipped:], skipped + 1):
        if any(map(is_filled, record)) and tuple(map(str, record[: len(names)])) != names:
            row = dict(zip(names, map(_value, record), strict=False))
            yield numbers_before + number, row


@once_per_file
def tables_of(file: Path) -> Sequence[SheetTable]:
    """The tables of the visible sheets, in their order. Raises Unreadable."""
    with file.open("rb") as content:
        head = content.read(HEAD_BYTES)
    if MARKUP.match(head):
        sheets = _sheets_in_marks(file)
    else:
        sheets = _sheets_of_workbook(file)
    tables = []
    for name, records in sheets:
        labelled = labelled_records(records)
        if labelled:
            tables.append(SheetTable(name, Header(CARD_SIDES, 0), labelled))
            continue
        header = header_of(records)
        if header:
            tables.append(SheetTable(name, header, records))
    with_rows = [table for table in tables if table.row_count]
    return with_rows or tables


def _sheets_in_marks(file: Path) -> Iterator[Sheet]:
    """The tables of a page in HTML, as many programs write them with the ending .xls, or of Excel's
    own XML of 2003."""
    text = file.read_text(encoding_of(file), errors="replace")
    for number, records in enumerate(tables_of_html(text), 1):
        yield f"table {number}", records


def _sheets_of_workbook(file: Path) -> Iterator[Sheet]:
    """The visible sheets of a spreadsheet. Raises Unreadable."""
    calamine = library("python_calamine", "spreadsheets")
    try:
        with file.open("rb") as content:  # whatever its ending is
            book = calamine.CalamineWorkbook.from_filelike(content)
    except FileNotFoundError:
        raise
    except Exception as error:  # of the library: kinds for each format, and for encrypted files
        if "assword" in str(error):
            raise Unreadable(
                "it is protected by a password.", hint="Save it without the password."
            ) from None
        raise Unreadable("it is not a spreadsheet.", hint=SAVE_AGAIN) from None
    for sheet in book.sheets_metadata:
        if sheet.visible != calamine.SheetVisibleEnum.Visible:
            continue
        records = list[list[object]]()
        with suppress(Exception):  # a sheet of charts has no cells
            records = book.get_sheet_by_name(sheet.name).to_python(skip_empty_area=False)
        yield sheet.name, records


def _value(cell: object) -> object:
    """A cell as Python writes it: None for an empty one, whole numbers without a fraction, and a
    date without a time if it has none."""
    if cell == "":
        return None
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date()
    return cell
