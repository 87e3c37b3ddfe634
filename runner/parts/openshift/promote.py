"""Promoting on the cluster: a short-lived pod writes the override on the claim, by the very code of `recipe promote`."""

from collections.abc import Callable
from typing import Any

from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.openshift import pipeline, seal_key
from runner.parts.openshift.client import Cluster, address
from runner.parts.openshift.errors import Refused, patiently
from runner.parts.openshift.helper_pod import finished
from runner.parts.openshift.jobs import PROMOTE, sent
from runner.parts.openshift.status import FAILED
from runner.plan import PLAN_FILE, Plan, Stage
from runner.tools.problem import Stop

Tell = Callable[[str], None]


def promote(cluster: Cluster, plan: Plan, stage: Stage, by: str, reason: str, tell: Tell) -> None:
    """Lets a stage pass in spite of its closed gate. Raises Stop where there is nothing to overrule."""
    if not stage.gates:
        raise Stop(f"The stage `{stage.name}` has no gate to overrule.")
    verdict = next(
        milestone for milestone in pipeline.milestones(cluster, plan) if milestone.of_gate and milestone.stage is stage
    )
    if verdict.state == pipeline.UNDER_WAY:
        raise Stop(f"The gate after `{stage.name}` is being measured.", "`recipe status` says when it is done.")
    what = sent(plan, stage, of_gate=True)
    # Without it the pod would take no measurement for one.
    seal_key.require(cluster, what.namespace)
    for manifest in what.support:
        if manifest["kind"] == "ConfigMap":
            cluster.apply(manifest)
    said = finished(cluster, pod(what.plan, stage, by, reason), PROMOTE, tell)
    for line in said:
        tell(line)
    if verdict.job is not None and verdict.state == FAILED:
        job = verdict.job
        patiently(lambda: _annotate(cluster, job, "\n".join(said)))


def _annotate(cluster: Cluster, job: dict[str, Any], promotion: str) -> None:
    """The gate's Job shows the override, because `recipe status` and `recipe submit` do not look on the claim."""
    space, name = job["metadata"]["namespace"], job["metadata"]["name"]
    body = {"metadata": {"annotations": {pipeline.PROMOTION: promotion}}}
    try:
        cluster.request("PATCH", address("Job", space, name), body=body, content="application/merge-patch+json")
    except Refused as refused:
        raise refused.stop("Job", space, name) from None


def pod(plan: Plan, stage: Stage, by: str, reason: str) -> dict[str, Any]:
    """The pod: no GPU, the claims, and half an hour, because a large model's weights are hashed first."""
    file = f"{plan.place.config_dir}/{PLAN_FILE}"
    command = ["python", "-m", "runner.entrypoints.stage", PROMOTE, file, "--by", by, "--reason", reason]
    mounts = [mount for mount in podspec.mounts(plan) if mount["name"] != "shm"]
    volumes = podspec.volumes(plan, stage, kubernetes.config_map_name(plan, stage))
    volumes = [volume for volume in volumes if volume["name"] != "shm"]
    container = batch.small(plan, PROMOTE, command, mounts, secrets=podspec.seal_key(plan), memory="4Gi")
    return batch.alone(plan, stage, PROMOTE, container, volumes, seconds=1800)
