"""The driver: a small Job that sends every stage and gate of a recipe in order, and holds nothing but its plan.

It mounts no claim, because a claim for one machine would block the training pods: the cluster shows the state of
everything, and each stage's own pod reads the claim.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import PLAN_FILE, RUNNER, Machines, Plan, Stage
from runner.tools.files import Artifact

PART = "driver"
# What can replace it: a run of Kubeflow Pipelines, by the target of that name.
PIPELINE = "kfp"
# Who the driver is: an account with the rights of what it does, which `recipe site` writes.
ACCOUNT = "recipe-driver"
# Where every pod finds the cluster, and the account's key and the cluster's authority.
SERVER, KEYS = "https://kubernetes.default.svc", "/var/run/secrets/kubernetes.io/serviceaccount"
# How the driver ends if it has decided to, at a closed gate for example; it is not started again then.
DECIDED = 3
# New pods after which it is given up; those that a cluster takes off their machines do not count.
DEATHS = 20
# It asks and waits, for weeks.
SHARE = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def stage(plan: Plan, name: str = PART) -> Stage:
    """The driver as one more stage of a plan, which reads no other stage and which none reads. Its file is the whole
    plan."""
    return Stage(
        name=name,
        engine=RUNNER,
        config={},
        config_file="",
        data={},
        files=(Artifact(PLAN_FILE, written(plan)),),
        command=(),
        env={},
        machines=Machines(nodes=1, gpus_per_node=0, gpu="", memory_gib=1, cpus=1),
        shm_gib=0,
        folder=name,
    )


def written(plan: Plan) -> str:
    """The plan as JSON with each text of its stages' files once: under `texts`, instead of a file's text its number there, and
    null for a stage's own plan, which follows from the rest."""
    form, texts = asdict(plan), dict[str, int]()
    for stage in form["stages"]:
        # As `read` gives them, so that a pod finds the config map of its plan by its content.
        stage["needs"] = {name: float(value) for name, value in stage["needs"].items()}
        known = _of_stage(form, stage["name"])
        for file in stage["files"]:
            file["text"] = None if file["text"] == known else texts.setdefault(file["text"], len(texts))
    return json.dumps(form | {"texts": list(texts)}, indent=1, ensure_ascii=False) + "\n"


def read(text: str) -> Plan:
    """The plan that `written` wrote, or `Plan.as_json` for drivers of earlier releases. Raises ValueError if it is
    none."""
    form = json.loads(text)
    texts = form.pop("texts", None)
    for stage in form["stages"] if texts else ():
        for file in stage["files"]:
            file["text"] = _of_stage(form, stage["name"]) if file["text"] is None else texts[file["text"]]
    return Plan.read(json.dumps(form))


def _of_stage(form: Mapping[str, Any], name: str) -> str:
    """The plan beside a stage's config as `runner.scenarios.shared.common.plan` writes it: the stage and those before it, without
    the guards of their commands and what was estimated since. form: the whole plan's JSON form."""
    stages = []
    for stage in form["stages"]:
        said = list(stage["command"])
        plain = said[said.index("--") + 1 :] if "--" in said else said
        stages.append(stage | {"files": [], "command": plain, "needs": {}, "grace_seconds": None})
        if stage["name"] == name:
            break
    return json.dumps({**form, "stages": stages, "claims_gib": {}}, indent=1, ensure_ascii=False) + "\n"


def command(plan: Plan, module: str = "runner.cluster.walk") -> list[str]:
    """A program in a pod that asks the cluster; plan: of that stage alone."""
    file = f"{plan.place.config_dir}/{PLAN_FILE}"
    return ["python", "-m", module, file, "--server", SERVER, "--keys", KEYS]


def job(plan: Plan, own: Stage, options: list[str]) -> Manifest:
    """The Job. plan: of the driver alone; own: its stage; options: of its command."""
    config, volume = podspec.config(plan, own)
    container = batch.small(plan, PART, [*command(plan), *options], [config]) | {
        "resources": SHARE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = batch.pod(plan, own, PART, container, [volume, *podspec.own_volumes(plan)])
    pod["spec"] |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    spec = {
        "backoffLimit": DEATHS,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": PART, "operator": "In", "values": [DECIDED]},
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": pod,
    }
    # Without the folder of a run: it writes none, and is no stage that a recipe has had.
    origin = {name: text for name, text in kubernetes.origin(spec, plan, own).items() if name != kubernetes.RUN_DIR}
    return batch.job(plan, own, kubernetes.job_name(plan), PART, spec, origin)
