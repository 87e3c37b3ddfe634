"""Targets: what a Plan looks like where it is to run. A target is one module with `render(plan) -> list[Artifact]`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.parts.kfp import target as kfp
from runner.parts.nodes import target as nodes
from runner.parts.serve import kserve
from runner.plan import RUNS, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.render import kubernetes, preparing, pytorchjob, trainjob
from runner.tools.files import Artifact

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# A new target costs one line here.
TARGETS = {
    "pytorchjob": pytorchjob.render,
    "trainjob": trainjob.render,
    "nodes": nodes.render,
}
# All that `recipe render` writes for: where training runs, what walks through all of it, and where the result is served.
NAMES = (*TARGETS, kfp.NAME, kserve.NAME)


def place(recipe: Recipe, target: str | None = None) -> Place:
    """The folders of a recipe's machines: for a target, or where it lives first of all, which is the cluster where it
    names one, then the plain machines that it names, then this machine. Without a target somebody looks at it from here,
    and data files are read where they lie, beside the recipe.

    Raises Stop where the recipe lacks the target's section.
    """
    if target == "nodes" or (target is None and named(recipe) == ("nodes",)):
        return nodes.place(recipe)
    if target is None and not named(recipe):
        return _here(recipe)
    in_pods = kubernetes.place(recipe)
    return in_pods if target else replace(in_pods, files_dir=None)


def _here(recipe: Recipe) -> Place:
    """The folders of a run on this machine."""
    folder = os.path.abspath(f"{RUNS}/{recipe.name}")
    return Place(f"{folder}/config", f"{folder}/data", folder, f"{folder}/scratch")


def default(site: Mapping[str, Any]) -> tuple[str, ...]:
    """What a cluster takes: OpenShift AI 3.6 has no PyTorchJob any more, and before it that is the job that is known.

    site: the recipe's section `openshift`.
    """
    return ("trainjob",) if trainjob.patched(site) else ("pytorchjob",)


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    site: Openshift | None = recipe.settings.get("openshift")
    cluster = default(site) if site is not None else ()
    served = (kserve.NAME,) if site is not None and "serve" in recipe.settings else ()
    return (*cluster, *served, *(("nodes",) if "nodes" in recipe.settings else ()))


def render(plan: Plan, targets: tuple[str, ...] = ()) -> list[Artifact]:
    """The engine's own configs, and what each target adds; without targets the cluster's default one. Pure: the same
    plan gives the same bytes.

    A plan of several stages gets a folder a stage, each rendered as a plan of its own.
    """
    if targets == ("nodes",):
        return nodes.render(plan)
    targets = targets or default(plan.site)
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    artifacts = {file.path: file for file in stage.files}
    for target in targets if stage.trains else ():
        # Of two targets the first one decides what `oc apply -k` takes: a recipe must not run twice at once.
        new = {artifact.path: artifact for artifact in TARGETS[target](plan)}
        artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
    if not stage.trains:
        artifacts |= {artifact.path: artifact for artifact in preparing.render(plan, stage)}
    below = f"{stage.folder}/" if stage.folder else ""
    return [Artifact(f"{below}{file.path}", file.text) for file in artifacts.values()]
