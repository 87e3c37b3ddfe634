"""Runs of Kubeflow Pipelines that walk through a recipe (target `kfp`): which they are, and how one is ended.

A run is a Workflow of Argo, whose name all its pods carry. It is ended as the pipeline server ends it (`TerminateWorkflow` in kfp's
`resource_manager.go`), by a deadline that is over: the cluster's API is there wherever a person works, and the server's need not be.
"""

import time

from runner.parts.jobs import kubernetes
from runner.parts.kfp import target
from runner.parts.openshift import driver_job
from runner.parts.openshift.client import Cluster, address
from runner.parts.openshift.errors import ENDING_SECONDS, Refused, patiently, pause
from runner.plan import Plan
from runner.tools.problem import Stop

# What kfp's compiler gives every pod of a run, and Argo every pod of a Workflow: the Workflow's name.
OF_RUN, WORKFLOW = {"pipelines.kubeflow.org/v2_component": "true"}, "workflows.argoproj.io/workflow"


def found(cluster: Cluster, plan: Plan) -> dict[str, str]:
    """The runs that are at work, of the recipe as it is or was, each with the config map of the plan that its task mounts."""
    own = plan.only(driver_job.stage(plan, target.NAME))
    runs: dict[str, str] = {}
    for pod in cluster.list("Pod", plan.site["namespace"], OF_RUN):
        maps = [volume.get("configMap", {}).get("name", "") for volume in pod["spec"].get("volumes", ())]
        mounted = [name for name in maps if kubernetes.is_config_map_of(name, own)]
        if mounted and pod.get("status", {}).get("phase") in ("Pending", "Running"):
            runs[str(pod["metadata"]["labels"][WORKFLOW])] = mounted[0]
    return dict(sorted(runs.items()))


def outdated(cluster: Cluster, plan: Plan) -> list[str]:
    """The runs that are at work on the recipe as it was before it changed, which would send that again."""
    own = driver_job.stage(plan, target.NAME)
    now = kubernetes.config_map_name(plan.only(own), own)
    return [name for name, config in found(cluster, plan).items() if config != now]


def end(cluster: Cluster, plan: Plan, name: str) -> None:
    """Ends a run, and waits until no task of it is left that would send something. Raises Stop where the cluster refuses, or it stays."""
    patiently(lambda: _no_time_left(cluster, plan.site["namespace"], name))
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        if name not in patiently(lambda: found(cluster, plan)):
            return
        pause()
    raise Stop(f"Workflow `{name}` is to end, and does not.", "Look at it with `oc describe`.")


def _no_time_left(cluster: Cluster, namespace: str, name: str) -> None:
    over, merge = {"spec": {"activeDeadlineSeconds": 0}}, "application/merge-patch+json"
    try:
        cluster.request("PATCH", address("Workflow", namespace, name), body=over, content=merge)
    except Refused as refused:
        raise refused.stop("Workflow", namespace, name) from None
