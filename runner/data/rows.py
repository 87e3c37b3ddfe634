"""Rows of a data file, a folder or a hub dataset: columns, and all rows. Of the readers this module
has those of Parquet, folders and archives."""

import csv
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, count, islice, pairwise
from pathlib import Path
from typing import Any

from runner.data import chat_logs, data_sets, feeds, mail_boxes, row_files, spreadsheets
from runner.data.archives import MEDIA, is_packed, unpacked
from runner.data.reshaping import Reshaping
from runner.data.row_files import (
    Bad,
    DataRow,
    FilePart,
    Numbered,
    RowFile,
    Unreadable,
    ending_of,
    library,
)
from runner.data.table_layout import encoding_of
from runner.tools import packaged
from runner.tools.files import (
    SUBTITLES,
    TEXTS,
    is_hidden,
    read_json,
    saved_by_datasets,
    text_files,
)
from runner.tools.problem import Stop, did_you_mean, listed, plural


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


class ParquetFile(Reshaping, Parquet):
    """Rows of Parquet, as a model learns from them."""


class SheetFile(Reshaping, spreadsheets.Spreadsheet):
    """Rows of a spreadsheet, as a model learns from them."""


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
        refusal = refusal_of_folder(folder)
        if refusal:
            raise Unreadable(refusal[0], hint=refusal[1])
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
                text = row_files.plain_text(file.read_text(encoding=encoding_of(file)))
                yield number, {str(self.column): text}
            except UnicodeDecodeError:
                yield number, Bad(f"{file.relative_to(folder)} is not text in UTF-8")


