"""Plain Jobs and pods beside training: what prepares a stage, what measures it, and what opens its claim for a while."""

from typing import Any

from runner.plan import Machines, Plan, Stage
from runner.render import code, kubernetes, podspec


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
            "labels": kubernetes.pod_labels(plan, stage) | {"recipe-runner/part": part} | kubernetes.queue(plan),
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
    clone = code.init_containers(plan, kubernetes.pulled(plan), podspec.listed(podspec.CACHES))
    return {
        "metadata": {"labels": kubernetes.pod_labels(plan, stage) | {"recipe-runner/part": part}},
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


def small(
    plan: Plan,
    part: str,
    command: list[str],
    mounts: list[dict[str, Any]],
    env: dict[str, str] | None = None,
    secrets: list[dict[str, Any]] | None = None,
    memory: str = "1Gi",
) -> dict[str, Any]:
    """The container of a pod that computes nothing. env: beside the writable folders and the code's own; secrets: what of it
    is read from Secrets; memory: a quantity."""
    share = {"cpu": "1", "memory": memory}
    return {
        "name": part,
        **kubernetes.pulled(plan),
        "command": command,
        "env": podspec.listed(podspec.CACHES | code.environment(plan) | (env or {})) + (secrets or []),
        "resources": {"requests": share, "limits": share},
        "securityContext": podspec.container_security(),
        "volumeMounts": mounts,
    }


def alone(
    plan: Plan, stage: Stage, part: str, container: dict[str, Any], volumes: list[dict[str, Any]], seconds: int
) -> dict[str, Any]:
    """A pod without a Job, which a command makes, waits for and deletes. seconds: after which it ends by itself."""
    template = pod(plan, stage, part, container, volumes)
    meta = {"name": f"{kubernetes.job_name(plan)}-{part}", "namespace": plan.site["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"] | meta,
        "spec": template["spec"] | {"activeDeadlineSeconds": seconds},
    }
