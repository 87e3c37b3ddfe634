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
    from runner.execute.cluster.jobs import POD_LABEL
    from runner.execute.cluster.state import look

    if path is None:
        cluster = connect()
        where = namespace or cluster.namespace
        label = {"app.kubernetes.io/managed-by": "recipe-runner"}
        jobs = [job for kind in POD_LABEL for job in _with_kind(cluster.list(kind, where, label), kind)]
        if not jobs:
            say(f"No job of recipe-runner in `{where}`.")
    else:
        plan = shared.open_plan(path, sets)
        cluster = connect()
        if len(plan.stages) > 1:
            return _steps(cluster, plan, stage)
        jobs = [shared.find_job(cluster, plan, shared.chosen(cluster, plan, stage))]
    for job in jobs:
        state = look(cluster, job)
        _show(cluster, state.name, state)


def _show(cluster, name, state) -> None:
    from runner.execute.cluster.follow import line
    from runner.execute.cluster.why import log_reader, reasons

    say(f"{name}: {line(state)}")
    for reason in reasons(state, log_reader(cluster, state)):
        say(f"  {reason}")


def _steps(cluster, plan, only) -> None:
    """Every stage of a pipeline and every gate, or those of one stage."""
    from runner.execute.cluster import steps
    from runner.execute.cluster.state import ENDED, FAILED, look
    from runner.execute.order import stage_of

    if only:
        stage_of(plan, only)
    for step in steps.steps(cluster, plan):
        name = f"{step.stage.name} gate" if step.of_gate else step.stage.name
        if only not in (None, step.stage.name):
            continue
        if step.of_gate and step.state in (*ENDED, steps.PROMOTED):
            say(
                f"{name}: {'closed' if step.state == FAILED else 'promoted' if step.state == steps.PROMOTED else 'open'}"
            )
            for text in (*steps.table(cluster, step), *steps.promotion(step.job).splitlines()):
                say(f"  {text}")
        elif step.state in (steps.UNDER_WAY, FAILED):
            _show(cluster, name, look(cluster, step.job))
        else:
            say(f"{name}: {step.state}")


def _with_kind(jobs, kind):
    """Items of a list do not say what they are."""
    return [{"kind": kind, **job} for job in jobs]
