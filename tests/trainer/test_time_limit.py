"""A time limit ends training in time, with a saved and usable model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.check.validate import load
from runner.parts.evaluate import gates
from runner.plan import Plan
from runner.recipe.overrides import from_options
from runner.run import pipeline
from runner.run.pipeline import Selection
from runner.run.run_folder import RunFolder, StageFolder
from runner.scenarios import place, translate
from runner.tools.problem import Stop
from runner.trainer.settings import Demo, RunSettings
from tests.conftest import ROOT
from tests.stages import finish, leave, plan_in

SURVIVAL = ROOT / "recipes" / "survival.yaml"


def settings(folder, limit) -> RunSettings:
    return RunSettings(
        name="x",
        fingerprint="f",
        run_dir=str(folder),
        recipe_file="r",
        backend="gloo",
        world_size=1,
        effective_batch_size=2,
        base_learning_rate=1e-3,
        learning_rate=1e-3,
        time_limit_seconds=limit,
        demo=Demo(base_model="m", system_prompt=None, turn_end=None),
    )


def emitted(*sets):
    recipe, _, _ = load(SURVIVAL, from_options(sets))
    return translate(recipe, place(recipe)).stage("train").config["recipe_runner"]


def test_the_recipe_s_limit_reaches_the_training_process():
    assert emitted()["time_limit_seconds"] == 4500
    assert emitted("limits.time=1.5 h")["time_limit_seconds"] == 5400
    assert "time_limit_seconds" not in emitted("limits.time=")


def test_a_longer_limit_goes_on_with_the_same_run():
    assert emitted()["fingerprint"] == emitted("limits.time=1.5 h")["fingerprint"]


@pytest.fixture
def trained(tmp_path):
    """Trains a tiny random model with transformers' own Trainer, a tenth of a second a step and
    more."""

    def train(limit: float):
        import torch
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            Trainer,
            TrainerCallback,
            TrainingArguments,
        )

        from runner.trainer.stopping import Pace

        class Slow(TrainerCallback):
            def on_substep_end(self, *args, **kwargs):
                pass

            def on_pre_optimizer_step(self, *args, **kwargs):
                time.sleep(0.1)

        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "llama",
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=64,
            pad_token_id=None,
        )
        rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(400)]
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "checkpoints"),
            per_device_train_batch_size=2,
            num_train_epochs=1,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        limiter = Pace(settings(tmp_path, limit))
        trainer = Trainer(
            AutoModelForCausalLM.from_config(config),
            arguments,
            train_dataset=rows,
            eval_dataset=rows[:4],
            callbacks=[Slow(), limiter],
        )
        began = time.monotonic()
        trainer.train()
        return trainer, time.monotonic() - began, limiter

    return train


def test_training_stops_at_the_limit_with_an_evaluated_and_saved_model(trained, tmp_path):
    from transformers import AutoModelForCausalLM

    trainer, took, _ = trained(limit=3.0)
    state = trainer.state
    assert 0 < state.global_step < state.max_steps == 200
    assert took < 10, "all 200 steps take more than 20 s"
    assert len([entry for entry in state.log_history if "eval_loss" in entry]) == 1
    assert state.best_model_checkpoint == str(
        tmp_path / "checkpoints" / f"checkpoint-{state.global_step}"
    )
    assert AutoModelForCausalLM.from_pretrained(state.best_model_checkpoint).num_parameters() > 0
    noted = json.loads((tmp_path / "time_limit.json").read_text())
    assert noted["reached"] is True
    # The time of the first evaluation and of the first checkpoint is not known beforehand.
    assert noted["limit_seconds"] == 3 and noted["used_seconds"] < 6


def limiter(folder, limit):
    from runner.trainer.stopping import Pace

    return Pace(settings(folder, limit))


def control():
    flags = ("should_training_stop", "should_evaluate", "should_save", "should_log")
    return SimpleNamespace(**dict.fromkeys(flags, False))


def on_a_processor():
    import torch

    return SimpleNamespace(device=torch.device("cpu"), eval_strategy="steps", save_strategy="steps")


def at_step(step: int):
    return SimpleNamespace(global_step=step, max_steps=9, is_world_process_zero=True)


def test_time_for_one_evaluation_is_kept_back(tmp_path):
    one, state, args, asked = limiter(tmp_path, 100.0), at_step(1), on_a_processor(), control()
    one.on_step_end(args, state, asked)
    assert not asked.should_training_stop
    one.longest["evaluation"] = 99.99
    time.sleep(0.02)
    one.on_step_end(args, state, asked)
    assert asked.should_training_stop and asked.should_evaluate and asked.should_save


def test_a_restarted_run_has_only_what_is_left(tmp_path):
    (tmp_path / "time_limit.json").write_text(
        json.dumps({"limit_seconds": 100, "used_seconds": 80, "reached": False})
    )
    again = limiter(tmp_path, 100.0)
    again.on_train_begin(None, at_step(5), control())
    assert 80 <= again.used < 81
    fresh = limiter(tmp_path, 100.0)
    fresh.on_train_begin(None, at_step(0), control())
    assert fresh.used < 1


def test_the_time_of_the_stages_before_counts(tmp_path):
    from runner.trainer.stopping import Pace

    for name, seconds in (("one", 60), ("two", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "time_limit.json").write_text(
            json.dumps({"limit_seconds": 100, "used_seconds": seconds})
        )
    earlier = [str(tmp_path / name) for name in ("one", "two", "never started")]
    stage = replace(settings(tmp_path / "three", 100.0), time_limit_earlier=earlier)
    one, args, asked = Pace(stage), on_a_processor(), control()
    one.longest["evaluation"] = 9.0
    one.on_step_end(args, at_step(1), asked)
    assert not asked.should_training_stop
    one.longest["evaluation"] = 10.5
    one.on_step_end(args, at_step(2), asked)
    assert asked.should_training_stop


def test_a_stage_that_ends_by_itself_at_the_limit_is_not_cut_short(tmp_path):
    one, asked = limiter(tmp_path, 0.0), control()
    asked.should_training_stop = True
    one.on_step_end(on_a_processor(), at_step(9), asked)
    assert not one.reached


# One limit for all stages of a run


@pytest.fixture
def run_with(tmp_path, monkeypatch):
    """Runs what is chosen of a recipe with a limit, and an engine that trains nothing: each stage
    uses 50 s, and ends early where the limit is below 100 s. Gives the plan and what was told."""
    monkeypatch.setattr(
        gates, "measure", lambda folder: pytest.fail(f"{folder.stage.name} was measured")
    )

    def run(recipe: str, limit: str, chosen: Selection, *done: str) -> tuple[Plan, list[str]]:
        plan, told = plan_in(tmp_path, recipe, f"limits.time={limit}"), []
        finish(plan, *done)

        def engine(stage, place, progress):
            told.append(f"started {stage.name}")
            seconds = stage.config["recipe_runner"]["time_limit_seconds"]
            note = {"limit_seconds": seconds, "used_seconds": 50.0, "reached": seconds < 100}
            leave(plan, stage, time_limit=note)
            (Path(place.run_dir) / "time_limit.json").write_text(json.dumps(note))

        monkeypatch.setattr(pipeline, "launch", engine)
        try:
            pipeline.carry_out(
                plan, chosen.of(plan), told.append, lambda: nullcontext(lambda event: None)
            )
        except Stop as stop:
            told.append(f"stopped: {stop.text}")
        return plan, told

    return run


LENGTHS = Selection(first="pretrain-512", last="pretrain-1024")


def started(told: list[str]) -> list[str]:
    return [line.removeprefix("started ") for line in told if line.startswith("started")]


def test_a_stage_that_the_limit_ends_keeps_its_model_and_nothing_after_it_starts(
    run_with, tmp_path, golden_message
):
    _, told = run_with("seven-b", "60 s", LENGTHS, "data", "init")
    assert "60 s" in told[-1] and "step 7" in told[-1]
    golden_message(told[-1])
    assert started(told) == ["pretrain-512"]
    assert (tmp_path / "pretrain-512" / "best_model" / "model.safetensors").is_file()
    assert (
        json.loads((tmp_path / "pretrain-512" / "stage.json").read_text())["status"]
        == "out of time"
    )


def test_a_raised_limit_goes_on_where_the_lower_one_ended(run_with):
    run_with("seven-b", "60 s", LENGTHS, "data", "init")
    _, told = run_with("seven-b", "200 s", LENGTHS, "data", "init")
    assert "  pretrain-512: continues where it stopped" in told
    assert started(told) == ["pretrain-512", "pretrain-1024"]


def test_a_stage_does_not_start_where_the_time_is_used_up(run_with, tmp_path, golden_message):
    (tmp_path / "pretrain-1024").mkdir()
    (tmp_path / "pretrain-1024" / "time_limit.json").write_text(json.dumps({"used_seconds": 70.0}))
    _, told = run_with("seven-b", "110 s", LENGTHS, "data", "init")
    assert "`pretrain-1024`" in told[-1]
    golden_message(told[-1])
    assert started(told) == ["pretrain-512"]


def test_a_rehearsal_that_its_own_limit_ends_does_not_ask_for_another_recipe(
    run_with, tmp_path, golden_message
):
    (tmp_path / "run.json").write_text(json.dumps({"kind": "rehearsal"}))
    _, told = run_with("survival", "60 s", Selection(stage="train"), "data")
    ended = told[-2:]
    (tmp_path / "time_limit.json").write_text(json.dumps({"used_seconds": 60.0}))
    _, told = run_with("survival", "60 s", Selection(stage="train"), "data")
    golden_message("\n".join([*ended, told[-1]]))
    assert "limits.time" not in "".join([*ended, told[-1]])


@pytest.mark.parametrize(
    ("recipe", "last", "before"),
    [
        ("survival", "train", ("data",)),
        (
            "seven-b",
            "lora",
            ("data", "init", "pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo"),
        ),
    ],
)
def test_the_last_stage_that_the_limit_ends_is_no_error_and_a_higher_limit_goes_on(
    recipe, last, before, run_with, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "guard", lambda folder, tell: None)
    plan, told = run_with(recipe, "60 s", Selection(stage=last), *before)
    assert started(told) == [last] and not [line for line in told if line.startswith("stopped")]
    said = "\n".join(told)
    assert f"has ended `{last}` after step 7" in said and "Raise `limits.time`" in said
    assert "so later stages do not start." not in said, "nothing comes after it"
    folder = StageFolder(plan, plan.stage(last))
    assert folder.state.status == "out of time" and folder.weights_files
    assert [summary.stage for summary in pipeline.summaries(plan)][-1] == last
    assert RunFolder(tmp_path).state.status == "stopped", "more is to be trained"
    # Nothing is lost where the same command comes again, with the same limit or with a higher one.
    (folder.path / "time_limit.json").write_text(json.dumps({"used_seconds": 60.0}))
    _, told = run_with(recipe, "60 s", Selection(stage=last), *before)
    assert not started(told) and "is used up" in told[-1] and folder.weights_files
    monkeypatch.setattr(gates, "measure", lambda folder: None)
    monkeypatch.setattr(gates, "opened", lambda folder, look=False: (True, []))
    _, told = run_with(recipe, "200 s", Selection(stage=last), *before)
    assert started(told) == [last] and folder.finished


@pytest.mark.long
def test_axolotl_stops_at_the_limit_and_leaves_its_results(tmp_path, recipe_command):
    """A rehearsal's own config once more, with a limit in it, through Axolotl itself."""
    import yaml

    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    sets = ("--set", "machines.nodes=1", "--set", "train.effective_batch_size=16")
    done = recipe_command(
        "rehearse", SURVIVAL, *sets, cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"}, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "survival-rehearsal"
    config = yaml.safe_load((run / "config" / "axolotl.yaml").read_text())
    again = tmp_path / "again"
    config |= {"output_dir": str(again / "checkpoints"), "num_epochs": 500}
    config["recipe_runner"] |= {"run_dir": str(again), "time_limit_seconds": 8.0}
    again.mkdir()
    (again / "axolotl.yaml").write_text(yaml.safe_dump(config))
    command = [
        sys.executable,
        "-m",
        "axolotl.cli.main",
        "train",
        str(again / "axolotl.yaml"),
        "--launcher",
        "python",
    ]
    cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=again, env=env | cpu, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((again / "training_summary.json").read_text())
    assert summary["time_limit"]["reached"] is True
    # The first checkpoint and loading the best one come on top; on a busy machine that took 5 s.
    assert summary["time_limit"]["used_seconds"] <= 8 + 12
    assert summary["epochs"] < 500
    assert list((again / "best_model").glob("*.safetensors"))
    assert "limit of 8 s ended training after step " in done.stdout
