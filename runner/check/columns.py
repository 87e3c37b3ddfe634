"""The columns of a local data file, read from its first row alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from runner.tools import extras
from runner.tools.files import read_json, saved_by_datasets, table
from runner.tools.names import listed

FIRST_BYTES = 4_000_000
_JSON = json.JSONDecoder()


class Unreadable(Exception):
    """The file's columns cannot be read; `severity` is `note` where only a library for it is not installed.

    hint: what to do about it.
    """

    def __init__(
        self,
        reason: str,
        severity: str = "error",
        hint: str = "Open it and compare its first line with what its name says.",
    ) -> None:
        super().__init__(reason)
        self.severity = severity
        self.hint = hint


def of(file: Path, split: str | None = None) -> list[str]:
    """Column names of a data file, or of a split of a folder that `datasets` has saved.

    Raises Unreadable with the reason in plain words.
    """
    if file.is_dir():
        return _saved(file, split)
    if file.suffix == ".parquet":
        return _parquet(file)
    if file.suffix == ".xlsx":
        return _xlsx(file)
    try:
        if file.suffix in (".csv", ".tsv"):
            with table(file) as (lines, separator):
                header = next(csv.reader(lines, delimiter=separator), None)
            return header or _nameless()
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return _json(lines.read(FIRST_BYTES), file.suffix == ".json")
    except (UnicodeDecodeError, csv.Error):
        raise Unreadable(
            "it is not text in UTF-8.",
            hint="Save it again with the encoding UTF-8; a spreadsheet calls that `CSV UTF-8`.",
        ) from None
    except OSError as error:
        raise Unreadable(f"{error.strerror}.") from None


def _json(text: str, is_list: bool) -> list[str]:
    """is_list: whether the rows stand in one list, as in .json, and not one a line, as in .jsonl."""
    text = text.lstrip()
    if not text:
        raise Unreadable("it is empty.")
    if is_list and not text.startswith("["):
        raise Unreadable("it does not hold a list of rows.", hint="A file with one object a line must end in .jsonl.")
    if not is_list and text.startswith("["):
        raise Unreadable("it holds a list, and not one object a line.", hint="Such a file must end in .json.")
    start = text.index("{") if is_list and "{" in text else 0
    try:
        row, _ = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        raise Unreadable("its first row is not JSON.") from None
    if not isinstance(row, dict):
        raise Unreadable("its first row is not an object with named columns.")
    return list(row)


def _saved(folder: Path, split: str | None) -> list[str]:
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


def _xlsx(file: Path) -> list[str]:
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise Unreadable(
            "reading XLSX needs openpyxl, which is not installed, so its columns are not checked.",
            "note",
            extras.install("train"),
        ) from None
    try:
        first = next(load_workbook(file, read_only=True).worksheets[0].iter_rows(values_only=True), ())
    except Exception:
        raise Unreadable("it is not XLSX.") from None
    return [str(name) for name in first if name is not None] or _nameless()


def _nameless() -> list[str]:
    raise Unreadable("it has no first line with the names of its columns.")


def _parquet(file: Path) -> list[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise Unreadable(
            "reading Parquet needs pyarrow, which is not installed, so its columns are not checked.",
            "note",
            extras.install("train"),
        ) from None
    try:
        return list(parquet.read_schema(file).names)
    except Exception:
        raise Unreadable("it is not Parquet.") from None
