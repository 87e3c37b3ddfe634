"""Data sets on the hub whose rows somebody has counted."""

from __future__ import annotations

from typing import Any

from runner.catalog.tables import table
from runner.tools.names import ALIKE, nearest


def dataset(name: str) -> dict[str, Any] | None:
    """`rows`, the lengths of their text and more of a data set on the hub, as datasets.toml has them; None where nobody has counted."""
    return table("datasets").get(name)


def near_dataset(name: str) -> str | None:
    """The data set of the catalog whose name `name` is a misspelling of; None where it is one of them, or like none."""
    known = {known.partition(":")[0] for known in table("datasets")}
    return None if name in known else nearest(name, known, ALIKE)
