"""`recipe why`: why a job does not start, hangs or has ended, a run has failed, or what a log says."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from runner import parts
from runner.commands.options import complete_recipe, end, open_recipe, say, set_option
from runner.tools.problem import Stop


@click.command()
@click.argument("path", metavar="PATH", shell_complete=complete_recipe)
@set_option
@click.option("--stage", metavar="NAME", help="The stage that is meant.")
def why(path: str, sets: tuple[str, ...], stage: str | None) -> None:
    """Say in a sentence, with its remedy, why a job does not start, hangs or has ended.

    PATH is a recipe (its job on the cluster, else its latest run here), a run folder, a file with a log, with events or with
    what `oc describe` says, or - for what is piped in. The word in brackets at the end of an answer is a heading of the
    documentation's page "When something goes wrong" (docs/troubles.md), which has all of them.
    """
    from runner.tools.run_files import RUN

    given = Path(path)
    lines: Iterable[str]
    if path == "-" or (given.is_file() and given.suffix not in (".yaml", ".yml")) or given.is_dir():
        if sets or stage:
            raise Stop("`--set` and `--stage` are about a recipe.", "Leave them out, or name the recipe.", code=2)
        from runner.parts.report import why as reading
        from runner.parts.report.facts import end_of
        from runner.run.run_folder import find

        if given.is_dir():
            lines = reading.of_run(find("", path)) if (given / RUN).is_file() else reading.of_folder(given)
        elif path == "-":
            lines = reading.of_text(sys.stdin.buffer.read().decode(errors="replace")[-reading.MOST :])
        else:
            lines = reading.of_text(end_of(given, reading.MOST))
    else:
        lines = _of_recipe(path, sets, stage)
    for line in lines:
        say(line)
    recipe = given.suffix in (".yaml", ".yml")
    end("That is all that is known of it.", *(("logs", path) if recipe else ("doctor",)))


def _of_recipe(path: str, sets: tuple[str, ...], stage: str | None) -> Iterable[str]:
    """What stands in the way of a recipe's job on the cluster; of its latest run here where it has none there."""
    from runner.parts.report import why as reading
    from runner.run.run_folder import find

    recipe, _ = open_recipe(path, sets, look=False)
    nowhere: Stop | None = None
    if recipe.settings.get("openshift"):
        try:
            lines: Iterable[str] = parts.hook("why_on_cluster")(path, sets, stage)
            return lines
        except Stop as stop:
            nowhere = stop
    try:
        return reading.of_run(find(recipe.name, None))
    except Stop:
        raise nowhere or Stop(
            f"Nothing of `{recipe.name}` has been run here.",
            "`recipe rehearse` tries it; `recipe check` says what is wrong.",
        ) from None
