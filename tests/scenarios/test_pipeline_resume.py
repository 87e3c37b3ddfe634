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
from contextlib import nullcontext
from pathlib import Path

import pytest

from runner.check.validate import changed as with_overrides
from runner.check.validate import judge, load
from runner.plan import Plan
from runner.problem import Stop
from runner.recipe import overrides
from runner.runs.pipeline import Selection, carry_out
from runner.runs.run_folder import RunFolder
from runner.scenarios import translate
from runner.scenarios.pipeline import rehearsal
from runner.training import parent_watch
from tests.conftest import ROOT

KILLS = 5
STAGES = ("data", "init", "pretrain-64", "pretrain-128", "sft", "dpo")


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


def test_an_engine_and_what_it_forks_end_when_the_command_that_started_it_is_gone():
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = (
        "import multiprocessing, time; from runner.training import parent_watch; parent_watch.start()\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); child.start()\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), parent_watch.PARENT: str(holder.pid)},
        stdout=subprocess.PIPE,
    )
    child = int(engine.stdout.readline())
    time.sleep(1)
    assert engine.poll() is None and parent_watch.alive(child)
    holder.kill()  # and not waited for: a zombie is no parent
    assert engine.wait(10) == 1
    deadline = time.monotonic() + 10
    while parent_watch.alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not parent_watch.alive(child)
    holder.wait()


@pytest.mark.long
def test_a_pipeline_killed_at_five_random_moments_ends_where_the_undisturbed_one_ends(tmp_path):
    recipe = shortened(tmp_path)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    whole = finish(recipe, undisturbed)
    seed = time.time_ns() % 1_000_000
    draw = random.Random(seed)
    print(f"seed {seed}, undisturbed {whole:.0f} s")
    for number, stage in enumerate(sorted(draw.sample(STAGES, KILLS), key=STAGES.index), 1):
        # Somewhere between the stage's start and its end, by the time that it took undisturbed.
        after = draw.uniform(0.05, 0.95) * seconds(undisturbed, stage)
        kill(recipe, killed, stage, after)
        print(f"kill {number} {after:.0f} s after `{stage}` began, at {where(killed)}", flush=True)
    finish(recipe, killed)
    compare(results(undisturbed), results(killed))
    same_schedule(undisturbed, killed)


def kill(recipe: Path, out: Path, stage: str, after: float) -> None:
    """Starts the pipeline, and kills it so many seconds after the stage began or went on."""
    config, before = out / "config" / stage, time.time()
    process = start(recipe, out)
    while process.poll() is None:
        # The stage's config is written when it starts, each time anew.
        if config.is_dir() and max(file.stat().st_mtime for file in config.iterdir()) > before:
            break
        time.sleep(0.05)
    try:
        code = process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    else:
        pytest.fail(f"the pipeline ended by itself with {code}")


def seconds(out: Path, stage: str) -> float:
    """How long a stage took: from its config to its state, which is written last."""
    begun = min(file.stat().st_mtime for file in (out / "config" / stage).iterdir())
    return (out / stage / "stage.json").stat().st_mtime - begun


def same_schedule(undisturbed: Path, killed: Path) -> None:
    """Every step of pretraining was taken once, with the same learning rate, and went the same way: a length that began
    or went on without the optimizer's state would not."""
    for length in ("pretrain-64", "pretrain-128"):
        both = [
            json.loads((out / length / "training_history.json").read_text("utf-8")) for out in (undisturbed, killed)
        ]
        rates = [{step["step"]: step["learning_rate"] for step in history["steps"]} for history in both]
        assert rates[0] == rates[1] and len(rates[0]) == len(both[1]["steps"]) > 40
        for wanted, got in zip(both[0]["steps"], both[1]["steps"], strict=True):
            assert got["loss"] == pytest.approx(wanted["loss"], abs=1e-3), (length, got["step"])
            assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-2), (length, got["step"])


def where(out: Path) -> str:
    """The stage that was running."""
    # A kill in the first moments comes before there is any stage.
    states = {file.parent.name: json.loads(file.read_text("utf-8")) for file in out.glob("*/stage.json")}
    return ", ".join(name for name, state in states.items() if state["status"] == "begun") or "between stages"


def compare(undisturbed: dict[str, dict], killed: dict[str, dict]) -> None:
    for stage, wanted in undisturbed.items():
        got = killed[stage]
        assert got["tokens"] == wanted["tokens"], stage
        assert got["steps"] == wanted["steps"], stage
        for loss in ("last_validation_loss", "best_validation_loss", "last_training_loss"):
            assert got[loss] == pytest.approx(wanted[loss], abs=1e-3), (stage, loss)


@pytest.mark.long
def test_a_time_limit_ends_a_length_with_a_usable_model_and_a_higher_one_goes_on(tmp_path):
    """The rehearsal's own plan with a limit on it, through Axolotl itself."""
    from transformers import AutoModelForCausalLM

    run, told, recipe = RunFolder(tmp_path / "run", "rehearsal"), [], shortened(tmp_path)
    run.mark("running")

    def until_second_length(limit: str) -> Plan:
        small, _ = with_overrides(load(recipe)[0], rehearsal.before_data(load(recipe)[0], None))
        document, _ = overrides.apply(small.document, overrides.from_options([f"limits.time={limit}"]))
        plan = translate(judge(document)[0], run.place())
        chosen = Selection(last="pretrain-128").of(plan)
        carry_out(plan, chosen, told.append, lambda: nullcontext(lambda event: None))
        return plan

    with pytest.raises(Stop, match="has ended `pretrain-64` after step") as stop:
        until_second_length("4 s")
    assert "Raise `limits.time`" in stop.value.text
    first = json.loads((run.path / "pretrain-64" / "training_summary.json").read_text("utf-8"))
    assert 0 < first["steps"] < 48 and first["time_limit"]["reached"] and first["last_validation_loss"]
    assert AutoModelForCausalLM.from_pretrained(run.path / "pretrain-64" / "best_model").num_parameters() > 0
    assert not (run.path / "pretrain-128").exists()
    told.clear()
    plan = until_second_length("1 h")
    assert "  pretrain-64: goes on where it stopped" in told
    steps = [
        step["step"]
        for name in ("pretrain-64", "pretrain-128")
        for step in json.loads((run.path / name / "training_history.json").read_text("utf-8"))["steps"]
    ]
    assert steps == list(range(1, 121)), "no step is lost and none is taken twice"
    last = json.loads((run.path / "pretrain-128" / "training_summary.json").read_text("utf-8"))
    assert last["tokens"] == plan.facts["tokens_in_all"] and not last["time_limit"]["reached"]
