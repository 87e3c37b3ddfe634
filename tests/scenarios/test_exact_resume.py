"""An adapter that was interrupted at any moment comes out bit for bit as the undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.plan import Plan
from runner.runs.engines import ENGINES
from runner.runs.launch import environment
from runner.training import progress_lines
from tests.conftest import ROOT

pytestmark = pytest.mark.heavy

# How each life of the engine ends: a signal when it has told of this step, and the exit code. The first checkpoint is at step 27.
INTERRUPTED = ((signal.SIGKILL, 5, -9), (signal.SIGKILL, 35, -9), (signal.SIGTERM, 31, 143), (None, 0, 0))


@pytest.mark.long
def test_an_interrupted_adapter_is_bit_for_bit_the_undisturbed_one(tmp_path):
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    subprocess.run(
        [sys.executable, "-m", "runner", "rehearse", str(ROOT / "recipes" / "lyrics.yaml"), "--out", str(whole)],
        cwd=ROOT, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    for folder in ("base_model", "data", "config"):
        shutil.copytree(whole / folder, interrupted / folder)
    for file in (interrupted / "config").glob("*.*"):
        file.write_text(file.read_text("utf-8").replace(str(whole), str(interrupted)), encoding="utf-8")
    plan = Plan.read((interrupted / "config" / "plan.json").read_text("utf-8"))
    stage, place = plan.stage("train"), plan.place
    for end, step, code in INTERRUPTED:
        assert life(ENGINES["axolotl"](stage, place), environment(stage, place), interrupted, end, step) == code
    begins = [
        event["step"] for event in progress_lines.read((interrupted / "log").read_text()) if event["event"] == "begin"
    ]
    assert begins[:3] == [0, 0, 27] and 31 < begins[3] < 54
    for file in ("lora_adapter/adapter_model.safetensors", "best_model/model.safetensors"):
        assert (interrupted / file).read_bytes() == (whole / file).read_bytes(), file
    assert losses(interrupted) == losses(whole)


def life(command: list[str], env: dict[str, str], run: Path, end: signal.Signals | None, step: int) -> int:
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
                event.get("step") == step for event in progress_lines.read(line) if event["event"] == "step"
            ):
                process.send_signal(end)
    return process.wait(60)


def losses(run: Path) -> tuple[list, list]:
    history = json.loads((run / "training_history.json").read_text("utf-8"))
    return [(one["step"], one["loss"]) for one in history["steps"]], [
        (one["step"], one["validation_loss"]) for one in history["epochs"]
    ]
