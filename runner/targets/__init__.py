"""Targets: what a Plan looks like where it is to run. A target is one module with `render(plan) -> list[Artifact]`."""

from __future__ import annotations

from runner.plan import Artifact, Plan
from runner.targets import kubernetes, pytorchjob, trainjob

# A new target costs one line here.
TARGETS = {
    "pytorchjob": pytorchjob.render,
    "trainjob": trainjob.render,
}


def default(plan: Plan) -> tuple[str, ...]:
    """OpenShift AI 3.6 has no PyTorchJob any more, and before it that is the job that is known."""
    return ("trainjob",) if trainjob.patched(plan) else ("pytorchjob",)


def render(plan: Plan, targets: tuple[str, ...] = ()) -> list[Artifact]:
    """The engine's own configs, and what each target adds; without targets the default one. Pure: the same plan gives
    the same bytes."""
    artifacts = {f"{kubernetes.folder(plan, stage)}{file.path}": file for stage in plan.stages for file in stage.files}
    artifacts = {path: Artifact(path, file.text) for path, file in artifacts.items()}
    for target in targets or default(plan):
        # Of two targets the first one decides what `oc apply -k` takes: a recipe must not run twice at once.
        new = {artifact.path: artifact for artifact in TARGETS[target](plan)}
        artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
    return list(artifacts.values())
