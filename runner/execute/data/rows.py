"""Rows of a data file or a hub dataset, each with its line number; a line that is no row is named, never lost."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.problem import Stop


@dataclass(frozen=True)
class Bad:
    """A line that is no row, and why."""

    reason: str


Numbered = tuple[int, dict[str, Any] | Bad]


def read(wanted: Mapping[str, Any]) -> Iterator[Numbered]:
    """Rows as (line, row) from `path`, or from `hub` with `subset`, `split` and `revision`. All but .json files come a row
    at a time, however large they are; from the hub they do where `wanted` has `stream`, and are else kept on disk.

    Raises Stop where the file or the dataset cannot be read at all.
    """
    if not wanted["path"]:
        yield from _hub(wanted)
        return
    file = Path(wanted["path"])
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    # Only who asks for a column of text can read a file that has no columns.
    if column := wanted.get("text"):
        readers[".txt"] = lambda file: _txt(file, column)
    reader = readers.get(file.suffix)
    if reader is None:
        raise Stop(
            f"`{file}` is no data file that can be read.",
            f"Its name must end in {', '.join(list(readers)[:-1])} or {list(readers)[-1]}.",
        )
    try:
        yield from reader(file)
    except FileNotFoundError:
        raise Stop(f"There is no data file `{file}`.") from None
    except UnicodeDecodeError:
        raise Stop(f"`{file}` is not text in UTF-8.", "Save it again with the encoding UTF-8.") from None
    except OSError as error:
        raise Stop(f"`{file}` cannot be read: {error.strerror}.") from None


def _jsonl(file: Path) -> Iterator[Numbered]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, Bad(f"not JSON ({getattr(error, 'msg', 'nested too deep')})")
                continue
            yield number, _named(row, escaped="\\u" in line)


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
    with file.open(encoding="utf-8-sig") as lines:
        first, document = 0, []
        for number, line in enumerate(lines, 1):
            if line.strip():
                first = first if document else number
                document.append(line)
            elif document:
                yield first, {column: "".join(document).rstrip("\n")}
                document = []
        if document:
            yield first, {column: "".join(document).rstrip("\n")}


def _json(file: Path) -> Iterator[Numbered]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise Stop(
            f"`{file}` is not JSON, at line {getattr(error, 'lineno', '?')}.",
            "A file with one object a line must end in .jsonl.",
        ) from None
    if not isinstance(rows, list):
        raise Stop(f"`{file}` does not hold a list of rows.", "Write [ … ] around the rows.")
    escaped = "\\u" in text
    for number, row in enumerate(rows, 1):
        yield number, _named(row, escaped)


def _csv(file: Path) -> Iterator[Numbered]:
    csv.field_size_limit(2**31 - 1)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        while True:
            number = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, Bad(f"not CSV ({error})")
                continue
            if header is None:
                header = fields
            elif fields and len(fields) != len(header):
                yield number, Bad(f"{len(fields)} columns, and the first line names {len(header)}")
            elif fields:
                yield number, dict(zip(header, fields, strict=True))


def _parquet(file: Path) -> Iterator[Numbered]:
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


def _hub(wanted: Mapping[str, Any]) -> Iterator[Numbered]:
    from datasets import load_dataset

    name, stream = wanted["hub"], bool(wanted.get("stream"))
    try:
        dataset = load_dataset(
            name, wanted["subset"], split=wanted["split"], revision=wanted["revision"], streaming=stream
        )
        # A stream asks the hub only when its first row is wanted.
        yield from enumerate(dataset, 1)
    except Exception as error:
        raise no_dataset(name, error) from None


def no_dataset(name: str, error: Exception) -> Stop:
    """What to say where the hub does not give a dataset."""
    return Stop(
        f"The dataset `{name}` cannot be loaded from the hub: {_reason(error)}",
        "Check its name, your network and your access; or download it and name it under `data.path`.",
    )


def _reason(error: Exception) -> str:
    """The library raises some twenty kinds of errors here: offline, no such dataset, gated, no such split."""
    words = f"{type(error).__name__} {error}".lower()
    if any(sign in words for sign in ("connect", "client has been closed", "name or service", "timed out", "offline")):
        return "it cannot be reached from this machine."
    return str(error).strip().split("\n")[0]
