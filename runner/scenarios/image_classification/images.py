"""Images: what is prepared for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.data.rows import Source


@dataclass(frozen=True, kw_only=True)
class Images(Source):
    """Images with a class each. They are scaled to `image_size` pixels a side.

    test_split: of a dataset, measured once at the end. image_column, label_column: of Parquet and of a dataset.
    validation_share: part of each class, 0 to 1, that a draw by `seed` keeps for validation.
    """

    kind: Literal["images"] = "images"
    test_split: str | None
    image_column: str
    label_column: str
    image_size: int
    classes: int
    validation_share: float
    seed: int
