"""Target pytorchjob: Kubeflow training operator, kubeflow.org/v1."""

from __future__ import annotations

import copy
from typing import Any

from runner.plan import Artifact, Plan, Stage
from runner.targets import kubernetes
from runner.text import yaml_text

# The operator takes the master's port from the container port of this name, and looks for a container of that one.
CONTAINER = "pytorch"
PORT = {"name": "pytorchjob-port", "containerPort": 23456}


def render(plan: Plan) -> list[Artifact]:
    (stage,) = plan.stages
    files = [kubernetes.claims(plan), kubernetes.config_map(plan, stage), _job_file(plan, stage)]
    files = [file for file in files if file.text]
    return [*files, kubernetes.kustomization(plan, [file.path for file in files])]


def _job_file(plan: Plan, stage: Stage) -> Artifact:
    machines = stage.machines
    header = (
        f"# Made by recipe-runner from the recipe `{plan.name}` ({plan.fingerprint}): {machines.nodes} × "
        f"{machines.gpus_per_node} {machines.gpu}. Change the recipe and render again.\n"
    )
    return Artifact("pytorchjob.yaml", header + yaml_text(job(plan, stage)))


def job(plan: Plan, stage: Stage) -> dict[str, Any]:
    """The PyTorchJob of a stage: one pod spec for master and workers, nothing that the operator sets itself."""
    site, machines = plan.site, stage.machines
    queue = {"kueue.x-k8s.io/queue-name": site["queue"]} if site.get("queue") else {}
    replica = {
        "restartPolicy": site["restart_policy"],
        "template": kubernetes.pod_template(plan, stage, CONTAINER, [PORT]),
    }
    replicas = {"Master": {"replicas": 1, **replica}}
    if machines.nodes > 1:
        replicas["Worker"] = {"replicas": machines.nodes - 1, **copy.deepcopy(replica)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": kubernetes.job_name(plan),
            "namespace": site["namespace"],
            "labels": kubernetes.labels(plan, stage) | queue,
        },
        "spec": {
            "nprocPerNode": str(max(1, machines.gpus_per_node)),
            "runPolicy": {
                "cleanPodPolicy": site["clean_pod_policy"],
                "backoffLimit": site["backoff_limit"],
                "activeDeadlineSeconds": round(site["deadline_hours"] * 3600),
            },
            "pytorchReplicaSpecs": replicas,
        },
    }
