"""Launching: progress comes through, the reason of a failure is said in words, and ^C ends every
process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runner.plan import Machines, Place, Stage
from runner.run import launch as launching
from runner.run.launch import environment, follow, launch
from runner.scenarios.shared import rehearsal
from runner.tools.files import Artifact
from runner.tools.problem import Stop
from runner.trainer import fork_server
from runner.trainer.records import Summary
from tests.conftest import ROOT


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Launches a small Python program as if it were the engine; gives the progress events that it
    sent."""

    def start(program: str, name: str = "train", engine: str = "program") -> list[dict]:
        monkeypatch.setitem(
            launching.ENGINES, engine, lambda stage, place: [sys.executable, "-c", program]
        )
        machines = Machines(1, 1, "NVIDIA-L40S", 8, 2)
        files = (Artifact("c.yaml", "a: 1\n"),)
        stage = Stage(name, engine, {}, "c.yaml", {}, files, (), {"GREETING": "hello"}, machines, 1)
        place = Place(
            str(tmp_path / "config"), str(tmp_path), str(tmp_path), str(tmp_path), accelerator=False
        )
        events: list[dict] = []
        launch(stage, place, events.append)
        return events

    return start


def test_progress_that_shares_its_line_with_another_process_is_passed_on(run):
    program = "print('[recipe] {\"step\": 1}[INFO] rank 1[recipe] {\"step\": 2}'); print('[recipe] {\"st'); print('[recipe] 3')"
    assert run(program) == [{"step": 1}, {"step": 2}]


def test_progress_is_passed_on_and_everything_is_logged(run, tmp_path):
    program = 'import os; print(os.environ[\'GREETING\']); print(\'x\\r[recipe] {"event": "step", "step": 3}\')'
    assert run(program) == [{"event": "step", "step": 3}]
    assert (tmp_path / "train.log").read_text().startswith("hello\n")
    assert (tmp_path / "config" / "c.yaml").read_text() == "a: 1\n"


