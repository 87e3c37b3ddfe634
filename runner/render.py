"""What a Plan looks like where it is to run. Targets belong to parts (`scenarios/contract.py`, Target)."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from runner import parts
from runner.plan import RUNS, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios import forecasting, translate
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.scenarios.contract import Target

# All that `recipe render` writes for.
NAMES = tuple(parts.table("targets"))


def target(name: str) -> Target:
    return cast("Target", import_module(parts.table("targets")[name]))


def place(recipe: Recipe, name: str | None = None) -> Place:
    """The folders of a recipe's machines: for a target, or for the first target that the recipe has a section for, or this
    machine. Without a target the data files are read where they are now, beside the recipe.

    Raises Stop where the recipe lacks the target's section.
    """
    if name and hasattr(target(name), "place"):
        return target(name).place(recipe)
    first = next((target(each) for each in named(recipe) if hasattr(target(each), "place")), None)
    return replace(first.place(recipe), files_dir=None) if first else _here(recipe)


def _here(recipe: Recipe) -> Place:
    """The folders of a run on this machine."""
    folder = os.path.abspath(f"{RUNS}/{recipe.name}")
    return Place(f"{folder}/config", f"{folder}/data", folder, f"{folder}/scratch")


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    return tuple(name for name in NAMES if target(name).named(recipe))


def render(plan: Plan, targets: tuple[str, ...]) -> list[Artifact]:
    """The engine's own configs, and the job that each of these targets makes of a stage. Pure: the same plan gives the same
    bytes.

    A plan of several stages gets a folder a stage, each rendered as a plan of its own.
    """
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    artifacts = {file.path: file for file in stage.files}
    for name in targets:
        # Of two targets the first one decides what `oc apply -k` takes: a recipe must not run twice at once.
        new = {artifact.path: artifact for artifact in target(name).job(plan, stage)}
        artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
    below = f"{stage.folder}/" if stage.folder else ""
    return [Artifact(f"{below}{file.path}", file.text) for file in artifacts.values()]


def emit(recipe: Recipe, names: tuple[str, ...] = ()) -> list[Artifact]:
    """The files of the wanted targets, or of all that the recipe names. Pure: the same recipe gives the same bytes.

    What is for plain machines names other folders than what is for the cluster, and lies in a folder of its own.
    Raises Stop where the recipe lacks a target's section.
    """
    names = names or named(recipe)
    if not names:
        sections = [section for section in ("openshift", "nodes") if recipe.settings.knows(section)]
        raise Stop(
            f"The recipe `{recipe.name}` is for this machine: it has no section {listed(sections, 'or')} to render for.",
            "`recipe run` needs none. For a cluster add `openshift` with a `namespace`"
            + (", for plain machines `nodes`." if "nodes" in sections else "."),
        )
    jobs = tuple(name for name in names if hasattr(target(name), "job"))
    artifacts = []
    if jobs:
        plan = planned(recipe, jobs[0])
        artifacts = render(plan, jobs)
        artifacts += [file for beside in parts.hooks("beside_jobs") for file in beside(recipe, plan)]
    return artifacts + [file for name in names if name not in jobs for file in target(name).emitted(recipe)]


def planned(recipe: Recipe, target: str) -> Plan:
    """The plan that a target gets, with what it needs by estimate: sizes of claims, memory. Only recipe and catalog are
    asked, and nothing of this machine. Raises Stop where the recipe lacks the target's section."""
    plan = translate(recipe, place(recipe, target))
    planner = forecasting()
    return planner.sized(recipe, plan) if planner else plan
