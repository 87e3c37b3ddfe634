"""Emit: everything that a recipe becomes on paper, for each place where it is to run."""

from __future__ import annotations

from runner import render
from runner.parts.kfp import target as kfp
from runner.parts.openshift import upload_instructions
from runner.parts.planner import forecast, serving, storage, termination_grace
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.serving import ServingForecast
from runner.parts.serve import kserve
from runner.parts.serve.plan import Serving
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import translate
from runner.scenarios.shared.common import data_file
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
    apart = ("nodes", kfp.NAME, kserve.NAME)
    groups = [tuple(name for name in names if name not in apart), tuple(name for name in names if name == "nodes")]
    plans = {group: planned(recipe, group[0]) for group in groups if group}
    artifacts = [artifact for group, plan in plans.items() for artifact in render.render(plan, group)]
    artifacts += [file for plan in plans.values() if plan.place.on_cluster for file in _by_hand(recipe, plan)]
    if kfp.NAME in names:
        artifacts += kfp.render(planned(recipe, kfp.NAME))
    if kserve.NAME in names:
        plan, server, _ = served(recipe)
        artifacts += kserve.render(plan, server)
    return artifacts


def served(recipe: Recipe) -> tuple[Plan, Serving, ServingForecast | None]:
    """What the target `kserve` gets: the plan on the cluster, and the server of what it trains; and what that needs, None where
    nobody can count its model. Only recipe and catalog are asked.

    Raises Stop where the recipe lacks a section, or its model lies on no claim.
    """
    if "serve" not in recipe.settings:
        raise Stop(
            f"The recipe `{recipe.name}` has no section `serve`.",
            "Write `serve: {}`, or more of it: `context`, `concurrency`."
            if recipe.settings.knows("serve")
            else "Recipes of this scenario train no language model, and have none.",
        )
    plan = planned(recipe, kserve.NAME)
    return plan, *serving.of(recipe, plan)


def _by_hand(recipe: Recipe, plan: Plan) -> list[Artifact]:
    """How the files beside the recipe come to where its pods look."""
    files = {name: data_file(recipe, plan.place, name) or "" for _, name in recipe.local_files()}
    return upload_instructions.render(plan, files, recipe.file.name)


def planned(recipe: Recipe, target: str) -> Plan:
    """The plan that a target gets, with what it needs by estimate: sizes of claims, memory. Only recipe and catalog are
    asked, and nothing of this machine. Raises Stop where the recipe lacks the target's section."""
    plan = translate(recipe, render.place(recipe, target))
    try:
        forecasts = forecast.of(recipe, plan, look=False)
        return termination_grace.given(storage.sized(plan, forecasts), forecasts)
    except UnknownArchitecture:
        return storage.sized(plan, [])  # an architecture without formulas; `plan` says so
