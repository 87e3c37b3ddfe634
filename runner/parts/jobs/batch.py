"""Plain Jobs and pods beside training: they prepare a stage, measure it, or open its claim for a
while."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from runner.parts.jobs import kubernetes, podspec
from runner.parts.jobs.kubernetes import Folder, Manifest
from runner.plan import PLAN_FILE, Plan, Stage
from runner.tools import child_process
from runner.tools.files import Artifact, content_hash
from runner.tools.text import from_template, yaml_text

# The values of the label `recipe-runner/part` of a stage's own Jobs, and their files.
PREPARE = "prepare"
PREPARE_FILE = "job.yaml"
GATE = "gate"
GATE_FILE = "gate.yaml"
TEMPLATES = Path(
    __file__
).parent  # the folder with objects, and the first lines of files for people
TRIES = 3  # the retries of a pod that prepares


def labels(plan: Plan, stage: Stage, part: str) -> dict[str, str]:
    """Of a Job of a stage and its pod. part: what it does for the stage, one word."""
    return kubernetes.pod_labels(plan, stage) | {"recipe-runner/part": part}


def job(
    plan: Plan, stage: Stage, name: str, part: str, spec: Manifest, annotations: dict[str, str]
) -> Manifest:
    """A plain Job of a stage. part: as in `labels`."""
    marks = {
        "labels": labels(plan, stage, part) | kubernetes.queue(plan),
        "annotations": annotations,
    }
    return kubernetes.new_object("batch/v1", "Job", plan, name, marks, spec=spec)


def small(
    plan: Plan,
    stage: Stage,
    part: str,
    command: list[str],
    folders: list[Folder],
    memory: str = "1Gi",
    env: Mapping[str, str] = MappingProxyType({}),
    secrets: Sequence[Manifest] = (),
    **container_fields: object,
) -> Manifest:
    """The template of a pod that needs little, and runs once. folders: besides scratch and code;
    memory: a quantity; env: variables besides the writable folders and the code's own; secrets:
    variables from Secrets; container_fields: others, as in `kubernetes.container`."""
    share = {"cpu": "1", "memory": memory}
    plain = podspec.CACHES | podspec.code_path(plan) | dict(env)
    container_fields = {
        "command": command,
        "env": [*podspec.as_env_list(plain), *secrets],
        "resources": {"requests": share, "limits": share},
        **container_fields,
    }
    folders = [*folders, podspec.SCRATCH, *podspec.code_folders(plan)]
    return podspec.pod(
        plan,
        {"labels": labels(plan, stage, part)},
        part,
        folders,
        None,
        container_fields,
        restartPolicy="Never",
    )


def alone(
    plan: Plan,
    stage: Stage,
    part: str,
    command: list[str],
    folders: list[Folder],
    seconds: int,
    memory: str = "1Gi",
    env: Mapping[str, str] = MappingProxyType({}),
    secrets: Sequence[Manifest] = (),
    **container_fields: object,
) -> Manifest:
    """A pod without a Job, which a command creates and deletes. seconds: its limit; the rest is as
    in `small`."""
    template = small(plan, stage, part, command, folders, memory, env, secrets, **container_fields)
    meta = template["metadata"] | {
        "name": f"{kubernetes.job_name(plan)}-{part}",
        "namespace": plan.site.namespace,
    }
    spec = template["spec"] | {"activeDeadlineSeconds": seconds}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def prepare(plan: Plan, stage: Stage) -> list[Artifact]:
    """The files of a stage without training: a Job without a GPU, because no GPU may wait for a
    download. It has one pod, otherwise as in training; or several that share the work, with numbers
    and retries."""
    plain = (
        podspec.writable(plan)
        | dict(stage.env)
        | {"AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
    )
    count = stage.machines.nodes
    if count == 1:
        pods: Manifest = {"backoffLimit": TRIES}
    else:
        # All run at once, because each waits for the others' results. If one fails, the Job ends
        # (`maxFailedIndexes`).
        alike = {"completions": count, "parallelism": count}
        pods = {
            "completionMode": "Indexed",
            **alike,
            "backoffLimitPerIndex": TRIES,
            "maxFailedIndexes": 0,
        }
    tries = {**pods, "podFailurePolicy": failure_policy(PREPARE)}
    spec = _spec(plan, stage, PREPARE, list(stage.command), plain, tries)
    name = kubernetes.job_name(plan)
    text = yaml_text(job(plan, stage, name, PREPARE, spec, kubernetes.origin(spec, plan, stage)))
    comment = from_template(
        TEMPLATES / "prepare.txt", job=f"job/{name} --namespace {plan.site.namespace}"
    )
    return kubernetes.files(plan, stage, PREPARE_FILE, text, comment)


def failure_policy(container: str) -> Manifest:
    """When a Job does not try again, by the exit status of its pods' container, and which failures
    do not count."""
    file = TEMPLATES / "failure-policy.yaml"
    return kubernetes.fill_template(file, containerName=container, values=[child_process.DECIDED])


def gate(plan: Plan, stage: Stage) -> list[Artifact]:
    """The Job that measures a stage's result on the claim, and succeeds only if the gate is open;
    empty without a gate. It is not in `kustomization.yaml`, because it runs later. Its pod tries
    once: the same result has one verdict."""
    if not stage.gates:
        return []
    machines = stage.machines.one_gpu
    measured = replace(
        stage, machines=machines, shm_gib=min(stage.shm_gib, max(1, int(machines.memory_gib // 4)))
    )
    command = [
        "python",
        "-m",
        "runner.parts.jobs.stage",
        "gate",
        f"{plan.place.config_dir}/{PLAN_FILE}",
    ]
    plain = podspec.writable(plan) | {
        "AXOLOTL_DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    spec = _spec(plan, measured, GATE, command, plain, {"backoffLimit": 0})
    annotations = kubernetes.origin(spec, plan, stage) | {kubernetes.KEY: gate_key(stage)}
    # Not `apply`: an existing Job cannot be changed, and does not measure again.
    fields = {"file": GATE_FILE, "key": podspec.KEY, "secret": podspec.KEY_SECRET}
    fields |= {"stage": stage.name, "conditions": "; ".join(map(str, stage.gates))}
    comment = from_template(TEMPLATES / "gate.txt", **fields)
    return [
        Artifact(
            GATE_FILE,
            comment + yaml_text(job(plan, stage, gate_name(plan), GATE, spec, annotations)),
        )
    ]


def gate_name(plan: Plan) -> str:
    return f"{kubernetes.job_name(plan)}-{GATE}"


def gate_key(stage: Stage) -> str:
    """A hash of everything that a verdict depends on: the stage's results, its gates, and how they
    are measured."""
    if stage.evaluation:
        measured = asdict(stage.evaluation)
    else:
        measured = None
    return content_hash([stage.keys.get("", ""), [str(gate) for gate in stage.gates], measured])


def _spec(
    plan: Plan, stage: Stage, part: str, command: list[str], plain: dict[str, str], tries: Manifest
) -> Manifest:
    """What a Job does. stage: with the machines that the pod needs; plain: its environment without
    tokens and code."""
    plain = plain | podspec.tracking(plan, stage) | podspec.code_path(plan)
    container_fields: Manifest = {
        "command": command,
        "env": podspec.variables(plan, stage, plain),
        "resources": podspec.as_text(podspec.resources(plan, stage)),
    }
    marks = {"labels": labels(plan, stage, part)}
    folders = podspec.folders(plan, stage)
    template = podspec.pod(
        plan, marks, part, folders, stage.machines, container_fields, restartPolicy="Never"
    )
    return {
        **tries,
        "activeDeadlineSeconds": round(plan.site.deadline_hours * 3600),
        "template": template,
    }
