"""`recipe rehearse`: the whole way on any machine, with a tiny model."""

import click

from runner.commands.options import end, open_recipe, say
from runner.commands.run import at_the_end, data_folder_from, run_folder_from, training_options, watch

_data = click.option("--data", metavar="FILE", help="Real rows instead of the recipe's sample.")


@click.command()
@training_options("runs/NAME-rehearsal", _data)
def rehearse(
    path: str, sets: tuple[str, ...], data: str | None, out: str | None, fresh: bool, **stages: str | None
) -> None:
    """Run a recipe end to end on this machine, with a tiny twin of its model. No GPU, no download."""
    from runner.tools.quiet import hush

    hush()
    from runner.run import run as rehearsing
    from runner.run.pipeline import Selection
    from runner.run.run_folder import folder, session
    from runner.trainer.fork_server import forking

    recipe, made = open_recipe(path, sets, environment=True)
    home = folder(recipe.name, "rehearsal", run_folder_from(out))
    with session(home, recipe.name, fresh, data_folder_from("rehearsal")), at_the_end(home), forking():
        rehearsing.rehearse(recipe, home, data, Selection(**stages), say, watch, made)
    done = "Rehearsed: what was asked for works here, in small."
    end(done, "submit" if "openshift" in recipe.settings else "run", path)
