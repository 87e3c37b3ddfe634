"""`recipe submit`: a recipe's job, to the cluster."""

from __future__ import annotations

from dataclasses import replace

import click

from runner.commands import cluster_options as shared
from runner.commands.options import print_notes, recipe_path, say, set_option
from runner.problem import Stop


@click.command()
@recipe_path
@set_option
@shared.stage_option
@click.option("--dry-run", is_flag=True, help="Let the cluster judge everything, and send nothing.")
@click.option(
    "--yes", is_flag=True, help="End a running job of the recipe as it was before it changed, without asking."
)
@click.option("--follow", is_flag=True, help="Watch it: queue, image, start, step, loss and time left.")
@click.option(
    "--target", type=click.Choice(["pytorchjob", "trainjob"]), help="The kind of job. Default: by openshift.version."
)
def submit(
    path: str, sets: tuple[str, ...], stage: str | None, dry_run: bool, yes: bool, follow: bool, target: str | None
) -> None:
    """Send a recipe to the cluster of your kubeconfig. Sending it twice changes nothing.

    That is what comes first that is not done: a stage, or the gate after it. What needs no GPU is waited for.
    """
    from runner import targets
    from runner.check import online, placing
    from runner.cluster import upload
    from runner.cluster.client import connect
    from runner.cluster.follow import follow as watch
    from runner.cluster.submit import submit as send
    from runner.prepared import contents
    from runner.scenarios import translate

    if dry_run and follow:
        raise Stop("With `--dry-run` nothing is sent that `--follow` could watch.", "Leave out one of the two.", code=2)
    recipe, plan = shared.open_both(path, sets)
    if problems := list(placing.placeholder_commit(recipe)):
        raise Stop([replace(problem, severity="error") for problem in problems])
    print_notes(placing.only_here(recipe))
    # Rows that lie in the image were read from the hub when it was built.
    asked = [] if plan.stages[0].trains else list(online.datasets(recipe))
    print_notes(asked)
    if wrong := [problem for problem in asked if problem.severity == "error"]:
        raise Stop(wrong)
    files = upload.files(recipe, plan.place)
    # The same plan as it names files from here.
    rows = {stage.name: contents(stage.data) for stage in translate(recipe, targets.place(recipe)).stages}
    cluster = connect()
    what = send(cluster, plan, stage, target, say, shared.confirm(yes), dry_run, files, rows)
    if what is None or dry_run:
        return
    if follow:
        with shared.live() as show:
            watch(cluster, what, show)
    else:
        say(f"Watch it: recipe status {path}, recipe logs {path} -f")
