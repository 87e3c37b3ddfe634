"""Emit: everything that a recipe becomes on paper, for each place where it is to run."""

from runner import parts, render
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import forecasting, translate
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.problem import Stop


def emit(recipe: Recipe, names: tuple[str, ...] = ()) -> list[Artifact]:
    """The files of the wanted targets, or of all that the recipe names. Pure: the same recipe gives the same bytes.

    What is for plain machines names other folders than what is for the cluster, and lies in a folder of its own.
    Raises Stop where the recipe lacks a target's section.
    """
    names = names or render.named(recipe)
    if not names:
        sections = [section for section in ("openshift", "nodes") if recipe.settings.knows(section)]
        raise Stop(
            f"The recipe `{recipe.name}` is for this machine: it has no section {listed(sections, 'or')} to render for.",
            "`recipe run` needs none. For a cluster add `openshift` with a `namespace`"
            + (", for plain machines `nodes`." if "nodes" in sections else "."),
        )
    jobs = tuple(name for name in names if name in render.TARGETS)
    artifacts = []
    if jobs:
        plan = planned(recipe, jobs[0])
        artifacts = render.render(plan, jobs)
        artifacts += [file for beside in parts.hooks("beside_jobs") for file in beside(recipe, plan)]
    return artifacts + [file for name in names if name not in jobs for file in render.target(name).emitted(recipe)]


def planned(recipe: Recipe, target: str) -> Plan:
    """The plan that a target gets, with what it needs by estimate: sizes of claims, memory. Only recipe and catalog are
    asked, and nothing of this machine. Raises Stop where the recipe lacks the target's section."""
    plan = translate(recipe, render.place(recipe, target))
    planner = forecasting()
    return planner.sized(recipe, plan) if planner else plan
