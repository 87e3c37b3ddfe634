"""Rules for images: how they are normalised and cropped, and how many classes a folder has."""

from collections.abc import Iterator

from runner import catalog
from runner.parts.images.pictures import class_folders, class_names
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import cadence, gates
from runner.tools.problem import Problem, Stop


def normalising(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    for there, lacking in (("mean", "std"), ("std", "mean")):
        if data.get(there) and not data.get(lacking):
            message = f"`data` has `{there}` and no `{lacking}`; normalising takes both."
            hint = f"Add `{lacking}`, or delete `{there}`: both are then measured on the training images."
            yield recipe.problem(("data", there), message, hint)


def crop(recipe: Recipe) -> Iterator[Problem]:
    padding = recipe.data.random_crop_padding
    if padding >= (size := recipe.model.image_size):
        message = f"A crop with {padding} pixels around images of {size} could miss the image."
        hint = f"Write less than {size}; an eighth of it is usual."
        yield recipe.problem("data.random_crop_padding", message, hint)


def classes(recipe: Recipe) -> Iterator[Problem]:
    """A folder of images for each class has as many as the recipe says."""
    data, stated = recipe.data, recipe.model.classes
    folder = recipe.folder / data.path if data.path else None
    if folder is None or not folder.is_dir() or not class_folders(folder):
        return
    try:
        there = len(class_names(folder))
    except Stop as stop:
        message, _, remedy = stop.text.partition("\n")
        yield recipe.problem("data.path", message, remedy)
        return
    if there != stated:
        message = f"`{folder}` has {there} folders of images, one a class, and `classes` is {stated}."
        hint = f"Write `classes: {there}`."
        yield recipe.problem("model.classes", message, hint, mending=there)


def classes_on_the_hub(recipe: Recipe) -> Iterator[Problem]:
    """A data set that somebody has counted has as many classes as the recipe says."""
    hub, stated = recipe.data.hub, recipe.model.classes
    there = (catalog.dataset(hub) or {}).get("classes") if hub and not recipe.data.path else None
    if there and there != stated:
        yield recipe.problem(
            "model.classes", f"`{hub}` has {there} classes, and `classes` is {stated}.", f"Write `classes: {there}`."
        )


RULES = (
    normalising,
    crop,
    classes,
    classes_on_the_hub,
    cadence.rule(),
    gates.rule(lambda recipe: gates.producible("images")),
)
