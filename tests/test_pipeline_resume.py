"""A pipeline that is killed at any moment goes on with the same command and ends where the undisturbed one ends."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

KILLS = 5


def shortened(folder: Path) -> Path:
    """The recipe with two short context lengths and without LoRA: every kind of boundary, in less time."""
    text = (ROOT / "recipes" / "seven-b.yaml").read_text("utf-8")
    text = re.sub(r"(?ms)^lora:.*?(?=^evaluation:)", "", text)
    text = re.sub(
        r"(?ms)^  curriculum:.*?(?=^  learning_rate:)",
        "  curriculum:\n    - {sequence_len: 64, until: 0.4}\n    - {sequence_len: 128, until: 1.0}\n",
        text,
    )
    shutil.copytree(ROOT / "recipes" / "data", folder / "data")
    file = folder / "short.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def start(recipe: Path, out: Path) -> subprocess.Popen:
    log = (out.parent / f"{out.name}.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-m", "runner", "rehearse", str(recipe), "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(recipe: Path, out: Path) -> float:
    begun = time.monotonic()
    process = start(recipe, out)
    assert process.wait(1200) == 0, (out.parent / f"{out.name}.log").read_text("utf-8")[-3000:]
    return time.monotonic() - begun


def results(out: Path) -> dict[str, dict]:
    found = {file.parent.name: json.loads(file.read_text("utf-8")) for file in out.glob("*/training_summary.json")}
    assert set(found) == {"pretrain-64", "pretrain-128", "sft", "dpo"}
    return found


def test_an_engine_ends_when_the_command_that_started_it_is_gone():
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = "import time; from runner.training import leash; leash.hold(); print('held', flush=True); time.sleep(60)"
    engine = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RECIPE_RUNNER_LEASH": str(holder.pid)},
        stdout=subprocess.PIPE,
    )
    assert engine.stdout.readline() == b"held\n"
    time.sleep(1)
    assert engine.poll() is None
    holder.kill()  # and not waited for: a zombie holds no leash
    assert engine.wait(10) == 1
    holder.wait()


@pytest.mark.long
def test_a_pipeline_killed_at_five_random_moments_ends_where_the_undisturbed_one_ends(tmp_path):
    recipe = shortened(tmp_path)
    whole = finish(recipe, tmp_path / "undisturbed")
    seed = time.time_ns() % 1_000_000
    draw = random.Random(seed)
    print(f"seed {seed}, undisturbed {whole:.0f} s")
    killed = tmp_path / "killed"
    for kill in range(KILLS):
        process = start(recipe, killed)
        # Five such moments end before the pipeline does, and lie all along it.
        moment = draw.uniform(0.04, 0.18) * whole
        try:
            code = process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"kill {kill + 1} after {moment:.0f} s, at {where(killed)}", flush=True)
        else:
            pytest.fail(f"the pipeline ended by itself after {kill} kills, with {code}")
    finish(recipe, killed)
    compare(results(tmp_path / "undisturbed"), results(killed))


def where(out: Path) -> str:
    """The stage that was running."""
    # A kill in the first moments comes before there is any stage.
    states = {file.parent.name: json.loads(file.read_text("utf-8")) for file in out.glob("*/stage.json")}
    return ", ".join(name for name, state in states.items() if state["status"] == "running") or "between stages"


def compare(undisturbed: dict[str, dict], killed: dict[str, dict]) -> None:
    for stage, wanted in undisturbed.items():
        got = killed[stage]
        assert got["tokens"] == wanted["tokens"], stage
        assert got["steps"] == wanted["steps"], stage
        for loss in ("last_validation_loss", "best_validation_loss", "last_training_loss"):
            assert got[loss] == pytest.approx(wanted[loss], abs=1e-3), (stage, loss)
