"""`recipe rehearse`: the whole way on any machine, with a tiny model."""

from __future__ import annotations

import os

import click

from runner.commands.options import (
    data_folder_from,
    open_recipe,
    recipe_path,
    run_folder_from,
    say,
    set_option,
    watch,
)


@click.command()
@recipe_path
@set_option
@click.option("--data", metavar="FILE", help="Real rows instead of the recipe's sample.")
@click.option("--out", metavar="DIR", help="The run folder. Default: runs/NAME-rehearsal.")
@click.option("--fresh", is_flag=True, help="Delete what an earlier rehearsal left there.")
def rehearse(path: str, sets: tuple[str, ...], data: str | None, out: str | None, fresh: bool) -> None:
    """Run a recipe end to end on this machine, with a tiny twin of its model. No GPU, no download."""
    from runner.quiet import hush

    hush()
    from runner.execute import runs
    from runner.execute.rehearse import rehearse as carry_out
    from runner.execute.training import results
    from runner.files import read_json
    from runner.names import content_hash

    recipe, made = open_recipe(path, sets, environment=True)
    folder = runs.folder(recipe.name, "rehearsal", run_folder_from(out))
    fingerprint = content_hash([recipe.fingerprint, os.path.abspath(data) if data else recipe.data.get("sample")])
    with runs.session(folder, fingerprint, made, fresh) as going_on:
        if folder.finished:
            say("This rehearsal is done already; `--fresh` repeats it.")
        else:
            if going_on:
                say("Going on with the rehearsal that was interrupted.")
            carry_out(recipe, folder, data, data_folder_from("rehearsal"), say, watch)
    for line in results(folder, read_json(folder.path / "training_summary.json")):
        say(line)
