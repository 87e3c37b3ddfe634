"""`recipe submit`: a recipe's job, to the cluster."""

from __future__ import annotations

import click

from runner.commands import cluster_options as shared
from runner.commands.options import recipe_path, say, set_option


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

    Of a pipeline the first step that is not done: a stage, or the gate after it.
    """
    from runner.execute.cluster.connect import connect
    from runner.execute.cluster.follow import follow as watch
    from runner.execute.cluster.jobs import sent
    from runner.execute.cluster.steps import choose
    from runner.execute.cluster.submit import submit as send

    plan = shared.open_plan(path, sets)
    cluster = connect()
    if len(plan.stages) > 1:
        step = choose(cluster, plan, stage)
        what = sent(plan, step.stage, target, step.of_gate)
    else:
        what = sent(plan, shared.chosen(cluster, plan, stage), target)
    send(cluster, what, say, shared.confirm(yes), dry_run)
    if follow and not dry_run:
        with shared.live() as show:
            watch(cluster, what, show)
    elif not dry_run:
        say(f"Watch it: recipe status {path}, recipe logs {path} -f")
