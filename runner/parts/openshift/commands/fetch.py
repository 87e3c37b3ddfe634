"""`recipe fetch`: results, from the cluster to this machine."""

from pathlib import Path

import click

from runner import parts
from runner.commands.options import end, recipe_path, say, set_option
from runner.parts.openshift.commands import cluster_options as shared


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
    from runner.parts.openshift import import_results
    from runner.parts.openshift.client import connect
    from runner.parts.openshift.fetch import fetch as bring
    from runner.run import run_folder
    from runner.run.run_manifest import keep

    recipe, plan = shared.open_both(path, sets, look=False)
    cluster = connect()
    # The last one holds what the recipe is for.
    chosen = plan.stage(stage) if stage else plan.stages[-1]
    folder = run_folder.folder(plan.name, "run", to)
    import_results.require_imported(folder, plan)
    came, number = bring(cluster, plan, chosen, folder.path, say, everything)
    current = import_results.record(folder, plan, chosen, number, say)
    say(f"{came} files fetched; everything is in {(Path(to) if to else folder.path) / chosen.folder}")
    if current:
        keep(folder, recipe, plan)
        for after_fetch in parts.hooks("after_fetch"):
            after_fetch(folder, say)
    end("The results are here.", "compare", path)
