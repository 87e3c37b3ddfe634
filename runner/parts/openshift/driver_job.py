"""The driver: a small Job that sends every stage and gate of a recipe in order. It has only the plan, and no claim."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import PLAN_FILE, RUNNER, Machines, Plan, Stage
from runner.tools.files import Artifact

PART = "driver"
# The alternative to the driver: a run of Kubeflow Pipelines, by the target of that name.
PIPELINE = "kfp"
# The driver's service account, which `recipe site` writes with its rights.
ACCOUNT = "recipe-driver"
# In every pod: the cluster's address, and the folder of the account's token and the cluster's authority.
SERVER, KEYS = "https://kubernetes.default.svc", "/var/run/secrets/kubernetes.io/serviceaccount"
# The exit code of a driver that ends on purpose, at a closed gate for example; its Job does not retry then.
DECIDED = 3
SHARE = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def stage(plan: Plan, name: str = PART) -> Stage:
    """The driver as one more stage of a plan, independent of the others. Its file is the whole plan."""
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
    """The plan as JSON with each text of its stages' files once, under `texts`. A file's text is its number there, or
    null for a stage's own plan, which follows from the rest."""
    form, texts = asdict(plan), dict[str, int]()
    for stage in form["stages"]:
        # As `read` returns them, so that a pod finds the config map of its plan by its content.
        stage["needs"] = {name: float(value) for name, value in stage["needs"].items()}
        known = _of_stage(form, stage["name"])
        for file in stage["files"]:
            file["text"] = None if file["text"] == known else texts.setdefault(file["text"], len(texts))
    return json.dumps(form | {"texts": list(texts)}, indent=1, ensure_ascii=False) + "\n"


def read(text: str) -> Plan:
    """The plan that `written` wrote, or `Plan.as_json` in earlier releases. Raises ValueError for any other text."""
    form = json.loads(text)
    texts = form.pop("texts", None)
    for stage in form["stages"] if texts else ():
        for file in stage["files"]:
            file["text"] = _of_stage(form, stage["name"]) if file["text"] is None else texts[file["text"]]
    return Plan.read(json.dumps(form))


def _of_stage(form: Mapping[str, Any], name: str) -> str:
    """The plan beside a stage's config as `runner.scenarios.shared.common.plan` writes it: the stage and those before
    it, without the guards of their commands and later estimates. form: the whole plan's JSON form."""
    stages = []
    for stage in form["stages"]:
        command = list(stage["command"])
        plain = command[command.index("--") + 1 :] if "--" in command else command
        stages.append(stage | {"files": [], "command": plain, "needs": {}, "grace_seconds": None})
        if stage["name"] == name:
            break
    return json.dumps({**form, "stages": stages, "claims_gib": {}}, indent=1, ensure_ascii=False) + "\n"


def command(plan: Plan, module: str = "runner.cluster.walk") -> list[str]:
    """The command of a pod that asks the cluster; plan: of that stage alone."""
    return ["python", "-m", module, f"{plan.place.config_dir}/{PLAN_FILE}", "--server", SERVER, "--keys", KEYS]


def job(plan: Plan, own: Stage, options: list[str]) -> Manifest:
    """The Job. plan: of the driver alone; own: its stage; options: of its command."""
    more: Manifest = {"resources": SHARE, "terminationMessagePolicy": "FallbackToLogsOnError"}
    pod = batch.small(plan, own, PART, [*command(plan), *options], [podspec.config(plan, own)], **more)
    account = {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    template = {**pod, "spec": {**pod["spec"], **account}}
    file = Path(__file__).with_name("driver-job.yaml")
    spec = kubernetes.filled(file, part=PART, decided=DECIDED, template=template)
    # Without a run folder: it writes none, so it is not taken for a former stage of the recipe.
    origin = {name: text for name, text in kubernetes.origin(spec, plan, own).items() if name != kubernetes.RUN_DIR}
    return batch.job(plan, own, kubernetes.job_name(plan), PART, spec, origin)
