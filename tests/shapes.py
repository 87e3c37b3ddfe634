"""Draws the sample of the image scenario: ten classes of shapes, the same bytes from the same seed.

`python -m tests.shapes` writes recipes/data/shapes-sample.parquet; a test draws them again and
compares.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FILE = Path(__file__).resolve().parent.parent / "recipes" / "data" / "shapes-sample.parquet"
SIZE = 32
IMAGES_PER_CLASS = 100
SEED = 42

# None of them is another one mirrored, and each stays itself when it is.
CLASSES = (
    "disc",
    "square",
    "triangle",
    "cross",
    "ring",
    "rows",
    "columns",
    "checks",
    "diagonals",
    "dots",
)


def mask(name: str, draw: np.random.Generator) -> np.ndarray:
    """Where the shape is, SIZE × SIZE; place, size and phase are drawn."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    middle_y, middle_x = draw.uniform(12, 20, 2)
    radius = draw.uniform(7, 11)
    period, phase = draw.uniform(5, 8), draw.uniform(0, 8)
    dy, dx = y - middle_y, x - middle_x
    distance = np.hypot(dy, dx)
    stripe_y, stripe_x = ((axis + phase) % period < period / 2 for axis in (y, x))
    side = draw.choice([-1, 1])
    return {
        "disc": distance < radius,
        "square": np.maximum(abs(dy), abs(dx)) < radius * 0.85,
        "triangle": (dy < radius * 0.8) & (dy > 2 * abs(dx) - radius),
        "cross": (np.minimum(abs(dy), abs(dx)) < 2.5) & (np.maximum(abs(dy), abs(dx)) < radius),
        "ring": (distance < radius) & (distance > radius - 3.5),
        "rows": stripe_y,
        "columns": stripe_x,
        "checks": stripe_y ^ stripe_x,
        "diagonals": (x + side * y + phase) % (period * 1.4) < period * 0.7,
        "dots": np.hypot((y + phase) % period - period / 2, (x + phase) % period - period / 2)
        < period * 0.3,
    }[name]


def picture(name: str, draw: np.random.Generator) -> np.ndarray:
    """One image of a class, SIZE × SIZE × 3 bytes, in two colours that are well apart."""
    while True:
        ground, colour = draw.integers(0, 256, (2, 3))
        if np.abs(ground - colour).sum() > 200:
            break
    return np.where(mask(name, draw)[..., None], colour, ground).astype(np.uint8)


def pictures(per_class: int = IMAGES_PER_CLASS, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, SIZE, SIZE, 3) and their labels (N,), classes in turn."""
    draw = np.random.default_rng(seed)
    labels = np.tile(np.arange(len(CLASSES)), per_class)
    return np.stack([picture(CLASSES[label], draw) for label in labels]), labels


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).quantize(2).save(out, "PNG", optimize=True)
    return out.getvalue()


def write(file: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """A Parquet file with the columns that CIFAR-10 has on the hub."""
    rows = [{"bytes": png(image), "path": None} for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(rows, kind), "label": pa.array(labels, pa.int64())})
    # Where the hub's files have the names of the classes.
    names = {"info": {"features": {"label": {"names": list(CLASSES), "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(names)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, compression="zstd")


if __name__ == "__main__":
    write(FILE, *pictures())
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
