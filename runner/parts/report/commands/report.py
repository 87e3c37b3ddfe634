"""`recipe report`: a run as one page to show, or several beside each other."""

import os
from pathlib import Path

import click

from runner.commands.options import complete_recipe, end, say


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_recipe)
@click.option("--out", metavar="FILE", help="Where the page goes. Default: report.html in the run, of several here.")
def report(runs: tuple[str, ...], out: str | None) -> None:
    """Make an HTML page of a run folder, or of several beside each other. In place of a folder a recipe means its latest run.

    The page is one file that needs nothing else, and can be sent.
    """
    import jinja2  # noqa: F401 - said here, before anything is read

    from runner.parts.report import facts, page
    from runner.recipe.reading import read
    from runner.run.run_folder import find
    from runner.tools.files import write_text
    from runner.tools.run_files import PAGE

    folders = [
        find("", run) if not Path(run).is_file() else find(str(read(run).data.get("name", run)), None) for run in runs
    ]
    file = Path(out) if out else folders[0].path / PAGE if len(folders) == 1 else Path(PAGE)
    if file.is_dir():
        file = file / PAGE
    write_text(file, page.render([facts.of(folder) for folder in folders]))
    say(os.path.relpath(file) if file.resolve().is_relative_to(Path.cwd()) else str(file))
    end("Open the page in a browser, or send it; it needs nothing else.", "chat", "RECIPE", "--page")
