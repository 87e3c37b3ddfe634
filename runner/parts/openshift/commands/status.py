"""`recipe status`: how far jobs are, and what stands in their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.commands.options import complete_recipe, end, say, set_option
from runner.parts.openshift.commands import cluster_options as shared
from runner.plan import Plan
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.parts.openshift.client import Cluster
    from runner.parts.openshift.pipeline import Milestone
    from runner.parts.openshift.status import State


@click.command()
@click.argument("path", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@set_option
@shared.stage_option
@click.option(
    "--namespace", "-n", metavar="NAME", help="Without RECIPE: where to look. Default: your current namespace."
)
@click.option("--watch", "-w", is_flag=True, help="Without RECIPE: keep the table until every job has ended.")
def status(path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None, watch: bool) -> None:
    """Say how far a recipe's job is and why it does not start; without RECIPE, a table of all jobs of recipe-runner.

    The table holds speed and GPU memory beside what was planned, and says what was spent so far: in the currency of
    `limits.price_per_gpu_hour` where the recipe names it, else in GPU hours.
    """
    from runner.parts.openshift.client import connect

    _fits(path, sets, stage, namespace, watch)
    if path is None:
        cluster = connect()
        _table(cluster, namespace or cluster.namespace, watch)
        end("So far they are.", "status", "RECIPE")
        return
    plan = shared.open_plan(path, sets)
    _stages(connect(), plan, stage)
    end("So far it is.", "logs", path, "-f")


def _table(cluster: Cluster, namespace: str, watch: bool) -> None:
    from runner.parts.openshift import overview
    from runner.parts.openshift.errors import TryAgain, pause

    def text() -> tuple[str, bool]:
        rows = overview.rows(cluster, namespace)
        lines = overview.table(rows) if rows else [f"No job of recipe-runner in `{namespace}`."]
        return "\n".join(lines), all(row.state.ended for row in rows)

    if not watch:
        return say(text()[0])
    shown = ""
    with shared.screen() as show:
        while True:
            try:
                shown, ended = text()
                show(shown)
                if ended:
                    return
            except TryAgain as silence:
                show("\n".join(filter(None, [shown, f"{silence.text.splitlines()[0]} Trying again."])))
            pause()


def _fits(path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None, watch: bool) -> None:
    """Raises Stop (exit 2) at an option that says nothing here: a recipe names its own namespace, and only a recipe has
    settings and stages."""
    if path and namespace:
        raise Stop(
            "`-n` says where to look without a recipe; a recipe names its namespace itself.",
            f"Leave out -n, or write `--set openshift.namespace={namespace}`.",
            code=2,
        )
    if path and watch:
        raise Stop(
            "`--watch` keeps the table of all jobs.",
            "Leave out the recipe; `recipe submit RECIPE --follow` follows one.",
            code=2,
        )
    if not path and (sets or stage):
        raise Stop(f"`{'--stage' if stage else '--set'}` is about a recipe, and none is named.", "Name one.", code=2)


def _show(cluster: Cluster, name: str, state: State) -> None:
    from runner.parts.openshift.diagnose import logs_of, reasons
    from runner.parts.openshift.follow import line

    say(f"{name}: {line(state)}")
    for reason in reasons(state, logs_of(cluster, state)):
        say(f"  {reason}")


def _early(cluster: Cluster, milestone: Milestone) -> str:
    """That a finished stage has ended early, where it was allowed to."""
    from runner.parts.openshift.status import FINISHED, early_stop

    allowed = (milestone.stage.config.get("recipe_runner") or {}).get("early_stopping")
    if not allowed or milestone.of_gate or milestone.job is None or milestone.state != FINISHED:
        return ""
    ended = early_stop(cluster, milestone.job)
    return f"; {ended.told}" if ended else ""


def _stages(cluster: Cluster, plan: Plan, only: str | None) -> None:
    """Every stage and every gate, or those of one stage."""
    from runner.parts.openshift import driver, kfp_runs, pipeline
    from runner.parts.openshift.jobs import ours
    from runner.parts.openshift.status import ENDED, FAILED, look

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
            say(f"{name}: {state}{_early(cluster, milestone)}")
    if not only and (job := driver.found(cluster, plan)):
        say(f"driver: {driver.state(job)}")
        for text in driver.why(cluster, job):
            say(f"  {text}")
    for run in () if only else kfp_runs.found(cluster, plan):
        say(f"run `{run}` of Kubeflow Pipelines: goes on by itself")
    for job in pipeline.beside(there, plan, way):
        kind, name = job["kind"], job["metadata"]["name"]
        _show(cluster, f"{kind} `{name}`", look(cluster, job))
        say(
            f"  The recipe has no such stage any more. To end it: oc delete {kind.lower()} {name} -n {plan.site['namespace']}"
        )
