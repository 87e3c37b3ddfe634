"""A model on a claim: its small files, for a lock file that every machine can read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.catalog.published import BESIDE, CONFIG
from runner.parts.jobs import kubernetes
from runner.parts.openshift.client import connect
from runner.parts.openshift.fetch import small_files
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.problem import Stop

# The stage that the helper pod is of.
LOOKS = "model"


@contextmanager
def copied(recipe: Recipe, folder: str, tell: Callable[[str], None]) -> Iterator[Path]:
    """The small files of the model in `folder` on one of the recipe's claims, in a folder of this machine for a while. The
    recipe need not be valid yet: nobody knows its model before that.

    Raises Stop where the recipe has no such claim, or the claim no such folder.
    """
    if not recipe.on_claim(folder):
        raise Stop(
            f"`{folder}` is neither a folder of this machine nor on a claim of `{recipe.name}`.",
            "A claim is named, with where pods see it, under `openshift.claims`.",
        )
    place = kubernetes.place(recipe)
    plan = common.plan(recipe, place, lambda place: [common.work(place, LOOKS, {}, common.PREPARING)])
    with TemporaryDirectory() as here:
        small_files(connect(), plan, plan.stages[0], folder, (CONFIG, *BESIDE), Path(here), tell)
        yield Path(here)
