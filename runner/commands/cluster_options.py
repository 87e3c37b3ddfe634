"""What the commands for the cluster share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from runner.commands.options import open_recipe, say
from runner.plan import Plan, Stage
from runner.problem import Stop

stage_option = click.option("--stage", metavar="NAME", help="The stage of a recipe that has several.")


def open_plan(path: str, sets: tuple[str, ...]) -> Plan:
    """The plan of a recipe, as the cluster gets it."""
    from runner.emit import planned

    recipe, _ = open_recipe(path, sets)
    if not recipe.settings.get("openshift"):
        raise Stop(
            f"`{path}` has no section `openshift`, and so no place on a cluster.",
            "Write `openshift:` with a `namespace`.",
        )
    return planned(recipe, "pytorchjob")


def find_job(cluster: Any, plan: Plan, stage: Stage) -> dict[str, Any]:
    """The stage's job on the cluster. Raises Stop where there is none."""
    from runner.execute.cluster.jobs import names, prepares

    space = plan.site["namespace"]
    for kind, name in names(plan, stage):
        if job := cluster.get(kind, space, name):
            return job
    if older := prepares(cluster, plan.only(stage)):
        return older[0]
    name = next(names(plan, stage))[1]
    raise Stop(f"There is no job `{name}` in `{space}`.", "Send it: `recipe submit`.")


def chosen(cluster: Any, plan: Plan, name: str | None) -> Stage:
    """The stage that is meant: by name, else the one that is not done yet, else the last."""
    from runner.execute.cluster import steps
    from runner.execute.order import stage_of

    if name is not None:
        return stage_of(plan, name)
    if len(plan.stages) == 1:
        return plan.stages[0]
    step = steps.current(steps.steps(cluster, plan))
    return step.stage if step else plan.stages[-1]


def job_at_work(cluster: Any, plan: Plan, name: str | None) -> dict[str, Any]:
    """The job that a person who looks means: of the stage `name`, else of the step that is not done yet.

    Raises Stop where there is none.
    """
    from runner.execute.cluster import steps

    if name is None and len(plan.stages) > 1:
        step = steps.current(steps.steps(cluster, plan))
        if step is not None and step.job is not None:
            return step.job
    return find_job(cluster, plan, chosen(cluster, plan, name))


def confirm(yes: bool):
    """Asks on a terminal; elsewhere `--yes` must say so beforehand."""

    def ask(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise Stop(
                question.replace("End it and start anew?", "It was not ended."), "`--yes` ends it and starts anew."
            )
        return click.confirm(question)

    return ask


@contextmanager
def live() -> Iterator[Any]:
    """Shows states: one line that changes on a terminal, a line a change where output is piped."""
    from runner.execute.cluster.follow import line

    def text(state: Any, why: list[str]) -> str:
        return "\n".join([*([f"{state.name}: {line(state)}"] if state else []), *(f"  {reason}" for reason in why)])

    if not sys.stdout.isatty():
        said = ""

        def show(state: Any, why: list[str]) -> None:
            nonlocal said
            if (now := text(state, why)) != said:
                said = now
                say(now)

        yield show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text("…"), refresh_per_second=4) as view:
        yield lambda state, why: view.update(Text(text(state, why)))
