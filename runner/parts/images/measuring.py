"""Measures of a network for images: how many held-out images it tells right, of each class, and what it takes the others for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runner.scenarios.shared.gates import ACCURACY

if TYPE_CHECKING:
    from runner.parts.images.training import Images

BATCH = 256


def measure(task: Any, measures: Any) -> None:
    """Adds to `measures` (see `runner.parts.evaluate.evaluate`) what is found on the images in `task.rows`."""
    names = [*task.metrics, "validation_loss", ACCURACY]
    measures.take(names, lambda: on_images(Path(task.model), Path(task.rows), measures))
    for name in task.metrics:
        measures.missing.setdefault(name, "there is no such class among these images")


def on_images(model: Path, folder: Path, measures: Any) -> dict[str, float]:
    """Loss and accuracies on the test images, on those for validation where there are none of them: in all, and of each class
    by its name as a gate can write it. Notes the confusion matrix: for each class how often each was seen in its place."""
    from runner.parts.images import network
    from runner.parts.images.training import Images

    device = "cuda" if torch.cuda.is_available() else "cpu"
    built, facts = network.load(model)
    built = built.to(device)
    classes = list(map(str, facts["classes"]))
    sides = (Images(folder / f"{side}.parquet", facts["image_size"], facts["mean"], facts["std"]) for side in SIDES)
    images = next((side for side in sides if len(side)), None)
    if images is None:
        raise ValueError("there are no held-out images")
    seen, total = torch.zeros(len(classes), len(classes), dtype=torch.long), 0.0
    for batch in _batches(images):
        with torch.no_grad():
            logits = built(pixel_values=batch["pixel_values"].to(device)).logits.float().cpu()
        total += float(torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"))
        for true, taken_for in zip(batch["labels"].tolist(), logits.argmax(-1).tolist(), strict=True):
            seen[true, taken_for] += 1
    measures.counts["held_out_images"] = len(images)
    measures.confusion |= {
        name: {other: int(count) for other, count in zip(classes, row.tolist(), strict=True) if count}
        for name, row in zip(classes, seen, strict=True)
    }
    right = {
        f"{ACCURACY}.{written(name)}": float(row[index] / row.sum())
        for index, (name, row) in enumerate(zip(classes, seen, strict=True))
        if row.sum()
    }
    return right | {ACCURACY: float(seen.trace() / len(images)), "validation_loss": total / len(images)}


SIDES = ("test", "validation")


def written(name: str) -> str:
    """A class's name as a gate can write it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)


def _batches(images: Images) -> Iterator[dict[str, torch.Tensor]]:
    for start in range(0, len(images), BATCH):
        yield images.__getitems__(list(range(start, min(start + BATCH, len(images)))))
