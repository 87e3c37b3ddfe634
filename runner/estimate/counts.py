"""Counts: how many parameters a model has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Parameters: of the model itself, tied ones once; trained ones; and the adapter's, 0 where there is none."""

    total: int
    trainable: int
    adapter: int = 0
