"""Where rows come from: a file, a folder, or a dataset on the hub, one or several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.files import content_of


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows come from: the file or folder `path`, else the dataset `hub`, with its `subset`, `split` and `revision`."""

    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None

    @property
    def name(self) -> str:
        """The file or the dataset, as a person names it."""
        return self.path or f"{self.hub} on the hub"

    @property
    def file(self) -> Path | None:
        return Path(self.path) if self.path else None

    @property
    def content(self) -> str:
        """The hash of what the file or folder holds; empty where there is no file: a dataset is told by its revision."""
        return content_of(self.file) if self.file and self.file.exists() else ""


@dataclass(frozen=True, kw_only=True)
class DataSet(Source):
    """One of the data sets of a recipe. share: the part of its rows that is taken, above 0 and up to 1."""

    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DataSets:
    """What a recipe learns from, one data set or several. seed: of the draw of the rows that are taken, and of others."""

    sets: tuple[DataSet, ...]
    seed: int

    @property
    def name(self) -> str:
        """The data sets, as a person names them."""
        return ", ".join(one.name for one in self.sets)

    @property
    def content(self) -> list[str]:
        return [one.content for one in self.sets]

    @property
    def size(self) -> int | None:
        """Bytes of all files together; None where something is none."""
        files = [one.file for one in self.sets]
        return (
            sum(file.stat().st_size for file in files if file)
            if all(file and file.is_file() for file in files)
            else None
        )


# Where a row stands, behind the word `line`: its number, and of which set where there are several.
Where = int | str


def where(sources: DataSets, index: int, number: int) -> Where:
    return number if len(sources.sets) == 1 else f"{number} of {set_name(index)}"


def set_name(index: int) -> str:
    """A data set as messages name it, and as it stands in the recipe."""
    return f"sets[{index}]"


def drawn(row: Mapping[str, Any], share: float, seed: int) -> bool:
    """Whether a row is in the share of its data set that is taken: its own hash with the seed decides, so that neither
    order nor other rows change what is taken, and equal rows go together."""
    if share >= 1:
        return True
    digest = hashlib.blake2b(f"set\n{seed}\n{json.dumps(row, default=str)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
