"""Rules for images: how they are normalised and cropped."""

from __future__ import annotations

from collections.abc import Iterator

from runner.problem import Problem
from runner.recipe.recipe import Recipe


def normalising(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    for there, lacking in (("mean", "std"), ("std", "mean")):
        if data.get(there) and not data.get(lacking):
            yield recipe.document.problem(
                ("data", there),
                f"`data` has `{there}` and no `{lacking}`; normalising takes both.",
                f"Add `{lacking}`, or delete `{there}`: both are then measured on the training images.",
            )


def crop(recipe: Recipe) -> Iterator[Problem]:
    padding = recipe.data.random_crop_padding
    if padding >= (size := recipe.model.image_size):
        yield recipe.document.problem(
            ("data", "random_crop_padding"),
            f"A crop with {padding} pixels around images of {size} could miss the image.",
            f"Write less than {size}; an eighth of it is usual.",
        )


RULES = (normalising, crop)