FAILURES = {
    "GPU memory": "raise RuntimeError('CUDA out of memory. Tried to allocate')",
    "disk": "raise OSError('No space left on device')",
    "FlashAttention": "raise ImportError('FlashAttention2 has been toggled on, but it cannot be used due to the following error')",
    "no FlashAttention": "import flash_attn_of_tomorrow",
    "an error in FlashAttention": "print('  File \"flash_attn/flash_attn_interface.py\", line 1'); raise RuntimeError('CUDA error: odd')",
    "a package": "import torch_of_tomorrow",
    "a package of an extra": "raise ModuleNotFoundError(\"No module named 'datatrove.pipeline'\")",
    "an error": "raise ValueError('odd')",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "an exit": "import sys; sys.exit(3)",
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_says_why_and_where_the_log_is(run, tmp_path, case, golden_message):
    with pytest.raises(Stop, match=rf"(?s)failed\..*{tmp_path}/train\.log$") as stop:
        run(FAILURES[case])
    assert "Traceback" not in stop.value.text
    golden_message(stop.value)


def test_the_reason_is_that_of_this_attempt_and_not_of_an_earlier_one(run, tmp_path):
    with pytest.raises(Stop, match="memory is too small"):
        run("raise RuntimeError('CUDA out of memory. Tried to allocate')")
    with pytest.raises(Stop) as stop:
        run("import sys; sys.exit(3)")
    assert stop.value.text == f"Training failed.\nThe whole log: {tmp_path}/train.log"
    assert "CUDA out of memory" in (tmp_path / "train.log").read_text()


@pytest.mark.parametrize(
    ("name", "engine"), [("data", "runner"), ("init", "runner"), ("sft", "axolotl")]
)
def test_a_stage_that_trains_nothing_is_not_called_training(run, name, engine, golden_message):
    with pytest.raises(Stop) as stop:
        run("import sys; sys.exit(3)", name, engine)
    assert ("Training" in stop.value.text) == (engine == "axolotl")
    golden_message(stop.value)


@pytest.mark.parametrize(
    ("doing", "program"),
    [
        ("Measuring `sft`", "raise ValueError('odd')"),
        ("Preparing the data", "STOPPED"),
        ("Training", "STOPPED"),
    ],
)
def test_what_failed_is_called_by_its_name(tmp_path, doing, program, golden_message):
    note = {"message": "The text is too short."}
    stopped = (
        f"import json; open({str(tmp_path / 'stopped.json')!r}, 'w').write(json.dumps({note})); 1/0"
    )
    command = [sys.executable, "-c", stopped if program == "STOPPED" else program]
    with pytest.raises(Stop) as stop:
        follow(command, dict(os.environ), tmp_path, lambda event: None, doing)
    golden_message(stop.value)


def test_interrupting_ends_the_engine_and_its_children(tmp_path):
    """^C in the middle of training: exit code 130, and nothing is left running."""
    marker = f"marker-{os.getpid()}-{time.time_ns()}"
    child = f"import time; time.sleep(120)  # {marker}"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(120)"
    code = (
        # Where a shell started the tests in the background, SIGINT is ignored, and children inherit
        # that.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from runner.run import launch; import runner.commands.cli as cli\n"
        f"launch.ENGINES['images'] = lambda stage, place: [sys.executable, '-c', {program!r}]\n"
        f"cli.main(['rehearse', {str(ROOT / 'recipes' / 'resnet.yaml')!r}, '--out', {str(tmp_path / 'run')!r}])"
    )
    nothing_ahead = os.environ | {
        fork_server.ADDRESS: "none"
    }  # the engine of Axolotl is not needed here
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=nothing_ahead,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 180
        while not running(marker) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert running(marker), "the engine did not start"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read().strip()
    assert said.splitlines()[-1] == "Interrupted during `train`. The same command continues it."
    assert not running(marker)


@pytest.mark.long
def test_interrupted_training_says_at_which_step_and_the_same_command_goes_on_from_there(
    tmp_path, recipe_command
):
    given = ["rehearse", str(ROOT / "recipes" / "survival.yaml"), "--out", str(tmp_path / "run")]
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"import runner.commands.cli as cli\ncli.main({given!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        next(line for line in process.stdout if line.startswith("  step "))
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1].strip()
    assert process.returncode == 130
    reached = re.fullmatch(
        r"Interrupted at step (\d+) of (\d+)\. The same command continues from there\.", said
    )
    assert reached and 0 < int(reached[1]) < int(reached[2]), said
    again = recipe_command(*given)
    assert again.returncode == 0, again.stderr
    assert "train: continues where it stopped" in again.stdout
    steps = [
        int(line.split()[1])
        for line in again.stdout.splitlines()
        if line.startswith("  step ") and " of " in line
    ]
    assert min(steps) == int(reached[1]) + 1


def running(marker: str) -> bool:
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    return any(f"# {marker}" in line and "subprocess" not in line for line in listed.splitlines())


@pytest.mark.parametrize(
    ("here", "planned", "visible"),
    [
        (None, 1, "0"),
        (None, 4, "0,1,2,3"),
        ("2,3", 1, "2"),
        ("GPU-8a,GPU-8b", 2, "GPU-8a,GPU-8b"),
        (None, 0, ""),
    ],
)
def test_no_more_gpus_are_seen_than_are_planned(monkeypatch, here, planned, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if here:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
    stage = Stage(
        "train",
        "images",
        {},
        "c.yaml",
        {},
        (),
        (),
        {},
        Machines(1, planned, "NVIDIA-L40S", 8, 2),
        1,
    )
    env = environment(stage, Place("c", "d", "r", "s"))
    # Their numbers are those of nvidia-smi, which CUDA does not use by itself.
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == (visible, "PCI_BUS_ID")


def test_a_rehearsal_that_learns_too_little_is_an_error(golden_message):
    plan = SimpleNamespace(name="demo", stages=[SimpleNamespace(config={})])
    summary = Summary(first_validation_loss=7.0, best_validation_loss=6.4, steps=40)
    with pytest.raises(Stop, match=r"8\.6% better") as stop:
        rehearsal.judge(plan, [summary])
    golden_message(stop.value)
    with pytest.raises(Stop, match="29 steps") as stop:
        rehearsal.judge(plan, [replace(summary, steps=29)])
    golden_message(stop.value, "too few steps")
    rehearsal.judge(plan, [replace(summary, best_validation_loss=6.2)])
