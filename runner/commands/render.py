"""`recipe render`: what the cluster needs, as files."""

from pathlib import Path

import click

from runner import parts
from runner.check import validate
from runner.commands.options import allow_option, end, open_recipe, print_notes, recipe_path, say, set_option
from runner.scenarios.targets import NAMES


@click.command()
@recipe_path
@set_option
@click.option("--out", metavar="DIR", help="Where to write. Default: build/NAME.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.Choice(NAMES),
    help="What to write for. Repeatable. Default: all that the recipe names.",
)
@allow_option
def render(
    path: str, sets: tuple[str, ...], out: str | None, targets: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    """Write the training config and the manifests of a recipe. Needs no GPU, no cluster and no network."""
    from runner.render import emit
    from runner.scenarios import translate
    from runner.scenarios.targets import place
    from runner.tools.files import write_all

    recipe, _ = open_recipe(path, sets)
    validate.require_fits(recipe, translate(recipe, place(recipe)), allowed)
    folder = Path(out) if out else Path("build") / recipe.name
    written = write_all(folder, emit(recipe, targets))
    for file in written:
        if file.suffix == ".sh":
            file.chmod(0o755)
        say(str(file))
    for module in parts.modules("rules"):
        for rule in getattr(module, "RENDER_NOTES", ()):
            print_notes(rule(recipe))
    end(f"{len(written)} files are in {folder}/.", "submit" if "openshift" in recipe.settings else "run", path)
