"""`recipe prepare`: the recipe's data, ready to train on."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.options import open_recipe, recipe_path, say, set_option
from runner.recipe import changes as changing


@click.command()
@recipe_path
@set_option
@click.option("--data", metavar="FILE", help="Rows from this file instead of what the recipe names.")
@click.option("--out", metavar="DIR", help="Where to write. Default: runs/NAME/data, where `recipe run` looks.")
def prepare(path: str, sets: tuple[str, ...], data: str | None, out: str | None) -> None:
    """Read, fill, deduplicate and split a recipe's data; write Parquet and say what became of every row."""
    from runner.quiet import hush

    hush()
    from runner.execute import runs
    from runner.execute.data import prepare as carry_out
    from runner.execute.run import base_tokenizer
    from runner.scenarios import translate
    from runner.targets import place

    recipe, _ = open_recipe(path, sets, more=changing.from_data_option(data))
    folder = Path(out) if out else runs.folder(recipe.name, "run").path / "data"
    wanted = translate(recipe, place(recipe)).stages[0].data
    for line in carry_out(wanted, folder, tokenizer_for=base_tokenizer(recipe)).lines():
        say(line)
    say(f"written to {folder}")
