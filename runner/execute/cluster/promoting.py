"""Promoting on the cluster: a short-lived pod writes a person's word on the claim, by the very code of `recipe promote`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runner import plan_file
from runner.execute.cluster import steps
from runner.execute.cluster.connect import address
from runner.execute.cluster.helper import finished
from runner.execute.cluster.jobs import PROMOTE, sent
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.targets import batch, code, kubernetes, podspec

Tell = Callable[[str], None]


def promote(cluster: Any, plan: Plan, stage: Stage, by: str, reason: str, tell: Tell) -> None:
    """Lets a stage pass in spite of its closed gate. Raises Stop where there is nothing to overrule."""
    if not stage.gates:
        raise Stop(f"The stage `{stage.name}` has no gate to overrule.")
    step = next(step for step in steps.steps(cluster, plan) if step.of_gate and step.stage is stage)
    if step.state == steps.UNDER_WAY:
        raise Stop(f"The gate after `{stage.name}` is being measured.", "`recipe status` says when it is done.")
    what = sent(plan, stage, of_gate=True)
    for manifest in what.support:
        if manifest["kind"] == "ConfigMap":
            cluster.apply(manifest)
    said = finished(cluster, pod(what.plan, stage, by, reason), PROMOTE, tell)
    for line in said:
        tell(line)
    if step.state == steps.FAILED:
        meta = step.job["metadata"]
        body = {"metadata": {"annotations": {steps.PROMOTION: "\n".join(said)}}}
        path = address("Job", meta["namespace"], meta["name"])
        cluster.request("PATCH", path, body=body, content="application/merge-patch+json")


def pod(plan: Plan, stage: Stage, by: str, reason: str) -> dict[str, Any]:
    """The pod: no GPU, the claims, and half an hour, because a large model's weights are hashed first."""
    share = {"cpu": "1", "memory": "4Gi"}
    file = f"{plan.place.config_dir}/{plan_file.FILE}"
    container = {
        "name": PROMOTE,
        "image": kubernetes.image(plan),
        "command": ["python", "-m", "runner.execute.step", PROMOTE, file, "--by", by, "--reason", reason],
        "env": podspec.listed(podspec.CACHES | code.environment(plan)),
        "resources": {"requests": share, "limits": share},
        "securityContext": podspec.container_security(),
        "volumeMounts": [mount for mount in podspec.mounts(plan) if mount["name"] != "shm"],
    }
    volumes = podspec.volumes(plan, stage, kubernetes.config_map_name(plan, stage))
    volumes = [volume for volume in volumes if volume["name"] != "shm"]
    return batch.alone(plan, stage, PROMOTE, container, volumes, seconds=1800)
