"""Runs of Kubeflow Pipelines that walk through a recipe (target `kfp`): which they are, and how one is ended.

A run is a Workflow of Argo, whose name all its pods carry. It is ended as the pipeline server ends it (`TerminateWorkflow` in kfp's
`resource_manager.go`), by a deadline that is over: the cluster's API is there wherever a person works, and the server's need not be.
"""

from __future__ import annotations

import time

from runner.cluster.client import Cluster, address
from runner.cluster.errors import Refused, patiently, pause
from runner.cluster.submit import ENDING_SECONDS
from runner.plan import Plan
from runner.problem import Stop
from runner.targets import driver, kfp, kubernetes

# What kfp's compiler gives every pod of a run, and Argo every pod of a Workflow: the Workflow's name.
OF_RUN, WORKFLOW = {"pipelines.kubeflow.org/v2_component": "true"}, "workflows.argoproj.io/workflow"


def found(cluster: Cluster, plan: Plan) -> list[str]:
    """The names of the runs that are at work, of the recipe as it is or was: a task of theirs mounts its plan."""
    own = plan.only(driver.stage(plan, kfp.NAME))
    names = set()
    for pod in cluster.list("Pod", plan.site["namespace"], OF_RUN):
        maps = [volume.get("configMap", {}).get("name", "") for volume in pod["spec"].get("volumes", ())]
        waits = pod.get("status", {}).get("phase") in ("Pending", "Running")
        if waits and any(kubernetes.is_config_map_of(name, own) for name in maps):
            names.add(str(pod["metadata"]["labels"][WORKFLOW]))
    return sorted(names)


def end(cluster: Cluster, plan: Plan, name: str) -> None:
    """Ends a run, and waits until no task of it is left that would send something. Raises Stop where the cluster refuses, or it stays."""
    space = plan.site["namespace"]
    over = {"spec": {"activeDeadlineSeconds": 0}}
    where, merge = address("Workflow", space, name), "application/merge-patch+json"
    try:
        patiently(lambda: cluster.request("PATCH", where, body=over, content=merge))
    except Refused as refused:
        raise refused.stop("Workflow", space, name) from None
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        if name not in patiently(lambda: found(cluster, plan)):
            return
        pause()
    raise Stop(f"Workflow `{name}` is to end, and does not.", "Look at it with `oc describe`.")
