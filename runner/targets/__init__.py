"""Targets: what a Plan looks like where it is to run. A target is one module with `render(plan) -> list[Artifact]`."""

from __future__ import annotations

from runner.plan import Artifact, Plan
from runner.targets import pytorchjob

# A new target costs one line here.
TARGETS = {
    "pytorchjob": pytorchjob.render,
}

DEFAULT = ("pytorchjob",)


def render(plan: Plan, targets: tuple[str, ...] = DEFAULT) -> list[Artifact]:
    """The engine's own configs, and what each target adds. Pure: the same plan gives the same bytes."""
    artifacts = {file.path: file for stage in plan.stages for file in stage.files}
    for target in targets:
        artifacts |= {artifact.path: artifact for artifact in TARGETS[target](plan)}
    return list(artifacts.values())
