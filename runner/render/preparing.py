"""The Job of a stage that trains nothing: on CPU, so that no GPU waits for a download."""

from typing import Any

from runner.plan import Plan, Stage
from runner.render import batch, code, kubernetes, podspec
from runner.tools.files import Artifact
from runner.tools.text import yaml_text

PART = "prepare"
FILE = "job.yaml"
# How often a pod is tried again.
TRIES = 3


def render(plan: Plan, stage: Stage) -> list[Artifact]:
    """The Job with its config map and claims. plan: of this stage alone."""
    files = [kubernetes.claims(plan), kubernetes.config_map(plan, stage), _job_file(plan, stage)]
    files = [file for file in files if file.text]
    name = f"job/{kubernetes.job_name(plan)} --namespace {plan.site['namespace']}"
    comment = (
        f"{kubernetes.sends(plan)}"
        "# It needs no GPU, and comes before the stages that train. Wait for it with\n"
        f"#   oc wait --for=condition=complete --timeout=4h {name}\n"
        "# A Job that is there cannot be changed. To send it again, first take it away with\n"
        f"#   oc delete {name}\n"
    )
    return [*files, kubernetes.kustomization([file.path for file in files], comment)]


def _job_file(plan: Plan, stage: Stage) -> Artifact:
    return Artifact(FILE, kubernetes.header(plan, stage) + yaml_text(job(plan, stage)))


def job(plan: Plan, stage: Stage) -> dict[str, Any]:
    """The Job: one pod without a GPU, with the training pods' image, folders and claims; or several that share the work, each with
    its number, and each tried again by itself."""
    spec = {
        **_pods(stage.machines.nodes),
        "activeDeadlineSeconds": round(plan.site["deadline_hours"] * 3600),
        "template": _template(plan, stage),
    }
    origin = kubernetes.origin(spec, plan, stage)
    return batch.job(plan, stage, kubernetes.job_name(plan), PART, spec, origin)


def _pods(count: int) -> dict[str, Any]:
    """All run at once, because each waits for what the others leave; what one cannot do the others wait for in vain, and the Job
    ends (`maxFailedIndexes`)."""
    if count == 1:
        return {"backoffLimit": TRIES}
    alike = {"completions": count, "parallelism": count}
    return {"completionMode": "Indexed", **alike, "backoffLimitPerIndex": TRIES, "maxFailedIndexes": 0}


def _template(plan: Plan, stage: Stage) -> dict[str, Any]:
    plain = podspec.writable(plan) | dict(stage.env) | {"AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
    container = {
        "name": PART,
        **kubernetes.pulled(plan),
        "command": list(stage.command),
        "env": podspec.variables(plan, plain | code.environment(plan)),
        "resources": podspec.as_text(podspec.resources(plan, stage)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": podspec.container_security(),
        "volumeMounts": podspec.mounts(plan),
    }
    return batch.pod(
        plan, stage, PART, container, podspec.volumes(plan, stage, kubernetes.config_map_name(plan, stage))
    )
