"""`recipe status`: how far jobs are, and what stands in their way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.commands import cluster_options as shared
from runner.commands.options import say, set_option
from runner.plan import Plan
from runner.problem import Stop

if TYPE_CHECKING:
    from runner.cluster.client import Cluster
    from runner.cluster.status import State


@click.command()
@click.argument("path", metavar="[RECIPE]", required=False)
@set_option
@shared.stage_option
@click.option(
    "--namespace", "-n", metavar="NAME", help="Without RECIPE: where to look. Default: your current namespace."
)
def status(path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None) -> None:
    """Say how far a recipe's job is and why it does not start; without RECIPE, all jobs of recipe-runner."""
    from runner.cluster.client import connect
    from runner.cluster.jobs import POD_LABEL
    from runner.cluster.status import look

    _fits(path, sets, stage, namespace)
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
        return _stages(cluster, plan, stage)
    for job in jobs:
        state = look(cluster, job)
        _show(cluster, state.name, state)


def _fits(path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None) -> None:
    """Raises Stop (exit 2) at an option that says nothing here: a recipe names its own namespace, and only a recipe has
    settings and stages."""
    if path and namespace:
        raise Stop(
            "`-n` says where to look without a recipe; a recipe names its namespace itself.",
            f"Leave out -n, or write `--set openshift.namespace={namespace}`.",
            code=2,
        )
    if not path and (sets or stage):
        raise Stop(f"`{'--stage' if stage else '--set'}` is about a recipe, and none is named.", "Name one.", code=2)


def _show(cluster: Cluster, name: str, state: State) -> None:
    from runner.cluster.diagnose import logs_of, reasons
    from runner.cluster.follow import line

    say(f"{name}: {line(state)}")
    for reason in reasons(state, logs_of(cluster, state)):
        say(f"  {reason}")


def _stages(cluster: Cluster, plan: Plan, only: str | None) -> None:
    """Every stage and every gate, or those of one stage."""
    from runner.cluster import pipeline
    from runner.cluster.jobs import ours
    from runner.cluster.status import ENDED, FAILED, look

    if only:
        plan.stage(only)
    there = ours(cluster, plan)
    way = pipeline.milestones(cluster, plan, there=there)
    for milestone in way:
        stage, state = milestone.stage.name, milestone.state
        name = f"{stage} gate" if milestone.of_gate else stage
        if only not in (None, stage):
            continue
        if milestone.of_gate and milestone.job and state in (*ENDED, pipeline.PROMOTED):
            say(f"{name}: {'closed' if state == FAILED else 'promoted' if state == pipeline.PROMOTED else 'open'}")
            for text in (*pipeline.table(cluster, milestone), *pipeline.promotion(milestone.job).splitlines()):
                say(f"  {text}")
        elif milestone.job and (milestone.at_work or state == FAILED):
            _show(cluster, name, look(cluster, milestone.job))
            if state in (pipeline.CHANGED, pipeline.GOING):
                say(f"  {state[0].upper()}{state[1:]}.")
        else:
            say(f"{name}: {state}")
    for job in pipeline.beside(there, plan, way):
        kind, name = job["kind"], job["metadata"]["name"]
        _show(cluster, f"{kind} `{name}`", look(cluster, job))
        say(
            f"  The recipe has no such stage any more. To end it: oc delete {kind.lower()} {name} -n {plan.site['namespace']}"
        )


def _with_kind(jobs: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Items of a list do not say what they are."""
    return [{"kind": kind, **job} for job in jobs]
