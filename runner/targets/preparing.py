"""The prepare Job: data and model onto the claim first, on CPU, so that no GPU waits for a download."""

from __future__ import annotations

import json
from typing import Any

from runner.names import content_hash
from runner.plan import Artifact, Plan, Stage
from runner.targets import batch, code, kubernetes, podspec
from runner.text import yaml_text

FILE = "prepare.json"
PART = "prepare"
# Tokenising takes cores and memory; it is over in minutes, so a modest share of a CPU machine will do.
CPUS, MEMORY_GIB = 4, 16


def wanted(plan: Plan, stage: Stage) -> dict[str, Any] | None:
    """What the Job must do, as `runner.execute.claim` reads it; None where data and model come with the image.

    model: what to fetch, and where to; data: as a preparer reads it; tokenise: the engine's config, or None.
    """
    if not plan.place.prepared or not stage.data:
        return None
    tokenise = stage.engine == "axolotl"
    return {
        "name": plan.name,
        "model": {**stage.model, "folder": plan.place.model_dir} if stage.model else None,
        "data": dict(stage.data),
        "data_dir": plan.place.data_dir,
        "tokenise": f"{plan.place.config_dir}/{stage.config_file}" if tokenise else None,
    }


def render(plan: Plan, stage: Stage) -> list[Artifact]:
    """The Job, its config map and claims in a folder of their own: `oc apply -k FOLDER/prepare` comes first."""
    if (asked := wanted(plan, stage)) is None:
        return []
    home = "prepare/"
    name = job_name(plan, stage)
    files = [
        Artifact(f"{home}{kubernetes.CLAIMS_FILE}", kubernetes.claims(plan).text),
        Artifact(f"{home}configmap.yaml", yaml_text(_config_map(plan, stage, name, asked))),
        Artifact(f"{home}job.yaml", kubernetes.header(plan, stage) + yaml_text(job(plan, stage))),
    ]
    comment = (
        f"# oc apply -k . fetches the model and prepares the data of `{plan.name}`, without a GPU. Wait for it with\n"
        f"#   oc wait --for=condition=complete --timeout=4h job/{name} --namespace {plan.site['namespace']}\n"
    )
    listing = kubernetes.kustomization([file.path.removeprefix(home) for file in files], comment)
    return [*files, Artifact(f"{home}{listing.path}", listing.text)]


def job_name(plan: Plan, stage: Stage) -> str:
    """Named by all that it says and does, because a cluster refuses another pod under the name of a Job that it has."""
    config = [file.text for file in stage.files if file.path == stage.config_file]
    digits = content_hash([wanted(plan, stage), config, _template(plan, stage, "")], 6)
    return f"{kubernetes.job_name(plan)[:45].rstrip('-')}-prepare-{digits}"


def _config_map(plan: Plan, stage: Stage, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(asked, indent=2, ensure_ascii=False) + "\n"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": plan.site["namespace"],
            "labels": kubernetes.labels(plan, stage),
        },
        "data": {FILE: text, **{file.path: file.text for file in stage.files}},
    }


def job(plan: Plan, stage: Stage) -> dict[str, Any]:
    """The Job: one pod without a GPU, with the training pods' image, folders and claims."""
    name = job_name(plan, stage)
    spec = {"backoffLimit": 3, "template": _template(plan, stage, name)}
    annotations = kubernetes.annotations(spec, plan, stage)
    return batch.job(plan, stage, name, PART, spec, annotations)


def _template(plan: Plan, stage: Stage, config: str) -> dict[str, Any]:
    """config: the name of the config map."""
    share = {"cpu": str(CPUS), "memory": f"{MEMORY_GIB}Gi"}
    plain = podspec.writable(plan) | {"AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""} | code.environment(plan)
    container = {
        "name": PART,
        "image": kubernetes.image(plan),
        "command": ["python", "-m", "runner.execute.claim", f"{plan.place.config_dir}/{FILE}"],
        "env": podspec.variables(plan, plain),
        "resources": {"requests": share, "limits": share},
        "securityContext": podspec.container_security(),
        "volumeMounts": podspec.mounts(plan),
    }
    return batch.pod(plan, stage, PART, container, podspec.volumes(plan, stage, config))
