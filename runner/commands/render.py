"""`recipe render`: what the cluster needs, as files."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.options import open_recipe, print_notes, recipe_path, say, set_option
from runner.recipe import images
from runner.targets import TARGETS


@click.command()
@recipe_path
@set_option
@click.option("--out", metavar="DIR", help="Where to write. Default: build/NAME.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.Choice(list(TARGETS)),
    help="What to write for. Repeatable.",
)
def render(path: str, sets: tuple[str, ...], out: str | None, targets: tuple[str, ...]) -> None:
    """Write the training config and the manifests of a recipe. Needs no GPU, no cluster and no network."""
    from runner.files import write_all
    from runner.scenarios import translate
    from runner.targets import kubernetes
    from runner.targets import render as render_plan

    recipe, _ = open_recipe(path, sets)
    plan = translate(recipe, kubernetes.place(recipe))
    folder = Path(out) if out else Path("build") / recipe.name
    for file in write_all(folder, render_plan(plan, targets)):
        say(str(file))
    print_notes(images.placeholder_commit(recipe))
