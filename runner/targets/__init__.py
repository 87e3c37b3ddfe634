"""Targets: what a Plan looks like where it is to run. A target is one module with `render(plan) -> list[Artifact]`."""

from __future__ import annotations

from runner.plan import Artifact, Plan, Stage
from runner.targets import pytorchjob

# A new target costs one line here.
TARGETS = {
    "pytorchjob": pytorchjob.render,
}

DEFAULT = ("pytorchjob",)


def render(plan: Plan, targets: tuple[str, ...] = DEFAULT) -> list[Artifact]:
    """The engine's own configs, and what each target adds. Pure: the same plan gives the same bytes.

    A plan of several stages gets a folder a stage, each rendered as a plan of its own.
    """
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    artifacts = {file.path: file for file in stage.files}
    for target in targets:
        artifacts |= {artifact.path: artifact for artifact in TARGETS[target](plan)}
    below = f"{stage.folder}/" if stage.folder else ""
    return [Artifact(f"{below}{file.path}", file.text) for file in artifacts.values()]
