"""The facts about prepared rows that other modules need: their number, their lengths, and what they
were made from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.data.data_sets import stated
from runner.plan import RowsRequest
from runner.recipe.document import leaves
from runner.tools.files import Record, content_hash, sha256
from runner.tools.problem import Stop


@dataclass(frozen=True)
class Lengths(Record):
    """Lengths of rows in tokens: mean, standard deviation (spread) and 99th percentile (high);
    empty if not counted."""

    mean: float = 0.0
    spread: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class PreparedRows(Record):
    """How many rows were prepared. sampled_from: of how many they are a draw, None if all. asked,
    contents: hashes of the request and of its files. lengths: of the training rows, empty if not
    counted; longest: tokens of the longest of all rows, 0 if not counted. sets: the share of the
    training rows by data set, if there are several."""

    FILE = "rows.json"
    train_rows: int = 0
    validation_rows: int = 0
    sampled_from: int | None = None
    asked: str = ""
    lengths: Lengths = Lengths()
    contents: str = ""
    sets: Mapping[str, float] = field(default_factory=dict)
    longest: int = 0


# The environment variable of pods that `require_room` reads. For each stage a list: folders below
# the prepared data, tokens of the longest row that fits on a GPU, the consequence, and the remedy.
ROOM = "RECIPE_ROOM_FOR_ROWS"


def require_room(data_dir: Path) -> None:
    """Raises Stop if the GPUs of the plan have no room for the longest row in a folder of prepared
    data."""
    for folders, tokens, consequence, remedy in json.loads(os.environ.get(ROOM, "[]")):
        prepared = (PreparedRows.read(data_dir / folder) for folder in folders)
        longest = max((rows.longest for rows in prepared if rows), default=0)
        if longest > tokens:
            raise Stop(
                f"The longest row has {longest:,} tokens, but the GPUs have room for {tokens:,}. {consequence}",
                remedy,
            )


def asked(data: RowsRequest) -> str:
    """A hash of the request in a stage's `data`, wherever its files are."""
    return content_hash(_placeless(data), 32)


def _placeless(value: object) -> Any:
    if isinstance(value, Mapping):
        written = stated(value.items())
        return {
            name: Path(item).name if name == "path" and item else _placeless(item)
            for name, item in written.items()
        }
    if isinstance(value, list | tuple):
        return [_placeless(item) for item in value]
    return value


def contents(data: RowsRequest) -> str:
    """A hash of the files of a stage's `data`; empty if one is a folder or not here, or there are
    none."""
    files = [Path(value) for path, value in leaves(data, bool) if path[-1:] == ("path",) and value]
    if files and all(map(Path.is_file, files)):
        return content_hash([sha256(file) for file in files], 32)
    return ""
