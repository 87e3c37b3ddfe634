"""`recipe rehearse`: the whole way on any machine, with a tiny model."""

from __future__ import annotations

import click

from runner.commands import training_options as shared
from runner.commands.options import end, open_recipe, say

_data = click.option("--data", metavar="FILE", help="Real rows instead of the recipe's sample.")


@click.command()
@shared.options("runs/NAME-rehearsal", _data)
def rehearse(
    path: str,
    sets: tuple[str, ...],
    data: str | None,
    out: str | None,
    stage: str | None,
    first: str | None,
    last: str | None,
    fresh: bool,
) -> None:
    """Run a recipe end to end on this machine, with a tiny twin of its model. No GPU, no download."""
    from runner.tools.quiet import hush

    hush()
    from runner.run import rehearse as rehearsing
    from runner.run.pipeline import Selection
    from runner.run.run_folder import folder, session
    from runner.trainer.fork_server import forking

    recipe, made = open_recipe(path, sets, environment=True)
    home = folder(recipe.name, "rehearsal", shared.run_folder_from(out))
    with session(home, recipe.name, fresh, shared.data_folder_from("rehearsal")), shared.at_the_end(home), forking():
        rehearsing.rehearse(recipe, home, data, Selection(stage, first, last), say, shared.watch, made)
    end(
        "Rehearsed: what was asked for works here, in small.",
        "submit" if "openshift" in recipe.settings else "run",
        path,
    )
