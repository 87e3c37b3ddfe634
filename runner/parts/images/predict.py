"""Predictions of a trained network: for one picture, and for held-out images, with accuracy and
confusion by class."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runner.data.row_files import Bad
from runner.parts.images.data import decoded, scaled
from runner.tools.problem import Stop, first_line
from runner.trainer.records import ACCURACY

if TYPE_CHECKING:
    from runner.parts.evaluate.evaluate import Measures
    from runner.parts.evaluate.gates import Task

BATCH = 256  # images in a batch


def load(weights: Path) -> Callable[[Path], dict[str, float]]:
    """A function from a picture file to the probability of each class by name, the largest first.
    It raises Stop if the file is not a picture, or the weights cannot be read."""

    @cache
    def known() -> Any:
        from runner.parts.images import network  # imports transformers, which takes seconds

        try:
            return network.load(weights)
        except Exception as error:  # a file of weights can be broken in many ways
            raise Stop(
                f"The weights in `{weights}` cannot be read: {first_line(error)}",
                "Check the run folder.",
            ) from None

    def ask(picture: Path) -> dict[str, float]:
        if not picture.is_file():
            raise Stop(
                f"The file `{picture}` does not exist.",
                "This model classifies images. Name a picture file.",
            )
        pixels = decoded(picture.read_bytes())
        if isinstance(pixels, Bad):
            raise Stop(f"`{picture}` is {pixels.reason}.", "Use PNG, JPEG, WEBP, BMP or GIF.")
        from runner.parts.images.training import normalise

        model, facts = known()
        mean, std = (torch.tensor(facts[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
        batch = (
            torch.from_numpy(scaled(pixels, facts["image_size"]).copy())
            .permute(2, 0, 1)
            .unsqueeze(0)
        )
        with torch.no_grad():
            shares = model(pixel_values=normalise(batch, mean, std)).logits.softmax(-1)[0].tolist()
        return dict(
            sorted(zip(map(str, facts["classes"]), shares, strict=True), key=lambda each: -each[1])
        )

    return ask


def measure(task: Task, measures: Measures) -> None:
    """Adds the results on the images in `task.rows` to `measures` (see
    `runner.parts.evaluate.evaluate`)."""
    names = [*task.metrics, "validation_loss", ACCURACY]
    with measures.taking(names) as found:
        found |= on_images(Path(task.model), Path(task.rows), measures)
    for name in task.metrics:
        measures.missing.setdefault(name, "these images have no such class")


def on_images(model: Path, folder: Path, measures: Measures) -> dict[str, float]:
    """Loss and accuracies on the test images, or on the validation images without a test: in total,
    and for each class by its name in gates. Also records the confusion matrix."""
    from runner.parts.images import network
    from runner.parts.images.training import ImageDataset

    if torch.cuda.is_available():
        device = "cuda"
    else:
        device = "cpu"
    built, facts = network.load(model)
    built = built.to(device)
    classes = list(map(str, facts["classes"]))
    shape = (facts["image_size"], facts["mean"], facts["std"])
    sides = (ImageDataset(folder / f"{side}.parquet", *shape) for side in ("test", "validation"))
    images = next((side for side in sides if len(side)), None)
    if images is None:
        raise ValueError("there are no held-out images")
    seen = torch.zeros(len(classes), len(classes), dtype=torch.long)
    total = 0.0
    for numbers in torch.arange(len(images)).split(BATCH):
        batch = images.__getitems__(numbers.tolist())
        with torch.no_grad():
            logits = built(pixel_values=batch["pixel_values"].to(device)).logits.float().cpu()
        total += float(torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"))
        seen.index_put_((batch["labels"], logits.argmax(-1)), torch.tensor(1), accumulate=True)
    measures.counts["held_out_images"] = len(images)
    measures.confusion |= {
        name: {
            other: int(count) for other, count in zip(classes, row.tolist(), strict=True) if count
        }
        for name, row in zip(classes, seen, strict=True)
    }
    right = {}
    for index, (name, row) in enumerate(zip(classes, seen, strict=True)):
        if row.sum():
            right[f"{ACCURACY}.{re.sub(r'[^A-Za-z0-9_-]+', '_', name)}"] = float(
                row[index] / row.sum()
            )
    return right | {
        ACCURACY: float(seen.trace() / len(images)),
        "validation_loss": total / len(images),
    }
