"""`recipe fetch`: results, from the cluster to this machine."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands import cluster_options as shared
from runner.commands.options import recipe_path, say, set_option


@click.command()
@recipe_path
@set_option
@shared.stage_option
@click.option("--to", metavar="DIR", help="Run folder to write to. Default: runs/NAME, where `recipe ask` looks.")
@click.option("--all", "everything", is_flag=True, help="Checkpoints and prepared data too; they are large.")
def fetch(path: str, sets: tuple[str, ...], stage: str | None, to: str | None, everything: bool) -> None:
    """Bring a job's results from its claim: model, curves, answers, summary. Interrupted, it goes on where it was.

    A stage of several lies in a folder of its own below the run's.
    """
    from runner.execute import runs
    from runner.execute.cluster import settle
    from runner.execute.cluster.connect import connect
    from runner.execute.cluster.fetch import fetch as bring

    plan = shared.open_plan(path, sets)
    cluster = connect()
    # Of several stages the last one holds what the recipe is for.
    chosen = shared.chosen(cluster, plan, stage or plan.stages[-1].name)
    folder = runs.folder(plan.name, "run", to)
    settle.before(folder)
    # Where a run on this machine has a stage, too.
    home = folder.path / chosen.folder
    came = bring(cluster, plan.only(chosen), chosen, home, say, everything)
    settle.after(folder, plan, chosen, say)
    say(f"{came} files fetched; everything is in {Path(to) / chosen.folder if to else home}")