class TableFolder(RowFile):
    """A folder of files with rows: the largest, and those with the same columns, sorted by name.
    Its rows are counted over all files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def columns(self, folder: Path) -> list[str]:
        largest = max(self.files, key=lambda file: file.stat().st_size)
        return columns(largest)

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        read_files = self._read_files(folder)
        all_rows = count(1)
        for file in read_files:
            reader = reader_of(file)
            assert reader is not None
            for number, row in reader.rows(file):
                if isinstance(row, Bad):
                    row = Bad(f"{file.relative_to(folder)}, line {number}: {row.reason}")
                yield next(all_rows), row

    def unread(self, folder: Path) -> list[str]:
        read_files = self._read_files(folder)
        return [str(file.relative_to(folder)) for file in self.files if file not in read_files]

    def _read_files(self, folder: Path) -> list[Path]:
        names = self.columns(folder)
        read_files = []
        for file in self.files:
            with suppress(Unreadable):
                if columns(file) == names:
                    read_files.append(file)
        return read_files


class ObjectFolder(RowFile):
    """A folder of JSON files with an object each, sorted by name; each is a row."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def columns(self, folder: Path) -> list[str]:
        return row_files.column_names(read_json(self.files[0]))

    def rows(self, folder: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        for number, file in enumerate(self.files, 1):
            row = read_json(file)
            if isinstance(row, dict):
                yield number, row
            else:
                yield number, Bad(f"{file.relative_to(folder)} is not an object of JSON")


def _are_objects(files: Sequence[Path]) -> bool:
    """Whether files are the rows of a folder, as notes that an app exports one by one: objects with
    texts of their own, which are longer than what is in their lists."""
    if len(files) < LEAST_OBJECTS or any(file.suffix.lower() != ".json" for file in files):
        return False
    rows = sum(_is_row(read_json(file)) for file in files[:SAMPLED_OBJECTS])
    return 2 * rows > min(len(files), SAMPLED_OBJECTS)


def _is_row(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    texts = [field for field in value.values() if isinstance(field, str)]
    lists = [field for field in value.values() if isinstance(field, list | dict)]
    return len(texts) > 1 and sum(map(len, texts)) > sum(len(str(field)) for field in lists)


# Fewer files are separate things; these many are looked at.
LEAST_OBJECTS, SAMPLED_OBJECTS = 3, 20


class Zipped(RowFile):
    """A ZIP file with a file of rows, several, or texts; or a gzip file. reader_of: gives the
    reader of what is inside; column: the name for texts."""

    def __init__(
        self, reader_of: Callable[[Path], RowFile | None], column: str | None = None
    ) -> None:
        self.reader_of = reader_of
        self.column = column

    def columns(self, file: Path) -> list[str]:
        inside, reader = self._inside(file)
        return reader.columns(inside)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        inside, reader = self._inside(file)
        yield from reader.rows(inside)

    def unread(self, file: Path) -> list[str]:
        inside, reader = self._inside(file)
        return reader.unread(inside)

    def _inside(self, file: Path) -> tuple[Path, RowFile]:
        inside = unpacked(file)
        reads_texts = bool(self.column) and is_archive_of_texts(file)
        if inside.is_dir() and not reads_texts and not chat_logs.chat_of(inside):
            refusal = refusal_of_folder(inside)
            if refusal:
                raise Unreadable(refusal[0], hint=refusal[1])
            _require_tables(inside)
            if not _tables_in(inside) and not saved_by_datasets(inside):
                raise Unreadable("it holds neither tables nor texts.", hint=UNPACK)
        reader = self.reader_of(inside)
        if reader is None:
            raise Unreadable(f"its file `{inside.name}` is no data file.", hint=READABLE)
        return inside, reader


def _require_tables(folder: Path) -> None:
    """Raises Unreadable if an archive has more texts than tables: as rows, the texts would be
    lost."""
    texts = texts_beside(folder)
    tables = _tables_in(folder)
    if len(texts) > len(tables):
        raise Unreadable(
            f"it holds {len(texts):,} texts and {len(tables):,} {plural('table', len(tables))}.",
            hint="Unpack it. Then name the folder to learn its texts, or one of its tables.",
        )


def texts_beside(folder: Path) -> list[Path]:
    """The texts of a folder that are no pages of a table's rows: Notion exports a table, and a
    folder with its name that has a page of each row."""
    tables = [table.stem for table in _tables_in(folder)]
    texts = []
    for text in text_files(folder):
        folders = [parent.name for parent in text.relative_to(folder).parents if parent.name]
        if not any(_has_pages_of(table, name) for table in tables for name in folders):
            texts.append(text)
    return texts


def _has_pages_of(table: str, folder: str) -> bool:
    """Whether a folder has the pages of a table, by their names without ending. Notion adds an
    identifier to some names."""
    return table.removesuffix(ALL_ROWS) == folder or table.startswith(f"{folder} ")


def holds_texts(folder: Path) -> bool:
    """Whether a folder has texts to learn rather than tables."""
    texts = texts_beside(folder)
    return bool(texts) and len(texts) > len(_tables_in(folder))


def is_archive_of_texts(file: Path) -> bool:
    """Whether a file is a ZIP file with texts, and without tables."""
    if not is_packed(file) or not file.is_file():
        return False
    try:
        inside = unpacked(file)
    except Unreadable:
        return False
    return inside.is_dir() and bool(text_files(inside)) and not _tables_in(inside)


def refusal_of_folder(folder: Path) -> tuple[str, str] | None:
    """What a folder holds instead of rows and texts, and the way out; None for another folder."""
    if text_files(folder) or _tables_in(folder):
        return None
    documents = documents_in(folder)
    if not documents:
        return None
    ending = max(documents, key=lambda ending: len(documents[ending]))
    kind = WITHOUT_ROWS[ending]
    count = len(documents[ending])
    of_ending = f"{count:,} {plural('file', count)} ending in {ending}"
    return f"it holds {of_ending}, and {kind['holds']}.", f"For each file: {kind['way_out']}"


def documents_in(folder: Path) -> dict[str, list[Path]]:
    """The files below a folder that hold no rows, by their endings; without pictures, sound and
    video, and without the files that a program writes while it has another one open."""
    documents = dict[str, list[Path]]()
    for file in sorted(folder.rglob("*")):
        ending = file.suffix.lower()
        is_document = ending in WITHOUT_ROWS and ending not in SEEN_OR_HEARD
        is_lock = file.name.startswith(LOCK_OF_OFFICE)
        if is_document and not is_lock and file.is_file() and not is_hidden(file, folder):
            documents.setdefault(ending, []).append(file)
    return {ending: files for ending, files in documents.items() if ending not in SUBTITLES}


# Pictures and sounds are beside texts without being meant as one. So Word begins a lock's name.
SEEN_OR_HEARD = {*MEDIA} - {".pdf"}
LOCK_OF_OFFICE = "~$"

# What Notion adds to the name of a table that has all rows, beside one with those of a view.
ALL_ROWS = "_all"
UNPACK = "Unpack it, and open what it holds. Save questions and answers as CSV, and texts as .txt."
YAML = (".yaml", ".yml")
# By a file's ending, in lower case.
READERS: dict[str, RowFile] = {
    ".jsonl": chat_logs.JsonLinesFile(),
    ".json": chat_logs.JsonFile(),
    **dict.fromkeys(YAML, row_files.YamlList()),
    ".csv": chat_logs.TableFile(),
    ".tsv": chat_logs.TableFile(),
    **dict.fromkeys((*TEXTS, *SUBTITLES), chat_logs.TextFile()),
    ".parquet": ParquetFile(),
    **dict.fromkeys(spreadsheets.ENDINGS, SheetFile()),
    feeds.FEED_ENDING: feeds.Feed(),
    **dict.fromkeys(mail_boxes.ENDINGS, mail_boxes.MailBox()),
}
# Endings of files of which only some have rows.
SELDOM = (*SUBTITLES, feeds.FEED_ENDING, *mail_boxes.ENDINGS, ".gz")
ENDINGS = (*(ending for ending in READERS if ending not in SELDOM), ".zip")
READABLE = f"Its name must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}."
# What people name that holds no rows, by its ending.
WITHOUT_ROWS: dict[str, dict[str, str]] = {
    ending: kind
    for kind in packaged.toml(__file__, "without_rows.toml")["kinds"]
    for ending in kind["endings"]
}


def without_rows(file: Path) -> dict[str, str] | None:
    """What a file holds instead of rows, and the way out; None if it may have rows or texts.
    Subtitles have words if their times are read, XML has posts if it is a feed, and mails have
    questions if they quote the mails they answer."""
    kind = WITHOUT_ROWS.get(file.suffix.lower())
    has_words = file.suffix.lower() in SUBTITLES and row_files.holds_subtitles(file)
    if kind is None or file.is_dir() or has_words or feeds.is_feed(file) or is_packed(file):
        return None
    if file.suffix.lower() in mail_boxes.ENDINGS and mail_boxes.holds_replies(file):
        return None
    return kind


# Those whose first rows are read without the others, and without a library.
ROW_BY_ROW = (".jsonl", ".csv", ".tsv")
QUICK_BYTES = 10_000_000  # of a file that is read whole, in well under a second


def is_quick(file: Path) -> bool:
    """Whether the first rows of a file are read at once, so that a check can do it."""
    suffix = ending_of(file)
    if suffix in ROW_BY_ROW:
        return True
    whole = (".json", *YAML, *TEXTS, ".zip", *spreadsheets.ENDINGS, *SELDOM)
    return suffix in whole and file.stat().st_size < QUICK_BYTES


def reader_of(
    path: Path, split: str | None = None, column: str | None = None, sheet: str | None = None
) -> RowFile | None:
    """The reader of a file or folder, or None. split: of a folder with several; column: the name
    for its texts; sheet: of a spreadsheet."""
    suffix = ending_of(path)
    if path.is_dir():
        return _reader_of_folder(path, split, column)
    if is_packed(path):
        return Zipped(partial(reader_of, split=split, column=column, sheet=sheet), column)
    if suffix in (*TEXTS, *SUBTITLES) and column:
        return row_files.Documents(column)
    if suffix in spreadsheets.ENDINGS:
        return SheetFile(sheet)
    return READERS.get(suffix)


def _reader_of_folder(folder: Path, split: str | None, column: str | None) -> RowFile:
    if saved_by_datasets(folder):
        return SavedFolder(split)
    if column and text_files(folder):
        return TextFolder(column)
    if chat_logs.chat_of(folder):
        return chat_logs.ChatFolder()
    tables = _tables_in(folder)
    if _are_objects(tables):
        return ObjectFolder(tables)
    if tables:
        return TableFolder(tables)
    return TextFolder(column)


def _tables_in(folder: Path) -> list[Path]:
    """The files of rows below a folder that are no texts, sorted by name."""
    endings = READERS.keys() - {*TEXTS, *SELDOM, *YAML}  # YAML is rather a recipe
    tables = []
    for file in sorted(folder.rglob("*")):
        is_table = file.suffix.lower() in endings
        if is_table and file.is_file() and not is_hidden(file, folder):
            tables.append(file)
    names = {table.with_name(table.stem) for table in tables}
    whole_tables = []
    for table in tables:
        if table.with_name(f"{table.stem}{ALL_ROWS}") not in names:
            whole_tables.append(table)
    return whole_tables


def read(
    source: data_sets.DataSource,
    part: FilePart | None = None,
    *,
    column: str | None = None,
    stream: bool = False,
) -> Iterator[Numbered]:
    """Rows as (line, row), one at a time except for .json files. stream: whether rows from the hub
    are not saved on disk. column: the name for texts of a .txt file or a folder. Raises Stop if the
    file or the dataset cannot be read."""
    file = source.file
    if not file:
        with data_sets.from_hub(source, stream) as dataset:
            yield from enumerate(dataset, 1)
        return
    reader = reader_of(file, source.split, column, source.sheet)
    if not reader:
        raise Stop(f"`{file}` is not a readable data file.", READABLE)
    try:
        yield from reader.rows(file, part)
    except FileNotFoundError:
        raise Stop(f"The data file `{file}` does not exist.") from None
    except Unreadable as reason:
        raise Stop(f"`{file}` cannot be read: {reason}", reason.hint) from None
    except UnicodeDecodeError:
        raise Stop(
            f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8."
        ) from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def good(
    source: data_sets.DataSource, *, column: str | None = None, stream: bool = False
) -> Iterator[DataRow]:
    """The readable rows. column, stream: as for `read`."""
    numbered = read(source, column=column, stream=stream)
    return (row for _, row in numbered if not isinstance(row, Bad))


def first(
    file: Path,
    most: int | None,
    split: str | None = None,
    sheet: str | None = None,
    column: str | None = None,
) -> list[DataRow]:
    """The first readable rows of a file or folder, at most this many; all for None. column: as for
    `read`. Raises Stop if it cannot be read."""
    source = data_sets.DataSource(
        hub=None, revision=None, subset=None, split=split, sheet=sheet, path=str(file)
    )
    return list(islice(good(source, column=column), most))


def parts_of_file(file: Path, most: int | None, count: int) -> list[FilePart] | None:
    """The first `most` rows of a local file, all for None, in `count` parts of about equal size;
    None if it cannot be cut: a row of a CSV may continue on the next line, and JSON is one
    value."""
    reader = None
    if file.is_file():
        reader = reader_of(file)
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


def refusal_of_address(name: str) -> tuple[str, str] | None:
    """Why the address of a page is no data, and what to do; None for another name."""
    if not name.startswith(("http://", "https://")):
        return None
    return (
        f"`{name}` is an address, and its rows are not here.",
        "Download the file first; in Google Sheets, File › Download › CSV. Then name the file.",
    )


def hint_of_near_file(file: Path) -> str:
    """The beginning of a hint, with the file or folder beside a missing one whose name is nearest;
    empty without one."""
    if not file.parent.is_dir():
        return ""
    beside = [each.name for each in file.parent.iterdir() if not each.name.startswith(".")]
    return did_you_mean(file.name, beside)


def columns(file: Path, split: str | None = None, sheet: str | None = None) -> list[str]:
    """Column names of a data file, of a split of a folder that `datasets` has saved, or of a sheet
    of a spreadsheet. Raises Unreadable."""
    kind = without_rows(file)
    if kind:
        raise Unreadable(f"{kind['holds']}.", hint=kind["way_out"])
    reader = reader_of(file, split, sheet=sheet)
    if reader is None:
        raise Unreadable("its ending names no kind of data file.", hint=READABLE)
    try:
        return reader.columns(file)
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


def unread_tables(folder: Path) -> list[str]:
    """The tables of a folder whose texts are read."""
    return [str(table.relative_to(folder)) for table in _tables_in(folder)]


def unread_texts(file: Path) -> int:
    """How many texts a folder or an archive has beside the tables that are read."""
    with suppress(Unreadable, OSError):
        folder = file
        if is_packed(file):
            folder = unpacked(file)
        if folder.is_dir() and isinstance(reader_of(folder), TableFolder):
            return len(text_files(folder))
    return 0


def unread(file: Path) -> list[str]:
    """The sheets or files with tables that are not read, because their columns are others than
    those of the one that is read."""
    reader = reader_of(file)
    if reader is None:
        return []
    with suppress(Unreadable, OSError, UnicodeDecodeError, csv.Error):
        return reader.unread(file)
    return []
