"""`recipe site`: what a namespace needs before the first job, as files."""

from pathlib import Path

import click

from runner.commands.options import complete_recipe, end, say, set_option
from runner.parts.openshift.commands.cluster_options import open_plan


@click.command()
@click.argument("paths", metavar="RECIPE...", nargs=-1, required=True, shell_complete=complete_recipe)
@set_option
@click.option("--out", metavar="DIR", help="Where to write. Default: build/NAME/site, of several recipes build/site.")
def site(paths: tuple[str, ...], sets: tuple[str, ...], out: str | None) -> None:
    """Write what the cluster needs before a recipe's first job: namespace, queue, rights, claims, the image, TensorBoard.
    Recipes of several namespaces get a folder a namespace. Needs no cluster and no network."""
    from runner.parts.openshift import site
    from runner.tools.files import write_all

    plans = [open_plan(path, sets) for path in dict.fromkeys(paths)]
    folder = Path(out or (f"build/{plans[0].name}/site" if len(plans) == 1 else "build/site"))
    for file in write_all(folder, site.render(plans)):
        say(str(file))
    say()
    for step in site.steps(plans, str(folder)):
        say(step)
    end("Whoever may do so in the cluster does these steps once.", "submit", paths[0])
