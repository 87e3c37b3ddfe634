"""A plan as a pipeline for Kubeflow Pipelines: a task for each stage and gate, as its SDK compiles it (IR YAML, schema
2.1.0).

Each task is a small pod that sends the next job and waits for it, by the driver's code (`runner.parts.kfp.task`). The
tasks after a gate are in a condition on its verdict; a closed gate ends the run in a task that fails. The plan is in a
config map beside the pipeline. Sources: kfp 2.17's specification, and the output of its compiler.
"""

from pathlib import Path
from typing import Any

import yaml

from runner.parts.jobs import code, kubernetes, podspec
from runner.parts.openshift import jobs
from runner.parts.openshift.pipeline import PIPELINE, SHARE, driver_command, driver_stage
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.render import planned
from runner.tools.files import Artifact
from runner.tools.text import from_template, yaml_text

# A piece of a pipeline, as Kubeflow Pipelines defines it.
Spec = kubernetes.Manifest
NAME = PIPELINE
FOLDER = "kfp"
FILE = "pipeline.yaml"
# This name also exists in images of 0.1.
MODULE = "runner.cluster.kfp_task"
OPEN = "open"
TEXT = {"parameterType": "STRING"}
# A task that ended on purpose ends again at once.
RETRIES = {"maxRetryCount": 5, "backoffDuration": "30s", "backoffFactor": 2.0, "backoffMaxDuration": "600s"}
GIB = 2.0**30 / 1e9
KINDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
MODEL: Spec = KINDS["train"]["component"]["outputDefinitions"]["artifacts"]["model"]

# The tasks send the recipe's own pods, so the paths are theirs.
place = kubernetes.place


def named(recipe: Recipe) -> bool:
    """Whether a recipe asks for this target: it is rendered only on request."""
    return False


def emitted(recipe: Recipe) -> list[Artifact]:
    return render(planned(recipe, NAME))


def render(plan: Plan) -> list[Artifact]:
    """The config map with the plan, and the pipeline. plan: whole, as the cluster gets it."""
    own = driver_stage(plan, NAME)
    alone = plan.only(own)
    # The annotations of `jobs.Owner`.
    marks = zip(jobs.OWNER, ('"$(oc whoami)"', '"$(hostname)"', '"$(realpath RECIPE)"'), strict=True)
    signed = " ".join(f"{name}={value}" for name, value in marks)
    words = {"recipe": plan.name, "fingerprint": plan.fingerprint, "namespace": plan.site["namespace"]}
    file = Path(__file__).with_name("header.txt")
    comment = from_template(file, config=kubernetes.CONFIG_FILE, signed=signed, **words)
    tasks = _Tasks(plan)
    root = tasks.up_to_a_gate(list(plan.stages), None, None)
    labels = sorted({one["executorLabel"] for one in tasks.components.values() if "executorLabel" in one})
    executors = {label: _executor(plan, alone, label.removeprefix("exec-")) for label in labels}
    pipeline = {
        "components": dict(sorted(tasks.components.items())),
        "deploymentSpec": {"executors": executors},
        "pipelineInfo": {"name": plan.name, "description": f"recipe {plan.name}, {plan.fingerprint}"},
        "root": {"dag": {"tasks": root}},
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.17.0",
    }
    around = dict.fromkeys(executors, _platform(alone, kubernetes.config_map_name(alone, own)))
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": around}}}}
    text = f"{comment}{yaml_text(pipeline)}---\n{yaml_text(platform)}"
    config = kubernetes.config_map(alone, own)
    return [Artifact(f"{FOLDER}/{config.path}", config.text), Artifact(f"{FOLDER}/{FILE}", text)]


def _platform(alone: Plan, config: str) -> Spec:
    """A task's pod beside its container: the plan, a folder for cloned code, and the current build of its image."""
    place = {"configMapName": config, "mountPath": alone.place.config_dir, "optional": False}
    folders = [{"volumeName": mount["name"], "mountPath": mount["mountPath"]} for mount, _ in code.folders(alone)]
    return {
        "configMapAsVolume": [place],
        **({"emptyDirMounts": folders} if folders else {}),
        **({"imagePullPolicy": "Always"} if kubernetes.movable(alone) else {}),
    }


def _component(part: str) -> Spec:
    """The inputs and outputs of a kind of task."""
    own, more = KINDS[part]["component"], {"base": {**MODEL, "isOptional": True}} if "builds_on" in KINDS[part] else {}
    inputs = own["inputDefinitions"] | ({"artifacts": more} if more else {})
    return {**own, "inputDefinitions": inputs}


def _ports(parameters: Spec, **artifacts: Spec | None) -> Spec:
    """The inputs or outputs of a component or task: texts and artifacts, if there are any."""
    given = {name: artifact for name, artifact in artifacts.items() if artifact}
    return {kind: own for kind, own in (("parameters", parameters), ("artifacts", given)) if own}


