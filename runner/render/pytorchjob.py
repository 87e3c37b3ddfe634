"""Target pytorchjob: Kubeflow training operator, kubeflow.org/v1."""

import copy
from typing import Any

from runner.plan import Plan, Stage
from runner.render import gate_job, kubernetes, podspec
from runner.tools.files import Artifact
from runner.tools.text import yaml_text

# The operator takes the master's port from the container port of this name, and looks for a container of that one.
CONTAINER = "pytorch"
PORT = {"name": "pytorchjob-port", "containerPort": 23456}


def render(plan: Plan) -> list[Artifact]:
    (stage,) = plan.stages
    files = [kubernetes.claims(plan), kubernetes.config_map(plan, stage), _job_file(plan, stage)]
    files = [file for file in files if file.text]
    listing = kubernetes.kustomization([file.path for file in files], kubernetes.sends(plan))
    return [*files, listing, *gate_job.render(plan, stage)]


def _job_file(plan: Plan, stage: Stage) -> Artifact:
    text = kubernetes.header(plan, stage) + yaml_text(job(plan, stage))
    return Artifact("pytorchjob.yaml", text)


def job(plan: Plan, stage: Stage) -> dict[str, Any]:
    """The PyTorchJob of a stage: one pod spec for master and workers, nothing that the operator sets itself."""
    return kubernetes.job("kubeflow.org/v1", "PyTorchJob", _spec(plan, stage), plan, stage)


def _spec(plan: Plan, stage: Stage) -> dict[str, Any]:
    site, machines = plan.site, stage.machines
    replica = {
        "restartPolicy": site["restart_policy"],
        "template": podspec.pod_template(plan, stage, CONTAINER, [PORT]),
    }
    replicas = {"Master": {"replicas": 1, **replica}}
    if machines.nodes > 1:
        replicas["Worker"] = {"replicas": machines.nodes - 1, **copy.deepcopy(replica)}
    return {
        # Text, as the operator's schema has it; a bare number is refused.
        "nprocPerNode": str(max(1, machines.gpus_per_node)),
        "runPolicy": {
            "cleanPodPolicy": site["clean_pod_policy"],
            # The operator counts the restarts of all pods together, and ends the job when they reach this (Kubeflow common,
            # PastBackoffLimit); when one fails, the others lose it and fail too.
            "backoffLimit": site["backoff_limit"] * machines.nodes + 1,
            "activeDeadlineSeconds": round(site["deadline_hours"] * 3600),
        },
        "pytorchReplicaSpecs": replicas,
    }
