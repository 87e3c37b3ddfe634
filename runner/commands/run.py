"""`recipe run`: the full size, on the GPUs of this machine."""

from __future__ import annotations

import click

from runner.commands.options import (
    data_folder_from,
    from_option,
    is_staged,
    open_recipe,
    recipe_path,
    run_folder_from,
    say,
    set_option,
    stage_option,
    until_option,
    watch,
)


@click.command()
@recipe_path
@set_option
@click.option("--out", metavar="DIR", help="The run folder. Default: runs/NAME.")
@stage_option
@from_option
@until_option
@click.option("--fresh", is_flag=True, help="Delete what an earlier run left there.")
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
    from runner.execute import runs
    from runner.execute.run import run as carry_out
    from runner.execute.training import results
    from runner.files import read_json

    recipe, made = open_recipe(path, sets, environment=True)
    folder = runs.folder(recipe.name, "run", run_folder_from(out))
    if is_staged(recipe, stage, first, last):
        from runner.execute.order import Selection
        from runner.execute.run import run_stages

        with runs.session(folder, f"pipeline {recipe.name}", made, fresh):
            run_stages(recipe, folder, data_folder_from(), Selection(stage, first, last), say, watch)
        return
    with runs.session(folder, recipe.fingerprint, made, fresh) as going_on:
        if folder.finished:
            say("This run is done already; `--fresh` repeats it.")
        else:
            if going_on:
                say("Going on with the run that was interrupted.")
            carry_out(recipe, folder, data_folder_from(), say, watch)
    for line in results(folder, read_json(folder.path / "training_summary.json")):
        say(line)
