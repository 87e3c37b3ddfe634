"""Targets: what a Plan looks like where it is to run. A target is one module with `render(plan) -> list[Artifact]`."""

from __future__ import annotations

from runner.plan import Artifact, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.targets import kubernetes, nodes, pytorchjob

# A new target costs one line here.
TARGETS = {
    "pytorchjob": pytorchjob.render,
    "nodes": nodes.render,
}

DEFAULT = ("pytorchjob",)


def place(recipe: Recipe, target: str | None = None) -> Place:
    """The folders of a recipe's machines: for a target, or where it lives first of all, which is the cluster where it
    names one. Raises Stop where the recipe lacks the target's section."""
    if target == "nodes" or (target is None and "openshift" not in recipe.settings):
        return nodes.place(recipe)
    return kubernetes.place(recipe)


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    cluster = DEFAULT if "openshift" in recipe.settings else ()
    return (*cluster, *(("nodes",) if "nodes" in recipe.settings else ()))


def render(plan: Plan, targets: tuple[str, ...] = DEFAULT) -> list[Artifact]:
    """The engine's own configs, and what each target adds. Pure: the same plan gives the same bytes.

    A plan of several stages gets a folder a stage, each rendered as a plan of its own.
    """
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    if targets == ("nodes",):
        return nodes.render(plan)
    artifacts = {file.path: file for file in stage.files}
    for target in targets:
        artifacts |= {artifact.path: artifact for artifact in TARGETS[target](plan)}
    below = f"{stage.folder}/" if stage.folder else ""
    return [Artifact(f"{below}{file.path}", file.text) for file in artifacts.values()]
