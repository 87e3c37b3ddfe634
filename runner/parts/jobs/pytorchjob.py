"""Target pytorchjob: a stage as a PyTorchJob of the Kubeflow training operator, kubeflow.org/v1."""

import copy
from pathlib import Path

from runner.parts.jobs import batch, kubernetes, podspec
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.tools.files import Artifact
from runner.tools.text import from_template, yaml_text

# The operator looks for a container and a container port of these names.
PYTORCH = "pytorch"
MASTER_PORT = {"name": "pytorchjob-port", "containerPort": 23456}
# The access to a job's pods. OpenShift AI itself restricts that to the pods of a TrainJob.
POLICY = Path(__file__).with_name(kubernetes.POLICY_FILE)

place = kubernetes.place


def named(recipe: Recipe) -> bool:
    return kubernetes.takes(recipe, kubernetes.PYTORCHJOB)


def job(plan: Plan, stage: Stage) -> list[Artifact]:
    """The files of a PyTorchJob, or of a Job if the stage trains nothing. plan: of this stage alone."""
    if not stage.trains:
        return batch.prepare(plan, stage)
    site, machines, name = plan.site, stage.machines, kubernetes.job_name(plan)
    # One pod spec for master and workers, without what the operator sets itself.
    template = podspec.pod_template(plan, stage, PYTORCH, [MASTER_PORT])
    replica = {"restartPolicy": site["restart_policy"], "template": template}
    replicas = {"Master": {"replicas": 1, **replica}}
    if machines.nodes > 1:
        replicas["Worker"] = {"replicas": machines.nodes - 1, **copy.deepcopy(replica)}
    spec = {
        # The operator's schema requires text.
        "nprocPerNode": str(max(1, machines.gpus_per_node)),
        "runPolicy": {
            "cleanPodPolicy": site["clean_pod_policy"],
            # The operator counts the restarts of all pods together (Kubeflow common, PastBackoffLimit). If one pod
            # fails, the others lose it and fail, too.
            "backoffLimit": site["backoff_limit"] * machines.nodes + 1,
            "activeDeadlineSeconds": round(site["deadline_hours"] * 3600),
        },
        "pytorchReplicaSpecs": replicas,
    }
    text = yaml_text(kubernetes.job("kubeflow.org/v1", "PyTorchJob", spec, plan, stage))
    policy = from_template(POLICY, name=name, namespace=plan.site["namespace"], port=plan.site["metrics_port"])
    return [*kubernetes.files(plan, stage, "pytorchjob.yaml", text, policy=policy), *batch.gate(plan, stage)]
