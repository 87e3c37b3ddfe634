"""The pods of a rendered PyTorchJob, as real processes: they find each other, train, and survive
the loss of one."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from runner import catalog
from runner.check.validate import changed, load
from runner.entrypoints.prepare import carry_out
from runner.parts.jobs import kubernetes, podspec, training_metrics
from runner.parts.openshift.jobs import render_job
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import prepare, rehearsal, translate
from runner.scenarios.shared import twin
from runner.tools.files import sha256, write_text
from tests import shapes
from tests.conftest import ROOT
from tests.listening import as_the_trainer_reads, ask
from tests.parts.jobs.test_stage import BEFORE_SFT, Claim, whole
from tests.parts.openshift.pods import blind, indexed, once, operate, pods, processes
from tests.rendering import render

pytestmark = pytest.mark.heavy

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
SURVIVAL, RESNET = ROOT / "recipes" / "survival.yaml", ROOT / "recipes" / "resnet.yaml"
TOKEN = "hf_PlantedHubTokenOfTheTests"
# Seconds until pods that wait for each other in vain are given up; on two cores with nothing else
# to do they take two minutes.
LONGEST = 1500
# The tiny twin and few rows, as a rehearsal takes them; epochs long enough that a pod can be lost
# in one.
SMALL = (
    "model.precision=fp32",
    "model.attention=sdpa",
    "train.kernels=none",
    "train.learning_rate=0.002",
    "train.learning_rate_scaling=none",
    "train.optimizer=adamw_torch",
    "train.micro_batch_size=1",
    "train.gradient_accumulation_steps=1",
    "train.logging_steps=1",
    "train.epochs=3",
    "demo.questions=",
    "data.hub=",
    f"data.path={ROOT}/recipes/data/survival-sample.jsonl",
)


@pytest.fixture
def tmp_path():
    """A short path: a socket's name holds 107 characters, and multiprocessing puts its sockets
    below a pod's TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        yield Path(folder)


def started(folder: Path, nodes: int):
    """The job as it is rendered, its pods, and the run's folder; the config map's place holds the
    rehearsal's config."""
    machines = (f"machines.nodes={nodes}", "train.effective_batch_size=")
    recipe, _, _ = load(SURVIVAL, from_options(machines))
    texts = {
        file.path: file.text
        for file in render(translate(recipe, kubernetes.place(recipe)), ("pytorchjob",))
    }
    job = yaml.safe_load(texts["pytorchjob.yaml"])
    models = folder / "models"
    mounts = {
        "/etc/recipe-runner": folder / "config",
        "/shared/models": models,
        "/shared/workspace": folder / "workspace",
    }
    for mount in mounts.values():
        mount.mkdir()
    place = Place(
        str(folder / "config"), str(folder / "data"), str(models / "survival"), str(folder / "scratch"),
        accelerator=False, on_cluster=True,
    )  # fmt: skip
    small, _, _ = load(SURVIVAL, from_options((*machines, *SMALL)))
    base = folder / "base_model"
    facts = twin.wanted(small.model_facts, catalog.chat_template("chatml"), 4, 1, base)
    prepare(
        translate(small, place).stage("train").data,
        folder / "data",
        tokenizer_for=twin.tokenizer_for(facts),
    )
    twin.build(facts)
    small, _, _ = load(SURVIVAL, from_options((*machines, *SMALL, f"model.base={base}")))
    for file in translate(small, place).stage("train").files:
        (folder / "config" / file.path).write_text(file.text, encoding="utf-8")
    return job, pods(job, mounts, folder / "pods"), models / "survival"


def events(text: str, kind: str) -> list[dict]:
    lines = re.findall(r"\[recipe\] (\{.*\})", text)
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def nothing() -> None:
    pass


