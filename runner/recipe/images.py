"""Rules for what the image scenario brought: lines about images, limits of a machine, and code by git."""

from __future__ import annotations

from collections.abc import Iterator

from runner.names import listed
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
    padding = recipe.data.get("random_crop_padding")
    if padding is not None and padding >= (size := recipe.model.image_size):
        yield recipe.document.problem(
            ("data", "random_crop_padding"),
            f"A crop with {padding} pixels around images of {size} could miss the image.",
            f"Write less than {size}; an eighth of it is usual.",
        )


def kept_images(recipe: Recipe) -> Iterator[Problem]:
    """The pods prepare the images themselves, and need a place for them that outlives the pods."""
    if "image_column" not in recipe.data or "openshift" not in recipe.settings:
        return
    mounts = [claim.mount.rstrip("/") for claim in recipe.openshift.get("claims") or ()]
    if mounts and not recipe.on_claim(recipe.openshift.get("data_dir") or ""):
        yield recipe.document.problem(
            ("openshift", "data_dir"),
            "The pods prepare the images themselves, and `openshift.data_dir` names no folder on a claim to keep them in.",
            f"Let `data_dir` start with {listed(mounts, 'or')}.",
        )


def limits(recipe: Recipe) -> Iterator[Problem]:
    for limit, promised, unit in (("memory_limit_gib", "memory_gib", " GiB"), ("cpus_limit", "cpus", "")):
        most, least = recipe.machines.get(limit), recipe.machines.get(promised)
        if most is not None and most < least:
            yield recipe.document.problem(
                ("machines", limit),
                f"`{limit}` is {most}{unit}, less than the {least}{unit} that `{promised}` promises.",
                f"Write at least {least}, or delete the line.",
            )


def placeholder_commit(recipe: Recipe) -> Iterator[Problem]:
    """No rule: the starter recipe has to hold a placeholder, and only what is rendered from it does not work."""
    code = recipe.code_from_git
    if code and not code.commit.strip("0"):
        yield recipe.document.problem(
            ("image", "code_from_git", "commit"),
            "This commit is a placeholder; on the cluster, pods would not find it and would not start.",
            "Push your copy of this project, and write its address and what `git rev-parse HEAD` prints.",
            severity="note",
        )
