"""An adapter that was interrupted at any moment comes out bit for bit as the undisturbed one; its
checkpoints come when the recipe says, and it ends early when its evaluations bring nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from runner.plan import Plan
from runner.run.launch import ENGINES, environment
from runner.scenarios import saved_plan, section_schema
from runner.tools import child_process
from runner.tools.settings import Settings
from runner.trainer.records import EarlyStop, Summary
from tests import s3
from tests.conftest import ROOT

pytestmark = pytest.mark.heavy

# How each life of the engine ends: a signal when it has told of this step, and the exit code. The
# first checkpoint of an epoch is at step 27, and others lie between.
INTERRUPTED = (
    (signal.SIGKILL, 5, -9),
    (signal.SIGKILL, 35, -9),
    (signal.SIGTERM, 31, 143),
    (None, 0, 0),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, recipe_command) -> Path:
    """The undisturbed rehearsal, with checkpoints of its own between those of its epochs, all of
    them kept."""
    out, recipe = tmp_path_factory.mktemp("exact") / "whole", ROOT / "recipes" / "lyrics.yaml"
    sets = ["--set", "train.save_steps=10", "--set", "train.keep_checkpoints=100"]
    assert recipe_command("rehearse", recipe, *sets, "--out", out).returncode == 0
    return out


def again(whole: Path, folder: Path, *changes: tuple[str, str]) -> tuple[Plan, Path]:
    """A folder with what the rehearsal began with, and texts of its config changed."""
    for name in ("base_model", "data", "config"):
        shutil.copytree(whole / name, folder / name)
    for file in (folder / "config").glob("*.*"):
        file.write_text(file.read_text("utf-8").replace(str(whole), str(folder)), encoding="utf-8")
    config = folder / "config" / "axolotl.yaml"
    text = config.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    config.write_text(text, encoding="utf-8")
    return saved_plan.from_json((folder / "config" / "plan.json").read_text("utf-8")), folder


@pytest.mark.long
def test_an_interrupted_adapter_is_bit_for_bit_the_undisturbed_one(whole, tmp_path):
    plan, interrupted = again(whole, tmp_path / "interrupted")
    stage, place = plan.stage("train"), plan.place
    for end, step, code in INTERRUPTED:
        assert (
            life(
                ENGINES["axolotl"](stage, place), environment(stage, place), interrupted, end, step
            )
            == code
        )
    begins = [
        event["step"]
        for event in child_process.events((interrupted / "log").read_text())
        if event["event"] == "begin"
    ]
    assert begins[:3] == [0, 0, 27] and 31 < begins[3] < 54
    for file in ("lora_adapter/adapter_model.safetensors", "best_model/model.safetensors"):
        assert (interrupted / file).read_bytes() == (whole / file).read_bytes(), file
    assert losses(interrupted) == losses(whole)


@pytest.mark.long
def test_an_adapter_whose_folder_is_lost_goes_on_from_its_mirror_bit_for_bit(whole, tmp_path):
    """Stages as their pods start them. Only what a pod brings along is left: configs, and the base
    model."""
    with s3.started() as server:
        _, lost = again(whole, tmp_path / "lost")
        shutil.copy(whole / "run.json", lost / "run.json")
        assert pod(lost, "data") == 0
        store, mirror = (
            server.store(),
            f"team/runs/{json.loads((lost / 'config' / 'plan.json').read_text())['name']}",
        )
        assert pod(lost, "train", lambda: store.glob(f"{mirror}/train/manifest-*.json")) == -9
        for path in lost.iterdir():
            if path.name not in ("base_model", "config", "log"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert (lost / "log").read_text("utf-8").count("came from the mirror") == 0
        assert pod(lost, "train") == 0
        told = (lost / "log").read_text("utf-8")
        assert (
            "data: its results came from the mirror" in told
            and "train: its checkpoint at step" in told
        )
        assert store.exists(f"{mirror}/train/manifest.json")
        for file in ("lora_adapter/adapter_model.safetensors", "best_model/model.safetensors"):
            assert (lost / file).read_bytes() == (whole / file).read_bytes(), file
            assert store.cat_file(f"{mirror}/train/{file}") == (whole / file).read_bytes()
        assert losses(lost) == losses(whole)
    begins = [event["step"] for event in child_process.events(told) if event["event"] == "begin"]
    assert begins[0] == 0 and begins[1] >= 10


def pod(run: Path, name: str, end: Callable[[], object] | None = None) -> int:
    """Runs a stage of a rehearsal as its pod does, and kills everything once `end` says so; the
    exit code."""
    plan = saved_plan.from_json((run / "config" / "plan.json").read_text("utf-8"))
    stage = plan.stage(name)
    site = Settings({"mirror": "s3://team/runs", "claims": []}, section_schema("openshift"))
    plan = replace(plan.upto(stage), site=site)
    (run / "config" / f"{name}.json").write_text(plan.as_json(), encoding="utf-8")
    command = ENGINES[stage.engine](stage, plan.place)
    entry = [
        sys.executable,
        "-m",
        "runner.parts.jobs.stage",
        "run",
        str(run / "config" / f"{name}.json"),
        "--",
        *command,
    ]
    env = environment(stage, plan.place) | {"PYTHONPATH": str(ROOT)}
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(entry, env=env, cwd=run, start_new_session=True, **pipes)
    with (run / "log").open("a", encoding="utf-8") as log:
        for line in process.stdout:
            log.write(line)
            if end and '"step"' in line and end():
                os.killpg(process.pid, signal.SIGKILL)
                end = None
    return process.wait(60)


def saved(run: Path) -> list[int]:
    return sorted(
        int(path.name.rpartition("-")[2]) for path in (run / "checkpoints").glob("checkpoint-*")
    )


@pytest.mark.long
def test_checkpoints_come_when_the_recipe_says(whole):
    """A rehearsal has a third of its steps between two."""
    config = yaml.safe_load((whole / "config" / "axolotl.yaml").read_text("utf-8"))
    every, last = config["recipe_runner"]["save_steps"], losses(whole)[0][-1][0]
    epochs = [step for step, _ in losses(whole)[1] if step]
    assert config["save_strategy"] == "epoch" and every not in epochs
    assert saved(whole) == sorted({*range(every, last + 1, every), *epochs})


@pytest.mark.long
def test_training_ends_early_and_keeps_the_best_model_over_an_interruption(whole, tmp_path):
    """No evaluation is better than the first by 100: it ends after three more, two of which were
    before the interruption."""
    by_steps = "eval_strategy: steps\neval_steps: 6\nsave_strategy: steps\nsave_steps: 6\n"
    changes = (
        ("eval_strategy: epoch\nsave_strategy: epoch\n", by_steps),
        (
            "  save_steps: ",
            "  early_stopping:\n    patience: 3\n    min_improvement: 100.0\n  save_steps: ",
        ),
    )
    plan, run = again(whole, tmp_path / "early", *changes)
    stage, place = plan.stage("train"), plan.place
    for end, step, code in ((signal.SIGTERM, 14, 143), (None, 0, 0)):
        assert (
            life(ENGINES["axolotl"](stage, place), environment(stage, place), run, end, step)
            == code
        )
    summary = Summary.read(run)
    measured = dict(losses(run)[1])
    best = min((step for step in measured if step), key=measured.__getitem__)
    assert (
        summary.early_stop == EarlyStop(patience=3, step=18, steps=54, kept=best)
        and summary.steps == 18
    )
    assert summary.best_checkpoint == f"checkpoint-{best}"
    kept, checkpoint = (
        (run / folder / "adapter_model.safetensors").read_bytes()
        for folder in ("lora_adapter", f"checkpoints/{summary.best_checkpoint}")
    )
    assert kept == checkpoint


def life(
    command: list[str], env: dict[str, str], run: Path, end: signal.Signals | None, step: int
) -> int:
    """Starts the engine, and ends it so once it has told of that step; its exit code."""
    process = subprocess.Popen(
        command,
        env=env | {"PYTHONPATH": str(ROOT)},
        cwd=run,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with (run / "log").open("a", encoding="utf-8") as log:
        for line in process.stdout:
            log.write(line)
            if end and any(
                event.get("step") == step
                for event in child_process.events(line)
                if event["event"] == "step"
            ):
                process.send_signal(end)
    return process.wait(60)


def losses(run: Path) -> tuple[list, list]:
    history = json.loads((run / "training_history.json").read_text("utf-8"))
    return [(one["step"], one["loss"]) for one in history["steps"]], [
        (one["step"], one["validation_loss"]) for one in history["epochs"]
    ]
