"""Targets: what a Plan looks like where it is to run. Those of the core are a Kubernetes job each; a part brings others
(`scenarios/contract.py`, Target)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from runner import parts
from runner.plan import RUNS, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.render import batch, kubernetes, training_jobs
from runner.scenarios import forecasting, translate
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift
    from runner.scenarios.contract import Target

# Jobs of the cluster, rendered stage by stage.
TARGETS = {"pytorchjob": training_jobs.pytorchjob, "trainjob": training_jobs.trainjob}
# All that `recipe render` writes for.
NAMES = (*TARGETS, *parts.table("targets"))


def target(name: str) -> Target:
    """A target that a part brings."""
    return cast("Target", import_module(parts.table("targets")[name]))


def place(recipe: Recipe, name: str | None = None) -> Place:
    """The folders of a recipe's machines: for a target, or where it lives first of all, which is the cluster where it
    names one, then what a part's target names, then this machine. Without a target somebody looks at it from here,
    and data files are read where they lie, beside the recipe.

    Raises Stop where the recipe lacks the target's section.
    """
    if name is None and "openshift" not in recipe.settings:
        there = (target(each) for each in named(recipe))
        return next((each.place(recipe) for each in there if hasattr(each, "place")), _here(recipe))
    if name in parts.table("targets") and hasattr(target(name), "place"):
        return target(name).place(recipe)
    in_pods = kubernetes.place(recipe)
    return in_pods if name else replace(in_pods, files_dir=None)


def _here(recipe: Recipe) -> Place:
    """The folders of a run on this machine."""
    folder = os.path.abspath(f"{RUNS}/{recipe.name}")
    return Place(f"{folder}/config", f"{folder}/data", folder, f"{folder}/scratch")


def default(site: Mapping[str, Any]) -> tuple[str, ...]:
    """What a cluster takes: OpenShift AI 3.6 has no PyTorchJob any more, and before it that is the job that is known.

    site: the recipe's section `openshift`.
    """
    return ("trainjob",) if training_jobs.patched(site) else ("pytorchjob",)


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    site: Openshift | None = recipe.settings.get("openshift")
    cluster = default(site) if site is not None else ()
    return (*cluster, *(name for name in parts.table("targets") if target(name).named(recipe)))


def render(plan: Plan, targets: tuple[str, ...] = ()) -> list[Artifact]:
    """The engine's own configs, and what each target of the core adds; without targets the cluster's default one. Pure: the
    same plan gives the same bytes.

    A plan of several stages gets a folder a stage, each rendered as a plan of its own.
    """
    targets = targets or default(plan.site)
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    artifacts = {file.path: file for file in stage.files}
    for target in targets if stage.trains else ():
        # Of two targets the first one decides what `oc apply -k` takes: a recipe must not run twice at once.
        new = {artifact.path: artifact for artifact in TARGETS[target](plan)}
        artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
    if not stage.trains:
        artifacts |= {artifact.path: artifact for artifact in batch.prepare(plan, stage)}
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
    jobs = tuple(name for name in names if name in TARGETS)
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
