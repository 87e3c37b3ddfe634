"""Rules for images: how they are normalised and cropped, and where prepared ones are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.names import listed
from runner.problem import Problem
from runner.recipe.recipe import Recipe

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift


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


def kept_images(recipe: Recipe) -> Iterator[Problem]:
    """The pods prepare the images themselves, and need a place for them that outlives the pods."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    mounts = [claim.mount.rstrip("/") for claim in site.claims or ()]
    if mounts and not recipe.on_claim(site.data_dir or ""):
        yield recipe.document.problem(
            ("openshift", "data_dir"),
            "The pods prepare the images themselves, and `openshift.data_dir` names no folder on a claim to keep them in.",
            f"Let `data_dir` start with {listed(mounts, 'or')}.",
        )


RULES = (normalising, crop, kept_images)
