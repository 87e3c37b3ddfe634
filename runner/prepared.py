"""Prepared: what others must know of rows that lie ready, and what they were made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.files import Record
from runner.names import content_hash


@dataclass(frozen=True)
class Rows(Record):
    """How many rows of whatever kind were prepared, for what follows from that. sampled_from: of how many they are a draw,
    None where all are there. asked: what they were made for, as `asked` has it. tokens: of a usual row, None where nobody has
    counted."""

    FILE = "rows.json"
    train_rows: int = 0
    validation_rows: int = 0
    sampled_from: int | None = None
    asked: str = ""
    tokens: int | None = None


def asked(data: Mapping[str, Any]) -> str:
    """A hash of what a stage's `data` asks for, wherever its files lie."""
    return content_hash(_anywhere(data), 32)


def _anywhere(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: Path(item).name if name == "path" and item else _anywhere(item) for name, item in value.items()}
    return [_anywhere(item) for item in value] if isinstance(value, list | tuple) else value