def _executor(plan: Plan, alone: Plan, part: str) -> Spec:
    """The pod of a task. Its command clones the code, because it can have no init container."""
    command = code.wrapped(plan, driver_command(alone, module=MODULE))
    requests, limits = SHARE["requests"], SHARE["limits"]
    return {
        "container": {
            "image": kubernetes.image(plan),
            "command": command,
            "args": [part, *KINDS[part]["args"]],
            "env": podspec.listed(podspec.CACHES | code.environment(plan)),
            "resources": {
                "cpuRequest": int(requests["cpu"].removesuffix("m")) / 1000,
                "cpuLimit": float(limits["cpu"]),
                "memoryRequest": round(int(requests["memory"].removesuffix("Mi")) / 1024 * GIB, 3),
                "memoryLimit": round(int(limits["memory"].removesuffix("Gi")) * GIB, 3),
            },
        }
    }


class _Tasks:
    """The tasks of a plan. components: the inputs and outputs of each task, or the tasks in a condition. As in the
    SDK's output, each task has its own: its local runner names results by it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.components: dict[str, Spec] = {}

    def up_to_a_gate(self, stages: list[Stage], before: Spec | None, base: Spec | None) -> dict[str, Spec]:
        """The tasks up to the first gate, and a condition with all later ones. before, base: where the first task reads
        the previous result, and the model; None without one."""
        tasks: dict[str, Spec] = {}
        for number, stage in enumerate(stages):
            part = "train" if stage.trains else "prepare"
            given = {"stage": _constant(stage.name), "key": _constant(stage.keys.get("", self.plan.fingerprint))}
            given |= {"before": before} if before else {}
            tasks[stage.name] = self._task(stage.name, part, given, base if stage.trains else None)
            before = {"taskOutputParameter": {"producerTask": stage.name, "outputParameterKey": "made"}}
            if stage.trains:
                base = {"taskOutputArtifact": {"producerTask": stage.name, "outputArtifactKey": "model"}}
            if stage.gates:
                gate = f"gate-{stage.name}"
                tasks[gate] = self._task(gate, "gate", {"stage": _constant(stage.name), "made": before}, base)
                return tasks | self._after(stage, stages[number + 1 :], gate, before, base)
        return tasks

    def _after(self, stage: Stage, later: list[Stage], gate: str, made: Spec, model: Spec | None) -> dict[str, Spec]:
        """After a gate: the later stages if it is open, and the end of the run if it is closed."""
        verdict, said = (
            {"taskOutputParameter": {"producerTask": gate, "outputParameterKey": name}} for name in ("verdict", "said")
        )
        shut = f"closed-{stage.name}"
        end = {"stage": _constant(stage.name), "said": {"componentInputParameter": "said"}}
        self.components[f"comp-if-{shut}"] = {
            "dag": {"tasks": {shut: self._task(shut, "closed", end)}},
            "inputDefinitions": _ports({_channel(gate): TEXT, "said": TEXT}),
        }
        tasks = {f"if-{shut}": _condition(f"if-{shut}", "!=", gate, _ports({_channel(gate): verdict, "said": said}))}
        if later:
            name = f"if-open-{stage.name}"
            base = {"componentInputArtifact": "model"} if model else None
            self.components[f"comp-{name}"] = {
                "dag": {"tasks": self.up_to_a_gate(later, {"componentInputParameter": "made"}, base)},
                "inputDefinitions": _ports({_channel(gate): TEXT, "made": TEXT}, model=MODEL if model else None),
            }
            tasks[name] = _condition(name, "==", gate, _ports({_channel(gate): verdict, "made": made}, model=model))
        return tasks

    def _task(self, name: str, part: str, parameters: Spec, base: Spec | None = None) -> Spec:
        self.components[f"comp-{name}"] = _component(part)
        # Other stages find by themselves whether they are done and whether files beside the recipe have changed, and
        # verdicts may be overruled.
        own: dict[str, object] = {"cachingOptions": {"enableCache": True} if part == "train" else {}}
        if part != "closed":
            own["retryPolicy"] = RETRIES
        return _node(name, _ports(parameters, base=base), own)


def _channel(gate: str) -> str:
    """The name of a condition's input with a gate's verdict, as the SDK's local runner needs it (2.17)."""
    return f"pipelinechannel--{gate}--verdict"


def _condition(name: str, comparison: str, gate: str, inputs: Spec) -> Spec:
    condition = f"inputs.parameter_values['{_channel(gate)}'] {comparison} '{OPEN}'"
    return _node(name, inputs, {"triggerPolicy": {"condition": condition}})


def _node(name: str, inputs: Spec, own: dict[str, object]) -> Spec:
    """A task, or the tasks in a condition, after the tasks whose outputs it reads."""
    sources = [source for kind in inputs.values() for source in kind.values()]
    before = {how["producerTask"] for source in sources for how in source.values() if "producerTask" in how}
    own |= {"componentRef": {"name": f"comp-{name}"}, "inputs": inputs, "taskInfo": {"name": name}}
    if before:
        own["dependentTasks"] = sorted(before)
    return dict(sorted(own.items()))


def _constant(text: str) -> Spec:
    return {"runtimeValue": {"constant": text}}
