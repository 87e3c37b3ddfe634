"""The pods of a rendered PyTorchJob, as real processes: they find each other, train, and survive the loss of one."""

from __future__ import annotations

import json
import re
import tempfile
import urllib.request
from pathlib import Path

import pytest
import yaml

from runner import catalog
from runner.execute import twin
from runner.execute.data import prepare, tokenizers
from runner.plan import Place
from runner.recipe.changes import from_options
from runner.recipe.check import load
from runner.scenarios import translate
from runner.targets import kubernetes, render
from tests.cluster.pods import operate, pods
from tests.conftest import ROOT

SURVIVAL = ROOT / "recipes" / "survival.yaml"
TOKEN = "hf_PlantedHubTokenOfTheTests"
# The tiny twin and few rows, as a rehearsal takes them; epochs long enough that a pod can be lost in one.
SMALL = (
    "model.precision=fp32",
    "model.attention=sdpa",
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
    """A short path: a socket's name holds 107 characters, and multiprocessing puts its sockets below a pod's TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        yield Path(folder)


def started(folder: Path, nodes: int):
    """The job as it is rendered, its pods, and the run's folder; the config map's place holds the rehearsal's config."""
    machines = (f"machines.nodes={nodes}", "train.effective_batch_size=")
    recipe, _, _ = load(SURVIVAL, from_options(machines))
    texts = {file.path: file.text for file in render(translate(recipe, kubernetes.place(recipe)), ("pytorchjob",))}
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
        str(folder / "config"), str(folder / "data"), str(models / "survival"), str(folder / "scratch"), False
    )
    small, _, _ = load(SURVIVAL, from_options((*machines, *SMALL)))
    base = folder / "base_model"
    marks = catalog.chat_template("chatml")
    prepare(
        translate(small, place).stages[0].data,
        folder / "data",
        tokenizer_for=lambda texts: tokenizers.train(texts, base, small.model_facts, marks, twin.VOCABULARY),
    )
    twin.build(small.model_facts, layers=4, seed=1, folder=base)
    small, _, _ = load(SURVIVAL, from_options((*machines, *SMALL, f"model.base={base}")))
    for file in translate(small, place).stages[0].files:
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
    assert [pod.name for pod in running] == ["survival-master-0", *(f"survival-worker-{index}" for index in range(3))]
    operate(job, running, nothing, timeout=540)
    assert [pod.restarts for pod in running] == [0, 0, 0, 0]
    summary = json.loads((run / "training_summary.json").read_text())
    assert (summary["world_size"], summary["backend"], summary["effective_batch_size"]) == (4, "gloo", 4)
    assert summary["best_validation_loss"] < summary["first_validation_loss"]
    # A quarter of the rows for each process: were they alone, there would be four times as many steps.
    rows = json.loads((tmp_path / "data" / "report.json").read_text())["train_rows"]
    assert summary["steps"] == 3 * -(-rows // 4)


def test_a_pod_killed_in_the_middle_comes_back_and_goes_on_from_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    job, running, run = started(tmp_path, nodes=2)
    master, worker = running
    for pod in running:
        pod.env["HF_TOKEN"] = TOKEN  # as the Secret would give it
    seen: dict[str, object] = {}

    def lose_one() -> None:
        steps = events(master.text, "step") if master.log.exists() else []
        if "metrics" not in seen and steps:
            seen["metrics"] = (
                urllib.request.urlopen(f"http://127.0.0.1:{master.env['RECIPE_METRICS_PORT']}/metrics", timeout=5)
                .read()
                .decode()
            )
        done = sorted((run / "checkpoints").glob("checkpoint-*/trainer_state.json"))
        if "killed" not in seen and done and steps and steps[-1]["step"] > _step(done[-1]) + 2:
            worker.kill()
            seen["killed"] = _step(done[-1])

    operate(job, running, lose_one, timeout=540)
    assert seen.get("killed"), "the training was over before a pod could be killed"
    assert worker.codes[0] == -9 and worker.restarts >= 1
    begins = events(master.text, "begin")
    assert begins[0]["step"] == 0
    assert begins[-1]["step"] >= seen["killed"], "it began again before the last checkpoint"
    summary = json.loads((run / "training_summary.json").read_text())
    assert summary["steps"] == begins[0]["steps"]
    history = [entry["step"] for entry in json.loads((run / "training_history.json").read_text())["steps"]]
    assert history == list(range(1, summary["steps"] + 1)), "a step is missing, or stands there twice"
    assert "recipe_step " in seen["metrics"] and "recipe_loss " in seen["metrics"]
    told = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert told == [], "the hub's token was written down"


def _step(state: Path) -> int:
    return int(state.parent.name.removeprefix("checkpoint-"))