@pytest.mark.long
def test_as_many_pods_as_the_job_asks_for_find_each_other_and_train(tmp_path):
    job, running, run = started(tmp_path, nodes=4)
    assert [pod.name for pod in running] == [
        "survival-master-0",
        *(f"survival-worker-{index}" for index in range(3)),
    ]
    operate(job, running, nothing, timeout=LONGEST)
    assert [pod.restarts for pod in running] == [0, 0, 0, 0]
    summary = json.loads((run / "training_summary.json").read_text())
    assert (summary["world_size"], summary["backend"], summary["effective_batch_size"]) == (
        4,
        "gloo",
        4,
    )
    assert summary["best_validation_loss"] < summary["first_validation_loss"]
    record = json.loads((run / "stage.json").read_text())
    assert record["status"] == "finished" and "best_model/model.safetensors" in record["outputs"]
    # A quarter of the rows for each process: were they alone, there would be four times as many
    # steps. Axolotl counts the rows of the three epochs together.
    rows = json.loads((tmp_path / "data" / "report.json").read_text())["train_rows"]
    assert summary["steps"] == math.ceil(3 * rows / 4)


@pytest.mark.long
def test_a_pod_killed_in_the_middle_comes_back_and_goes_on_from_the_last_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    job, running, run = started(tmp_path, nodes=2)
    master, worker = running
    for pod in running:
        pod.env["HF_TOKEN"] = TOKEN  # as the Secret would give it
    seen: dict[str, object] = {}

    def lose_one() -> None:
        steps = events(master.text, "step") if master.log.exists() else []
        if "metrics" not in seen and steps:
            seen["metrics"] = ask(int(master.env[training_metrics.METRICS_PORT]))
            seen["progress"] = as_the_trainer_reads(
                ask(int(master.env[training_metrics.PROGRESS_PORT]))
            )
        done = sorted((run / "checkpoints").rglob("checkpoint-*/trainer_state.json"))
        if "killed" not in seen and done and steps and steps[-1]["step"] > _step(done[-1]) + 2:
            worker.kill()
            seen["killed"] = _step(done[-1])

    operate(job, running, lose_one, timeout=LONGEST)
    assert seen.get("killed"), "the training was over before a pod could be killed"
    assert worker.codes[0] == -9 and worker.restarts >= 1
    begins = events(master.text, "begin")
    assert begins[0]["step"] == 0
    assert begins[-1]["step"] >= seen["killed"], "it began again before the last checkpoint"
    summary = json.loads((run / "training_summary.json").read_text())
    assert summary["steps"] == begins[0]["steps"]
    history = [
        entry["step"] for entry in json.loads((run / "training_history.json").read_text())["steps"]
    ]
    assert history == list(range(1, summary["steps"] + 1)), (
        "a step is missing, or stands there twice"
    )
    assert "recipe_step " in seen["metrics"] and "recipe_loss " in seen["metrics"]
    assert seen["progress"]["totalSteps"] == summary["steps"] and not ask(
        int(worker.env[training_metrics.PROGRESS_PORT])
    )
    left = json.loads((run / "progress.json").read_text())
    assert (left["currentStep"], left["progressPercentage"]) == (summary["steps"], 100)
    told = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    assert told == [], "the hub's token was written down"


def of_images(folder: Path):
    """The same of the image recipe on two machines: its job as it is rendered, with a narrow
    network and few images."""
    machines = ("machines.nodes=2", "train.effective_batch_size=64")
    recipe, _, _ = load(RESNET, from_options(machines))
    texts = {
        file.path: file.text
        for file in render(translate(recipe, kubernetes.place(recipe)), ("pytorchjob",))
    }
    job = yaml.safe_load(texts["pytorchjob.yaml"])
    mounts = {
        "/etc/recipe-runner": folder / "config",
        "/shared/models": folder / "models",
        "/shared/data": folder / "d",
    }
    for mount in mounts.values():
        mount.mkdir()
    drawn, labels = shapes.pictures(per_class=22)
    for name, part in (("train", slice(20, None)), ("test", slice(20))):
        shapes.write(folder / "images" / f"{name}.parquet", drawn[part], labels[part])
    few = (
        f"data.path={folder}/images",
        "data.hub=",
        "data.mean=",
        "data.std=",
        "model.width=4",
        "train.epochs=40",
    )
    few += ("train.learning_rate=0.01", "train.logging_steps=1", "train.optimizer=adamw_torch")
    small, _, _ = load(RESNET, from_options((*machines, *few)))
    place = Place(
        str(folder / "config"), str(folder / "data"), str(folder / "models" / "resnet"), str(folder / "scratch"),
        accelerator=False, on_cluster=True,
    )  # fmt: skip
    for file in translate(small, place).stage("train").files:
        (folder / "config" / file.path).write_text(file.text, encoding="utf-8")
    return job, pods(job, mounts, folder / "pods"), folder / "models" / "resnet"


