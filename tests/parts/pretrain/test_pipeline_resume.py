"""A pipeline that is killed at any moment goes on with the same command and ends bit for bit as the
undisturbed one."""

from __future__ import annotations

import hashlib
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

import numpy as np
import pytest

from runner.check.validate import as_written, load
from runner.check.validate import changed as with_overrides
from runner.parts.pretrain.training import TrainBlocks
from runner.plan import Plan
from runner.recipe import overrides
from runner.run.pipeline import Selection, carry_out
from runner.run.run_folder import RunFolder
from runner.scenarios import rehearsal, translate
from runner.tools import child_process
from runner.tools.problem import Stop
from runner.trainer.settings import BlocksSettings
from tests.conftest import ROOT

STAGES = ("data", "init", "pretrain-64", "pretrain-128", "sft", "dpo", "lora")
# Each stage is killed once, and so many are killed before that, too: ten kills in all.
TWICE = 3


def shortened(folder: Path) -> Path:
    """The recipe with two short context lengths: every kind of boundary, in less time."""
    text = (ROOT / "recipes" / "seven-b.yaml").read_text("utf-8")
    text = re.sub(
        r"(?ms)^      curriculum:.*?(?=^      learning_rate:)",
        "      curriculum: [{sequence_len: 64, until: 0.4}, {sequence_len: 128, until: 1.0}]\n",
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
    found = {
        file.parent.name: json.loads(file.read_text("utf-8"))
        for file in out.glob("*/training_summary.json")
    }
    assert set(found) == {"pretrain-64", "pretrain-128", "sft", "dpo", "lora"}
    return found


def test_an_engine_and_what_it_forks_end_when_the_command_that_started_it_is_gone():
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = (
        "import multiprocessing, time; from runner.tools import child_process; child_process.watch_parent()\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); child.start()\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), child_process.PARENT: str(holder.pid)},
        stdout=subprocess.PIPE,
    )
    child = int(engine.stdout.readline())
    time.sleep(1)
    assert engine.poll() is None and child_process.alive(child)
    holder.kill()  # and not waited for: a zombie is no parent
    assert engine.wait(10) == 1
    deadline = time.monotonic() + 10
    while child_process.alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not child_process.alive(child)
    holder.wait()


@pytest.mark.long
def test_a_pipeline_killed_at_ten_random_moments_ends_bit_for_bit_as_the_undisturbed_one(tmp_path):
    recipe = shortened(tmp_path)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    whole = finish(recipe, undisturbed)
    seed = time.time_ns() % 1_000_000
    draw = random.Random(seed)
    print(f"seed {seed}, undisturbed {whole:.0f} s")
    # The last stage once alone: what is left of it after a kill may be over before the next.
    twice = draw.sample(STAGES[:-1], TWICE)
    # Somewhere between the stage's start and its end, by the time that it took undisturbed; the
    # first of two in its first half.
    moments = [
        (stage, end) for stage in STAGES for end in ((0.5, 0.95) if stage in twice else (0.95,))
    ]
    for number, (stage, end) in enumerate(moments, 1):
        after = draw.uniform(0.05, end) * seconds(undisturbed, stage)
        kill(recipe, killed, stage, after)
        print(f"kill {number} {after:.0f} s after `{stage}` began, at {where(killed)}", flush=True)
    finish(recipe, killed)
    compare(results(undisturbed), results(killed))
    same_schedule(undisturbed, killed)
    same_files(undisturbed, killed)


def kill(recipe: Path, out: Path, stage: str, after: float) -> None:
    """Starts the pipeline, and kills it so many seconds after the stage began or went on; one after
    it, where a kill before has come when this one was done."""
    before = time.time()
    configs = [out / "config" / name for name in STAGES[STAGES.index(stage) :]]
    process = start(recipe, out)
    while process.poll() is None:
        # A stage's config is written when it starts, each time anew.
        if any(
            file.stat().st_mtime > before
            for config in configs
            if config.is_dir()
            for file in config.iterdir()
        ):
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
    """Every step of pretraining was taken once, with the same learning rate, and went the same way:
    a length that began or went on without the optimizer's state would not."""
    for length in ("pretrain-64", "pretrain-128"):
        both = [
            json.loads((out / length / "training_history.json").read_text("utf-8"))
            for out in (undisturbed, killed)
        ]
        rates = [
            {step["step"]: step["learning_rate"] for step in history["steps"]} for history in both
        ]
        assert rates[0] == rates[1] and len(rates[0]) == len(both[1]["steps"]) > 40
        for wanted, got in zip(both[0]["steps"], both[1]["steps"], strict=True):
            assert [got[name] for name in ("loss", "grad_norm")] == [
                wanted[name] for name in ("loss", "grad_norm")
            ]


def same_files(undisturbed: Path, killed: Path) -> None:
    """All that the stages have left of rows, tokens and weights, but for what lies among
    checkpoints."""

    def left(out: Path) -> dict[str, str]:
        kinds = ("*.safetensors", "*.npy", "*.parquet", "tokenizer.json")
        files = [file.relative_to(out) for kind in kinds for file in out.rglob(kind)]
        kept = [file for file in files if not {"checkpoints", "tokenised"} & set(file.parts)]
        return {
            str(file): hashlib.sha256((out / file).read_bytes()).hexdigest()
            for file in sorted(kept)
        }

    wanted, got = left(undisturbed), left(killed)
    assert {name.split("/")[0] for name in wanted} >= set(STAGES)
    assert {
        name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name)
    } == set()


