"""Prepared: what others must know of rows that lie ready, and what they were made for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.tools.files import Record, sha256
from runner.tools.lengths import UNKNOWN, Lengths
from runner.tools.names import content_hash


@dataclass(frozen=True)
class Rows(Record):
    """How many rows of whatever kind were prepared, for what follows from that. sampled_from: of how many they are a draw,
    None where all are there. asked: what they were made for, as `asked` has it. lengths: of those to train on, empty where
    nobody has counted; longest: tokens of the longest of all, before any was cut or left out for its length, 0 where nobody has
    counted. contents: what they were made from, as `contents` has it. sets: where there are several data sets, the
    part of the training rows that each has, 0 to 1, by its name."""

    FILE = "rows.json"
    train_rows: int = 0
    validation_rows: int = 0
    sampled_from: int | None = None
    asked: str = ""
    lengths: Lengths = UNKNOWN
    contents: str = ""
    sets: Mapping[str, float] = field(default_factory=dict)
    longest: int = 0


def asked(data: Mapping[str, Any]) -> str:
    """A hash of what a stage's `data` asks for, wherever its files lie."""
    return content_hash(_anywhere(data), 32)


def _anywhere(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: Path(item).name if name == "path" and item else _anywhere(item) for name, item in value.items()}
    return [_anywhere(item) for item in value] if isinstance(value, list | tuple) else value


def contents(data: Mapping[str, Any]) -> str:
    """A hash of what the files of a stage's `data` hold; empty where it names none, a folder, or one that is not here."""
    files = [Path(path) for path in _paths(data)]
    return content_hash([sha256(file) for file in files], 32) if files and all(map(Path.is_file, files)) else ""


def _paths(value: Any) -> Iterator[str]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, list | tuple) else ())
    for name, item in items:
        if name == "path" and item:
            yield item
        else:
            yield from _paths(item)