@pytest.mark.long
@pytest.mark.parametrize(
    "made", [lambda folder: started(folder, nodes=2), of_images], ids=["text", "images"]
)
@pytest.mark.parametrize("alone", [True, False], ids=["one machine", "all machines"])
def test_machines_that_are_taken_back_save_one_step_and_go_on_from_it(tmp_path, made, alone):
    """The cluster's SIGTERM comes to one pod, or to all at moments of their own; no step is lost,
    and none is taken twice."""
    job, running, run = made(tmp_path)
    master, worker = running
    asked: list[str] = []

    def take_back() -> None:
        steps = events(master.text, "step") if master.log.exists() else []
        if not asked and steps:
            worker.end()
            asked.append(worker.name)
        elif len(asked) == 1 and not alone and master.process.poll() is None:
            master.end()
            asked.append(master.name)

    operate(job, running, take_back, timeout=LONGEST)
    assert asked, "the training was over before a machine could be taken back"
    assert all(pod.restarts >= 1 for pod in running), [pod.codes for pod in running]
    saved = [int(step) for step in re.findall(r"Step (\d+) is saved", master.text)]
    begins = [event["step"] for event in events(master.text, "begin")]
    assert len(saved) == 1 and begins == [0, saved[0]], (saved, begins)
    summary = json.loads((run / "training_summary.json").read_text())
    history = [
        entry["step"] for entry in json.loads((run / "training_history.json").read_text())["steps"]
    ]
    assert history == list(range(1, summary["steps"] + 1)), (
        "a step is missing, or stands there twice"
    )
    assert json.loads((run / "stage.json").read_text())["status"] == "finished"
    waits = {pod.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] for pod in running}
    template = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert waits == {str(template["terminationGracePeriodSeconds"] - podspec.LAUNCHERS)}


# The data stage of a pipeline, shared by the pods of an indexed Job.


def cleaning_pods(folder: Path, executor: str):
    """The Job of the data stage as it is rendered, and the work of its config, small and in folders
    of this machine."""
    shared = ("executor=pods", "pods=4", "tasks=6", "workers=1")
    shared = tuple(f"stages.0.data.cleaning.{setting}" for setting in shared)
    whole, _, _ = load(SEVEN_B, from_options(shared))
    plan = translate(whole, kubernetes.place(whole))
    job = render_job(plan, plan.stages[0]).job
    assert job["spec"]["backoffLimitPerIndex"] == 3 and job["spec"]["maxFailedIndexes"] == 0
    sample = [
        change
        for change in rehearsal("stages").before_data(whole, None)
        if "data" in change.setting.split(".")
    ]
    tokenizer = ("stages.0.tokenizer.base=", "stages.0.tokenizer.vocabulary=600")
    cleaning = shared if executor == "pods" else ("stages.0.data.cleaning=",)
    small, _ = changed(whole, [*sample, *from_options((*tokenizer, *cleaning))])
    place = Place(
        str(folder / "config"), str(folder / "data"), str(folder / "seven-b"), str(folder / "scratch"),
        accelerator=False, on_cluster=True,
    )  # fmt: skip
    stage = translate(small, place).stages[0]
    for file in stage.files:
        write_text(folder / "config" / "data" / file.path, file.text)
    (folder / "models").mkdir()
    mounts = {
        plan.place_of(plan.stages[0]).config_dir: folder / "config" / "data",
        "/shared/models": folder / "models",
    }
    return job, mounts, stage


