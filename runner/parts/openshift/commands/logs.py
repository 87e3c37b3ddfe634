"""`recipe logs`: what a job's machines write."""

import click

from runner.commands.options import end, recipe_path, say, set_option
from runner.parts.openshift.commands import cluster_options as shared


@click.command()
@recipe_path
@set_option
@shared.stage_option
@click.option("--node", type=click.IntRange(0), default=0, help="The machine, 0 for the master.", show_default=True)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
def logs(path: str, sets: tuple[str, ...], stage: str | None, node: int, follow: bool) -> None:
    """Show the log of one of a job's machines, that of the previous container first where it was started again."""
    from runner.parts.openshift import logs as reading
    from runner.parts.openshift.client import connect
    from runner.parts.openshift.diagnose import logs_of, reasons
    from runner.parts.openshift.status import look

    plan = shared.open_plan(path, sets)
    cluster = connect()
    job = shared.job_at_work(cluster, plan, stage)
    if follow:
        meta = job["metadata"]
        reading.follow(cluster, lambda: cluster.get(job["kind"], meta["namespace"], meta["name"]), node, say)
        return
    for line in reading.whole(cluster, job, node):
        say(line)
    state = look(cluster, job)
    for reason in reasons(state, logs_of(cluster, state)):
        # Beside the log, so that it can be piped on as it is.
        click.echo(reason, err=True)
    end("The log ends here for now.", "status", path)
