"""Plain Jobs beside training: what prepares a stage, and what measures it."""

from __future__ import annotations

from typing import Any

from runner.plan import Machines, Plan, Stage
from runner.targets import code, kubernetes, podspec


def job(
    plan: Plan, stage: Stage, name: str, part: str, spec: dict[str, Any], annotations: dict[str, str]
) -> dict[str, Any]:
    """A plain Job that goes with a stage. part: what it does for the stage, one word."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": plan.site["namespace"],
            "labels": kubernetes.labels(plan, stage) | {"recipe-runner/part": part} | kubernetes.queue(plan),
            "annotations": annotations,
        },
        "spec": spec,
    }


def pod(
    plan: Plan,
    stage: Stage,
    part: str,
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    machines: Machines | None = None,
) -> dict[str, Any]:
    """The template of a pod with one container that runs once. machines: with the GPU that it needs; None for any."""
    clone = code.init_containers(plan, kubernetes.image(plan), podspec.listed(podspec.CACHES))
    return {
        "metadata": {"labels": kubernetes.labels(plan, stage) | {"recipe-runner/part": part}},
        "spec": {
            **podspec.identity(plan),
            "restartPolicy": "Never",
            "securityContext": podspec.pod_security(),
            **(podspec.where(machines) if machines else {}),
            **({"initContainers": clone} if clone else {}),
            "containers": [container],
            "volumes": volumes,
        },
    }