def where(out: Path) -> str:
    """The stage that was running."""
    # A kill in the first moments comes before there is any stage.
    states = {
        file.parent.name: json.loads(file.read_text("utf-8")) for file in out.glob("*/stage.json")
    }
    return (
        ", ".join(name for name, state in states.items() if state["status"] == "begun")
        or "between stages"
    )


def compare(undisturbed: dict[str, dict], killed: dict[str, dict]) -> None:
    for stage, wanted in undisturbed.items():
        got = killed[stage]
        assert got["tokens"] == wanted["tokens"], stage
        assert got["steps"] == wanted["steps"], stage
        for loss in ("last_validation_loss", "best_validation_loss", "last_training_loss"):
            assert got[loss] == wanted[loss], (stage, loss)


@pytest.mark.long
def test_a_time_limit_ends_a_length_with_a_usable_model_and_a_higher_one_goes_on(tmp_path):
    """The rehearsal's own plan with a limit on it, through Axolotl itself."""
    from transformers import AutoModelForCausalLM

    run, told, recipe = RunFolder(tmp_path / "run", "rehearsal"), [], shortened(tmp_path)
    run.mark("running")

    def until_second_length(limit: str) -> Plan:
        whole = load(recipe)[0]
        small, _ = with_overrides(whole, rehearsal("stages").before_data(whole, None))
        document, _ = overrides.apply(
            small.document, overrides.from_options([f"limits.time={limit}"])
        )
        # A rule refuses so short a limit.
        plan = translate(as_written(document), run.place())
        chosen = Selection(last="pretrain-128").of(plan)
        carry_out(plan, chosen, told.append, lambda: nullcontext(lambda event: None))
        return plan

    # No machine takes 48 steps in this time, and the slowest takes one.
    with pytest.raises(Stop, match="has ended `pretrain-64` after step") as stop:
        until_second_length("0.1 s")
    assert "your recipe need not change" in stop.value.text
    first = json.loads((run.path / "pretrain-64" / "training_summary.json").read_text("utf-8"))
    assert (
        0 < first["steps"] < 48 and first["time_limit"]["reached"] and first["last_validation_loss"]
    )
    assert (
        AutoModelForCausalLM.from_pretrained(
            run.path / "pretrain-64" / "best_model"
        ).num_parameters()
        > 0
    )
    assert not (run.path / "pretrain-128").exists()
    told.clear()
    plan = until_second_length("1 h")
    assert "  pretrain-64: continues where it stopped" in told
    steps = [
        step["step"]
        for name in ("pretrain-64", "pretrain-128")
        for step in json.loads((run.path / name / "training_history.json").read_text("utf-8"))[
            "steps"
        ]
    ]
    assert steps == list(range(1, 121)), "no step is lost and none is taken twice"
    last = json.loads((run.path / "pretrain-128" / "training_summary.json").read_text("utf-8"))
    assert last["tokens"] == plan.facts["tokens_in_all"] and not last["time_limit"]["reached"]


def blocks(first: int, last: int, steps: int = 10):
    return BlocksSettings(
        folder="",
        sequence_len=4,
        first_step=first,
        last_step=last,
        steps=steps,
        seed=1,
        continue_from=None,
    )


def test_a_resumed_length_sees_exactly_the_rows_that_are_left():
    rows = np.arange(24, dtype=np.uint16).reshape(6, 4)
    whole = TrainBlocks(rows, blocks(4, 10), batch=2, steps=10)
    assert len(whole) == 20
    in_order = [whole[index]["input_ids"][0] for index in range(8, 20)]
    assert sorted(in_order[:6]) == sorted(in_order[6:]) == [0, 4, 8, 12, 16, 20]
    assert in_order[:6] != in_order[6:], "each pass has an order of its own"
    again = TrainBlocks(rows, blocks(4, 10), batch=2, steps=10)
    assert [again[index]["input_ids"][0] for index in range(14, 20)] == in_order[6:]
    with pytest.raises(IndexError):
        whole[7]
