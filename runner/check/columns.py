"""The columns of a local data file, read from its first row alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

FIRST_BYTES = 4_000_000
# What spreadsheets put between columns where the comma is for decimals.
SEPARATORS = {";": "Semicolons", "\t": "Tabs"}


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


def of(file: Path) -> list[str]:
    """Column names of a CSV, JSON, JSONL or Parquet file.

    Raises Unreadable with the reason in plain words.
    """
    if file.suffix == ".parquet":
        return _parquet(file)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".csv":
                header = next(csv.reader(lines), None)
                if not header:
                    raise Unreadable("it has no first line with the names of its columns.")
                if len(header) == 1 and (separator := next((mark for mark in SEPARATORS if mark in header[0]), None)):
                    raise Unreadable(
                        f"{SEPARATORS[separator]} stand between its columns, and a CSV file has commas there.",
                        hint="Save it again with commas, or as JSONL.",
                    )
                return header
            return _json(lines.read(FIRST_BYTES))
    except (UnicodeDecodeError, csv.Error):
        raise Unreadable(
            "it is not text in UTF-8.",
            hint="Save it again with the encoding UTF-8; a spreadsheet calls that `CSV UTF-8`.",
        ) from None
    except OSError as error:
        raise Unreadable(f"{error.strerror}.") from None


def _json(text: str) -> list[str]:
    text = text.lstrip()
    if not text:
        raise Unreadable("it is empty.")
    start = text.index("{") if text.startswith("[") and "{" in text else 0
    try:
        row, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        raise Unreadable("its first row is not JSON.") from None
    if not isinstance(row, dict):
        raise Unreadable("its first row is not an object with named columns.")
    return list(row)


def _parquet(file: Path) -> list[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise Unreadable(
            "reading Parquet needs pyarrow, which is not installed, so its columns are not checked.",
            "note",
            "pip install 'recipe-runner[train]'",
        ) from None
    try:
        return list(parquet.read_schema(file).names)
    except Exception:
        raise Unreadable("it is not Parquet.") from None
