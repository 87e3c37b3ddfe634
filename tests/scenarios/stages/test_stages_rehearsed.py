"""Several stages through the real engine with a tiny twin: the second trains the model of the
first, and a killed run continues."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.long]

RECIPE = ROOT / "recipes/sft-dpo.yaml"


def start(out, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "runner", "rehearse", str(RECIPE), "--out", str(out), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory, recipe_command):
    out = tmp_path_factory.mktemp("rehearsal") / "run"
    done = recipe_command(
        "rehearse", RECIPE, "--out", out, env={"HF_HUB_OFFLINE": "1"}, timeout=1200
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return out, said


def summary(out, stage):
    return json.loads((out / stage / "training_summary.json").read_text("utf-8"))


def weights(out, stage):
    return hashlib.sha256(
        (out / stage / "best_model" / "model.safetensors").read_bytes()
    ).hexdigest()


def test_each_stage_learns_and_passes_its_gates(rehearsed):
    out, said = rehearsed
    for stage in ("sft", "dpo"):
        first, best = (
            summary(out, stage)[f"{which}_validation_loss"] for which in ("first", "best")
        )
        assert best < 0.9 * first and f"{stage}: gate" in said
    assert summary(out, "dpo")["last_preference_accuracy"] > 0.6
    assert "Rehearsal passed" in said


def test_the_second_stage_begins_with_the_model_of_the_first(rehearsed):
    out, _ = rehearsed
    config = (out / "dpo" / "config" / "axolotl.yaml").read_text("utf-8")
    assert f"base_model: {out}/sft/best_model" in config
    answers = {
        stage: json.loads((out / stage / "demo.json").read_text("utf-8"))
        for stage in ("sft", "dpo")
    }
    assert answers["dpo"]["base_model"] == f"{out}/sft/best_model" != answers["sft"]["base_model"]
    assert len({weights(out, "sft"), weights(out, "dpo")}) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("ask", "{recipe}", "Who uses a net?"),
        ("compare", "{recipe}"),
        ("gate", "{recipe}", "sft"),
        ("report", "{out}"),
        ("why", "{out}"),
    ],
    ids=" ".join,
)
def test_what_reads_a_run_knows_its_stages(rehearsed, recipe_command, words):
    out, _ = rehearsed
    named = [word.format(recipe=RECIPE, out=out) for word in words]
    run = [] if "{out}" in words else ["--run", str(out)]
    done = recipe_command(*named, *run, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_killed_in_each_stage_ends_bit_for_bit_as_the_undisturbed_one(rehearsed, tmp_path):
    undisturbed, _ = rehearsed
    out = tmp_path / "run"
    for stage, after in (("data", 0), ("sft", 3), ("dpo", 6)):
        process, deadline = start(out), time.monotonic() + 300
        history = out / ("data" if stage == "data" else f"{stage}/checkpoints")
        while not history.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(after)
        assert process.poll() is None, f"{stage} was over before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = start(out)
    said = process.communicate(timeout=1200)[0]
    assert process.returncode == 0, said[-4000:]
    for stage in ("sft", "dpo"):
        assert weights(out, stage) == weights(undisturbed, stage)
        assert (
            summary(out, stage)["best_validation_loss"]
            == summary(undisturbed, stage)["best_validation_loss"]
        )
