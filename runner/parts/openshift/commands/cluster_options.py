"""What the commands for the cluster share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from runner.commands.options import open_recipe, say
from runner.plan import Plan, Stage
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.parts.openshift.client import Cluster
    from runner.recipe.recipe import Recipe

stage_option = click.option("--stage", metavar="NAME", help="The stage that is meant.")


def open_plan(path: str, sets: tuple[str, ...]) -> Plan:
    """The plan of a recipe, as the cluster got it; its data files need not be on this machine."""
    return open_both(path, sets, look=False)[1]


def open_both(path: str, sets: tuple[str, ...], look: bool = True) -> tuple[Recipe, Plan]:
    """A recipe, and its plan as the cluster gets it. look: whether the files that it names are looked at."""
    from runner.render import planned

    recipe, _ = open_recipe(path, sets, look=look)
    if not recipe.settings.get("openshift"):
        raise Stop(
            f"`{path}` has no section `openshift`, and so no place on a cluster.",
            "Write `openshift:` with a `namespace`.",
        )
    return recipe, planned(recipe, "pytorchjob")


def find_job(cluster: Cluster, plan: Plan, stage: Stage) -> dict[str, Any]:
    """The stage's job on the cluster. Raises Stop where there is none."""
    from runner.parts.jobs import kubernetes
    from runner.parts.openshift.jobs import existing

    for job in existing(cluster, plan, stage):
        return job
    name = kubernetes.job_name(plan.only(stage))
    raise Stop(f"There is no job `{name}` in `{plan.site['namespace']}`.", "Send it: `recipe submit`.")


def job_at_work(cluster: Cluster, plan: Plan, name: str | None) -> dict[str, Any]:
    """The job that a person who looks means: of the stage `name`, else of the stage or gate at work or not done yet.

    Raises Stop where there is none.
    """
    from runner.parts.openshift import pipeline

    if name is not None:
        return find_job(cluster, plan, plan.stage(name))
    milestone = pipeline.looked_at(pipeline.milestones(cluster, plan))
    return (
        milestone.job
        if milestone and milestone.job
        else find_job(cluster, plan, milestone.stage if milestone else plan.stages[-1])
    )


def confirm(yes: bool) -> Callable[[str], bool]:
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
    from runner.parts.openshift.follow import line

    def text(state: Any, why: list[str]) -> str:
        return "\n".join([*([f"{state.name}: {line(state)}"] if state else []), *(f"  {reason}" for reason in why)])

    with screen() as show:
        yield lambda state, why: show(text(state, why))


@contextmanager
def screen() -> Iterator[Callable[[str], None]]:
    """Shows a text in place of the one before it; where output is piped, below it, and only when it has changed."""
    if not sys.stdout.isatty():
        said = ""

        def show(now: str) -> None:
            nonlocal said
            if now != said:
                said = now
                say(now)

        yield show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text("…"), refresh_per_second=4) as view:
        yield lambda now: view.update(Text(now, overflow="fold"))
