"""Data sets on the hub whose rows somebody has counted."""

from __future__ import annotations

from typing import Any

from runner.catalog.tables import table


def dataset(name: str) -> dict[str, Any] | None:
    """`rows`, the lengths of their text and more of a data set on the hub, as datasets.toml has them; None where nobody has counted."""
    return table("datasets").get(name)
