"""`recipe status`: how far jobs are, and what stands in their way."""

from __future__ import annotations

import click

from runner.commands import cluster_options as shared
from runner.commands.options import say, set_option


@click.command()
@click.argument("path", metavar="[RECIPE]", required=False)
@set_option
@shared.stage_option
@click.option(
    "--namespace", "-n", metavar="NAME", help="Without RECIPE: where to look. Default: your current namespace."
)
def status(path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None) -> None:
    """Say how far a recipe's job is and why it does not start; without RECIPE, all jobs of recipe-runner."""
    from runner.execute.cluster.connect import connect
    from runner.execute.cluster.follow import line
    from runner.execute.cluster.jobs import KIND
    from runner.execute.cluster.state import look
    from runner.execute.cluster.why import log_reader, reasons

    if path is None:
        cluster = connect()
        where = namespace or cluster.namespace
        label = {"app.kubernetes.io/managed-by": "recipe-runner"}
        jobs = [job for kind in KIND.values() for job in _with_kind(cluster.list(kind, where, label), kind)]
        if not jobs:
            say(f"No job of recipe-runner in `{where}`.")
    else:
        plan = shared.open_plan(path, sets)
        cluster = connect()
        stages = [shared.chosen(cluster, plan, stage)] if stage or len(plan.stages) == 1 else plan.stages
        jobs = [shared.find_job(cluster, plan, one) for one in stages if stage or _there(cluster, plan, one, stages)]
    for job in jobs:
        state = look(cluster, job)
        say(f"{state.name}: {line(state)}")
        for reason in reasons(state, log_reader(cluster, state)):
            say(f"  {reason}")


def _there(cluster, plan, stage, stages) -> bool:
    """Of several stages only those that have been sent are shown; a single one must be there."""
    from runner.execute.cluster.jobs import names

    if len(stages) == 1 or any(cluster.get(kind, plan.site["namespace"], name) for kind, name in names(plan, stage)):
        return True
    say(f"{stage.name}: not sent yet")
    return False


def _with_kind(jobs, kind):
    """Items of a list do not say what they are."""
    return [{"kind": kind, **job} for job in jobs]
