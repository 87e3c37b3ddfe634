"""`recipe show` and `render`: a recipe with all its defaults and where each comes from, and the files that the cluster
needs."""

import json
import os

import click

from runner.check import by_schema, origins
from runner.check.validate import load
from runner.commands.options import end, print_notes, recipe_path, say, set_option
from runner.recipe import overrides as changing


@click.command()
@recipe_path
@set_option
@click.option("--format", "style", type=click.Choice(["yaml", "json"]), default="yaml", help="How to print it.")
def show(path: str, sets: tuple[str, ...], style: str) -> None:
    """Show a recipe with all its defaults, and where each setting comes from, as `recipe run` would take it.

    What is printed is a recipe itself, the same one.
    """
    recipe, _, notes = load(path, changing.from_options(sets), os.environ)
    print_notes(notes)
    found = dict(origins.computed(recipe))
    if style == "json":
        figures = {".".join(map(str, where)): {"value": one.value, "how": one.how} for where, one in found.items()}
        values = recipe.settings.plain()
        whole = {"recipe": values, "from": origins.origins(recipe.document, values), "computed": figures}
        say(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    say(f"# {path} with all its settings.")
    say("# Behind each stands where it comes from: a line of that file, what changed it, or else the default.")
    say("# Lines that begin with # are computed from the others.")
    say(origins.as_yaml(recipe, by_schema.schema(recipe.scenario), found).rstrip("\n"))
    end("That is all of it, and a recipe itself.", "check", path)
