"""Images: what is prepared for training, and the classes of a folder that has one for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.data.data_sets import DataSource
from runner.tools.problem import Stop


@dataclass(frozen=True, kw_only=True)
class Images(DataSource):
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


def class_folders(path: Path) -> bool:
    """Whether a folder is read as one of images for each class, and not as CIFAR's or Parquet files."""
    return not any(
        file.suffix in (".bin", ".parquet") or file.name.startswith(("batches.meta", "data_batch_"))
        for file in entries(path)
    )


def class_names(path: Path) -> list[str]:
    """The names of the classes, in the order of their labels. Raises Stop where there are none to tell apart."""
    train = path / "train"
    names = [folder.name for folder in folders(train if train.is_dir() else path)]
    if len(names) < 2:
        inner = (
            f"Its only folder is `{names[0]}`; where the images lie below that, name `{path / names[0]}`. "
            if names
            else ""
        )
        raise Stop(
            f"`{path}` holds no images that can be read.",
            f"{inner}It may hold CIFAR-10's binary version (*.bin), Parquet files, or one folder of images for each class.",
        )
    return names


def folders(path: Path) -> list[Path]:
    return [entry for entry in entries(path) if entry.is_dir()]


def entries(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
