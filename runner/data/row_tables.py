"""Files of rows that a library reads, Parquet and XLSX, and folders: what `datasets` has saved, texts, images."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from runner.data import data_sets, row_files
from runner.data.row_files import Bad, FilePart, Numbered, RowFile, SampledRows, Unreadable, evenly, nameless
from runner.tools import packaged
from runner.tools.files import TEXTS, read_json, saved_by_datasets, text_files
from runner.tools.names import listed
from runner.tools.problem import Stop

# Bytes of an image in CIFAR-10's binary files.
CIFAR_RECORD = 3073
_ROW = re.compile(rb"<row[ >]")


def _library(name: str, what: str) -> Any:
    """A library that only some files need, and that is slow to load."""
    try:
        return import_module(name)
    except ImportError:
        raise Unreadable(
            f"reading {what} needs {name.split('.')[0]}, which is not installed", "note", packaged.install("train")
        ) from None


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
        """Of a large one the first rows, because cells are slow to read."""
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
            raise Stop(
                f"`{file}` is not XLSX.", "Open it with the program that wrote it, and save it as CSV."
            ) from None
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
        """Of a part the rows of the row groups that begin in it, read by themselves and a batch at a time."""
        from pyarrow import parquet

        if part:
            with parquet.ParquetFile(file) as whole:
                starts = _starts_of_groups(whole.metadata)[:-1]
                groups = [index for index, start in enumerate(starts) if part.start <= start < part.end]
                rows = (row for batch in whole.iter_batches(1000, row_groups=groups) for row in batch.to_pylist())
                yield from enumerate(islice(rows, part.end - part.start), part.first)
            return
        from datasets import Dataset
        from datasets.exceptions import DatasetGenerationError

        if not file.is_file():
            raise FileNotFoundError(file)
        try:
            # The library takes a file of no rows for a broken one.
            if not parquet.read_metadata(file).num_rows:
                return
            yield from enumerate(Dataset.from_parquet(str(file)), 1)
        except (DatasetGenerationError, ValueError):
            raise Stop(
                f"`{file}` is not Parquet.", "Open it with the program that wrote it, and save it as CSV."
            ) from None

    def marks(self, file: Path, most: int | None, count: int) -> tuple[list[tuple[int, int]], int] | None:
        """Each part is whole row groups, so some are empty where there are fewer groups than parts."""
        from pyarrow import ArrowInvalid, parquet

        try:
            starts = _starts_of_groups(parquet.read_metadata(file))
        except (ArrowInvalid, OSError):
            return None
        whole = starts.pop()
        return [(start, start + 1) for start in starts], whole if most is None else min(whole, most)


def _starts_of_groups(facts: Any) -> list[int]:
    """The number of rows before each row group of a Parquet file, and at last of all."""
    return list(accumulate((facts.row_group(index).num_rows for index in range(facts.num_row_groups)), initial=0))


def _of_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """At most about MOST of the `count` rows of Arrow's batches, evenly apart."""
    step = -(-count // row_files.MOST) | 1
    rows, first = [], 0
    for batch in batches:
        rows += batch.take(list(range(first, batch.num_rows, step))).to_pylist()
        first = (first - batch.num_rows) % step
    return rows


def saved_columns(folder: Path, split: str | None) -> list[str]:
    """Those of a folder that `datasets` has saved."""
    if not saved_by_datasets(folder):
        raise Unreadable(
            "it is a folder that `datasets` has not saved.", hint="Name a file, or save it with `save_to_disk`."
        )
    splits = (read_json(folder / "dataset_dict.json") or {}).get("splits")
    if splits and split not in splits:
        raise Unreadable(f"it has no split `{split}`.", hint=f"Its splits are {listed(splits)}.")
    facts = read_json((folder / str(split) if splits else folder) / "dataset_info.json")
    if not facts or not facts.get("features"):
        raise Unreadable("its `dataset_info.json` names no columns.", hint="Save it again with `save_to_disk`.")
    return list(facts["features"])


def saved_sample(folder: Path, split: str | None, columns: Iterable[str]) -> SampledRows:
    """Of a folder that `datasets` has saved: Arrow streams, which `state.json` names."""
    _library("pyarrow", "a folder of `datasets`")
    import pyarrow as pa

    if (folder / "dataset_dict.json").is_file():
        folder = folder / str(split)
    names = [one["filename"] for one in (read_json(folder / "state.json") or {})["_data_files"]]
    batches = list(chain.from_iterable(pa.ipc.open_stream(pa.memory_map(str(folder / name))) for name in names))
    count = sum(batch.num_rows for batch in batches)
    wanted = [name for name in columns if batches and name in batches[0].schema.names]
    return SampledRows(count, _of_batches((each.select(wanted) if wanted else each for each in batches), count), "rows")


def saved_rows(folder: Path, split: str | None) -> Iterator[Numbered]:
    """Of a folder that `datasets` has saved, and of its split where it has several."""
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


def text_sample(folder: Path) -> SampledRows:
    """Texts of a folder, each file one document."""
    count, kept = evenly(text.stat().st_size for text in text_files(folder))
    if not count:
        raise Unreadable(f"`{folder}` holds no texts")
    return SampledRows(count, kept, "files")


def text_rows(folder: Path, column: str | None) -> Iterator[Numbered]:
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


def image_count(folder: Path) -> SampledRows:
    """Images in folders, one a class, in Parquet files, or in CIFAR-10's binary ones; those in `test…` are not trained on."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "test"))]
    if binary := [entry for entry in entries if entry.suffix == ".bin"]:
        return SampledRows(sum(entry.stat().st_size // CIFAR_RECORD for entry in binary), [], "images")
    if files := [entry for entry in entries if entry.suffix == ".parquet"]:
        return SampledRows(sum(map(Parquet().count, files)), [], "images")
    classes = (entry for entry in entries if entry.is_dir())
    count = sum(file.is_file() and not file.name.startswith(".") for entry in classes for file in entry.rglob("*"))
    if not count:
        raise Unreadable(f"`{folder}` holds no images")
    return SampledRows(count, [], "files in the folders")
