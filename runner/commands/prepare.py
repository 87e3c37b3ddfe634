"""`recipe prepare`: the recipe's data, ready to train on."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.options import open_recipe, recipe_path, say, set_option
from runner.recipe import overrides as changing


@click.command()
@recipe_path
@set_option
@click.option("--data", metavar="FILE", help="Rows from this file instead of what the recipe names.")
@click.option("--out", metavar="DIR", help="Where to write. Default: runs/NAME/data, where `recipe run` looks.")
def prepare(path: str, sets: tuple[str, ...], data: str | None, out: str | None) -> None:
    """Read, fill, deduplicate and split a recipe's data; write Parquet and say what became of every row."""
    from runner.quiet import hush

    hush()
    from runner.entrypoints.prepare import carry_out
    from runner.runs.run_folder import folder
    from runner.scenarios import translate

    recipe, _ = open_recipe(path, sets, more=changing.from_data_option(data))
    run = folder(recipe.name, "run")
    place = run.place(str(Path(out).resolve()) if out else None)
    work = translate(recipe, place).stages[0].config
    carry_out(work, say)
    say(f"written to {out or place.data_dir}")
