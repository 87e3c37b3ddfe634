"""`recipe run`: the full size, on the GPUs of this machine."""

from __future__ import annotations

import click

from runner.commands import training_options as shared
from runner.commands.options import is_staged, open_recipe, say


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
    from runner.quiet import hush

    hush()
    from runner.execute import run as running
    from runner.execute import runs

    recipe, made = open_recipe(path, sets, environment=True)
    folder = runs.folder(recipe.name, "run", shared.run_folder_from(out))
    if is_staged(recipe, stage, first, last):
        from runner.execute.order import Selection

        chosen = Selection(stage, first, last)
        with runs.session(folder, f"pipeline {recipe.name}", made, fresh):
            running.run_stages(recipe, folder, shared.data_folder_from(), chosen, say, shared.watch)
        return

    def carry_out() -> None:
        running.run(recipe, folder, shared.data_folder_from(), say, shared.watch)

    shared.one_stage(folder, recipe.fingerprint, made, fresh, runs.data_files(recipe), carry_out)
