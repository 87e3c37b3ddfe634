"""`recipe run`: the full size, on the GPUs of this machine."""

from __future__ import annotations

import click

from runner.commands import training_options as shared
from runner.commands.options import end, open_recipe, say


@click.command()
@shared.options("runs/NAME")
def run(
    path: str,
    sets: tuple[str, ...],
    out: str | None,
    stage: str | None,
    first: str | None,
    last: str | None,
    fresh: bool,
) -> None:
    """Prepare a recipe's data and train on this machine's GPUs. An interrupted run goes on where it was."""
    from runner.tools.quiet import hush

    hush()
    from runner.run import run as running
    from runner.run.pipeline import Selection
    from runner.run.run_folder import folder, session

    recipe, made = open_recipe(path, sets, environment=True)
    home = folder(recipe.name, "run", shared.run_folder_from(out))
    with session(home, recipe.name, fresh, shared.data_folder_from()), shared.at_the_end(home):
        running.run(recipe, home, Selection(stage, first, last), say, shared.watch, made)
    end("Done: what was asked for is trained, and lies there.", "compare", path)
