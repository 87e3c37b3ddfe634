"""`recipe rehearse`: the whole way on any machine, with a tiny model."""

from __future__ import annotations

import os

import click

from runner.commands.options import open_recipe, recipe_path, say, set_option, watch


@click.command()
@recipe_path
@set_option
@click.option("--data", metavar="FILE", help="Real rows instead of the recipe's sample.")
@click.option("--out", metavar="DIR", help="The run folder. Default: runs/NAME-rehearsal.")
@click.option("--fresh", is_flag=True, help="Delete what an earlier rehearsal left there.")
def rehearse(path: str, sets: tuple[str, ...], data: str | None, out: str | None, fresh: bool) -> None:
    """Run a recipe end to end on this machine, with a tiny twin of its model. No GPU, no download."""
    from runner.execute import runs
    from runner.execute.rehearse import rehearse as carry_out
    from runner.execute.training import results
    from runner.names import content_hash

    recipe, made = open_recipe(path, sets, environment=True)
    run = runs.folder(recipe.name, "rehearsal", out or os.environ.get("OUTPUT_DIR"))
    fingerprint = content_hash([recipe.fingerprint, os.path.abspath(data) if data else None])
    with run.lock():
        if runs.open_for(run, fingerprint, made, fresh) and run.finished:
            say(f"This rehearsal is done already; `--fresh` repeats it. {run.path}")
        else:
            carry_out(recipe, run, data, say, watch)
        from runner.files import read_json

        for line in results(run, read_json(run.path / "training_summary.json")):
            say(line)
