"""Prepared images in memory, and what training does to each: crop, flip, normalise, a whole batch at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset


class Images(Dataset):
    """Images of one Parquet file, whole in memory as bytes: 50,000 of 32×32 take 154 MB.

    mean, std: of red, green and blue, 0 to 1. padding, flip: for training images alone.
    """

    def __init__(
        self, file: Path, size: int, mean: list[float], std: list[float], *, padding: int = 0, flip: bool = False
    ) -> None:
        self.pixels, self.labels = read(file, size)
        self.mean, self.std = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
        self.padding, self.flip = padding, flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        """A batch at once: `pixel_values` (batch, 3, size, size) as floats, `labels` (batch,)."""
        pixels = self.pixels[indices]
        if self.padding:
            pixels = random_crop(pixels, self.padding)
        if self.flip:
            pixels = random_flip(pixels)
        return {"pixel_values": normalise(pixels, self.mean, self.std), "labels": self.labels[indices]}

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self.__getitems__([index]).items()}


def as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The collator of batches that `Images` has already made."""
    return batch


def read(file: Path, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (N, 3, size, size) as bytes and labels (N,) of a Parquet file that `execute.data.images` wrote."""
    table = pq.read_table(file)
    flat = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8)
    pixels = torch.from_numpy(flat.reshape(-1, size, size, 3).copy()).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.tensor(table["label"].to_pylist(), dtype=torch.long)


def random_crop(pixels: torch.Tensor, padding: int) -> torch.Tensor:
    """Each image (batch, 3, height, width) with `padding` black pixels around it, cut back to its size at a random place."""
    count, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, count, 1))
    rows = (top + torch.arange(height)).view(count, 1, height, 1)
    columns = (left + torch.arange(width)).view(count, 1, 1, width)
    images, channels = torch.arange(count).view(-1, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1)
    return padded[images, channels, rows, columns]


def random_flip(pixels: torch.Tensor) -> torch.Tensor:
    """Each image mirrored left to right, or not, with equal chances."""
    chosen = torch.rand(len(pixels)) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), pixels.flip(-1), pixels)


def normalise(pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Bytes 0 to 255 as floats that have about mean 0 and standard deviation 1."""
    return (pixels.float() / 255 - mean) / std
