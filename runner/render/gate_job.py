"""The gate Job: measures what a stage has left, on the claim, and ends well only where the gate after it is open."""

from dataclasses import asdict, replace
from typing import Any

from runner.plan import PLAN_FILE, Plan, Stage
from runner.render import batch, code, kubernetes, podspec
from runner.tools.files import Artifact
from runner.tools.names import content_hash
from runner.tools.text import yaml_text

FILE = "gate.yaml"
PART = "gate"


def render(plan: Plan, stage: Stage) -> list[Artifact]:
    """The Job beside the stage's own; no part of `kustomization.yaml`, because it comes after. Empty where no gate stands."""
    if not stage.gates:
        return []
    conditions = "; ".join(map(str, stage.gates))
    # Not `apply`: a Job that is there already cannot be changed, and measures nothing a second time.
    comment = (
        f"# Once the job beside it is done: oc replace --force -f {FILE}. Nothing after `{stage.name}` starts, and its model\n"
        f"# counts as good, before {conditions}.\n"
        f"# What is measured is sealed with a key of yours, which `recipe submit` puts into the Secret. By hand:\n"
        f"# oc create secret generic {podspec.KEY_SECRET} --from-file={podspec.KEY}=$HOME/.config/recipe-runner/key\n"
    )
    return [Artifact(FILE, comment + yaml_text(job(plan, stage)))]


def job_name(plan: Plan) -> str:
    return f"{kubernetes.job_name(plan)}-{PART}"


def key(stage: Stage) -> str:
    """A hash of all that a verdict depends on: the stage's results, its gates, and how they are measured."""
    return content_hash(
        [
            stage.keys.get("", ""),
            [str(gate) for gate in stage.gates],
            asdict(stage.evaluation) if stage.evaluation else None,
        ]
    )


def job(plan: Plan, stage: Stage) -> dict[str, Any]:
    """The Job: one pod, which tries once, because a second look at the same result would see the same."""
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": round(plan.site["deadline_hours"] * 3600),
        "template": _template(plan, stage),
    }
    annotations = kubernetes.origin(spec, plan, stage) | {kubernetes.KEY: key(stage)}
    return batch.job(plan, stage, job_name(plan), PART, spec, annotations)


def _template(plan: Plan, stage: Stage) -> dict[str, Any]:
    machines = stage.machines.one_gpu
    measured = replace(stage, machines=machines, shm_gib=min(stage.shm_gib, max(1, int(machines.memory_gib // 4))))
    plain = podspec.writable(plan) | {"AXOLOTL_DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    container = {
        "name": PART,
        **kubernetes.pulled(plan),
        "command": ["python", "-m", "runner.entrypoints.stage", "gate", f"{plan.place.config_dir}/{PLAN_FILE}"],
        "env": podspec.variables(plan, plain | code.environment(plan)),
        "resources": podspec.as_text(podspec.resources(plan, measured)),
        # A pod that could not even say why leaves the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": podspec.container_security(),
        "volumeMounts": podspec.mounts(plan),
    }
    volumes = podspec.volumes(plan, measured, kubernetes.config_map_name(plan, stage))
    return batch.pod(plan, stage, PART, container, volumes, machines)