def left(folder: Path) -> dict[str, str]:
    """Every file of the data stage by its content, but reports, which say where its files lay, and
    how long it took."""
    reports = ("cleaning.json", "report.json", "report.txt", "rows.json")
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in reports]
    return {str(file.relative_to(folder)): sha256(file) for file in files}


@pytest.mark.long
def test_pods_of_an_indexed_job_share_the_cleaning_and_one_that_is_lost_is_tried_again_alone(
    tmp_path,
):
    job, mounts, stage = cleaning_pods(tmp_path, "pods")
    assert stage.machines.nodes == 4 and "PET_NODE_RANK" not in stage.env
    running, seen = indexed(job, mounts, tmp_path / "pods"), []

    def lose_one() -> None:
        third = running[2]
        if not seen and third.log.exists() and "Launching pipeline for rank" in third.text:
            third.kill()
            seen.append(third.name)

    operate(job, running, lose_one, timeout=LONGEST)
    assert seen == ["seven-b-data-2"] and [pod.restarts for pod in running] == [0, 0, 1, 0]
    for number, pod in enumerate(running[1:], 1):
        assert (
            f"Pod {number} has cleaned its part." in pod.text and "documents kept" not in pod.text
        )
    assert "documents kept" in running[0].text
    record = json.loads((tmp_path / "seven-b" / "data" / "stage.json").read_text())
    assert record["status"] == "finished"
    alone = tmp_path / "alone"
    _, _, by_itself = cleaning_pods(alone, "local")
    carry_out({**by_itself.config, "proofs": None}, lambda line: None)
    here, there = left(tmp_path / "data"), left(alone / "data")
    assert [
        name for name in here | there if here.get(name) != there.get(name)
    ] == [] and "text/documents.jsonl" in here


# A pipeline's pods, whose stages are finished on paper.


@pytest.fixture
def claim(tmp_path):
    made = Claim(tmp_path / "claim")
    made.finish(*BEFORE_SFT, "sft")
    made.measure("pretrain-2048")
    return made


def pods_of_sft(claim, of_gate: bool) -> tuple[dict, dict[str, Path]]:
    """The job of a stage or of the gate after it, as it is rendered, and the folders behind its
    mounts."""
    plan = whole(*claim.site)
    stage = next(stage for stage in plan.stages if stage.name == "sft")
    config = claim.folder / "config"
    config.mkdir()
    for file in stage.files:
        (config / file.path).write_text(claim.here(file.text), encoding="utf-8")
    return render_job(plan, stage, of_gate=of_gate).job, {plan.place_of(stage).config_dir: config}


def test_a_stage_sees_the_gpus_that_its_pod_has_booked(claim, tmp_path):
    shutil.rmtree(claim.folder / "seven-b" / "sft")
    job, mounts = pods_of_sft(claim, of_gate=False)
    (pod,) = pods(job, mounts, tmp_path / "pods")
    assert pod.gpus == 8
    # An engine that only looks around.
    pod.command[pod.command.index("--") + 1 :] = [sys.executable, "-c", "raise SystemExit(3)"]
    pod.start()
    assert pod.process.wait(120) == 3, pod.text
    seen = processes(pod.log.parent)
    assert any("SystemExit" in command for command in seen), "the engine has not started"
    assert {gpus.count("GPU-pretended") for gpus in seen.values()} == {8}


def test_a_gate_sees_the_gpu_that_its_pod_has_booked(claim, tmp_path):
    job, mounts = pods_of_sft(claim, of_gate=True)
    done = once(job, mounts, tmp_path / "gate")
    # There is nothing that could be measured; that it is tried is enough.
    assert done.returncode == 1 and "The gate after `sft` is closed." in done.stdout, (
        done.stdout + done.stderr
    )
    assert len(processes(tmp_path / "gate")) > 1, "what measures is a process of its own"
    assert blind(tmp_path / "gate") == []


def _step(state: Path) -> int:
    return int(state.parent.name.removeprefix("checkpoint-"))
