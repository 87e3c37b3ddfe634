"""`recipe prepare`: the recipe's data, ready to train on."""

from pathlib import Path

import click

from runner import parts
from runner.commands.options import end, open_recipe, recipe_path, say, set_option
from runner.commands.run import proof_lines
from runner.recipe import overrides as changing


@click.command()
@recipe_path
@set_option
@click.option("--data", metavar="FILE", help="Rows from this file instead of what the recipe names.")
@click.option("--out", metavar="DIR", help="Where to write. Default: runs/NAME/data, where `recipe run` looks.")
@click.option(
    "--show", metavar="N", type=click.IntRange(min=1), help="Show N rows token by token, and prove what they train."
)
def prepare(path: str, sets: tuple[str, ...], data: str | None, out: str | None, show: int | None) -> None:
    """Read, fill, deduplicate and split a recipe's data; write Parquet and say what became of every row."""
    from runner.tools.quiet import hush

    hush()
    from runner.entrypoints.prepare import carry_out
    from runner.run.run_folder import folder
    from runner.scenarios import translate

    recipe, _ = open_recipe(path, sets, more=changing.from_data_option(data))
    run = folder(recipe.name, "run")
    place = run.place(str(Path(out).resolve()) if out else None)
    # What is trained is proven where that is asked for, and again before a stage holds a GPU.
    carry_out({**translate(recipe, place).stages[0].config, "proofs": None}, say)
    say(f"written to {out or place.data_dir}")
    if show:
        for proven in parts.hook("show_rows")(recipe, place, show, say):
            for line in proof_lines(proven, whole=True):
                say(line)
    end("The rows are ready; what became of each kind is said above.", "rehearse", path)
