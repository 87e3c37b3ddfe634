"""What training goes on from: the rows that are left, and the last checkpoint that is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from runner.trainer import results, stopping
from tests.conftest import own_time
from tests.trainer.test_time_limit import settings


def test_a_checkpoint_that_a_kill_left_half_written_is_never_resumed_from(tmp_path):
    for step, complete in ((10, True), (20, True), (30, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}" if step != 20 else '{"half')
        if complete:
            (folder / "complete.json").write_text(json.dumps({"step": step, "tokens": 1}))
    assert stopping.last_good(tmp_path) == tmp_path / "checkpoint-10"
    cfg = SimpleNamespace(
        output_dir=str(tmp_path), resume_from_checkpoint=None, auto_resume_from_checkpoints=True
    )
    assert stopping.choose(cfg, SimpleNamespace(), pytest.fail) == ""
    assert cfg.resume_from_checkpoint == str(tmp_path / "checkpoint-10")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_a_named_checkpoint_is_gone_back_to_once_wherever_the_run_lies(tmp_path):
    run, old = tmp_path / "run", tmp_path / "old" / "checkpoint-9"

    def chosen(named: Path) -> tuple[str, str]:
        cfg = SimpleNamespace(
            resume_from_checkpoint=str(named), output_dir=str(named.parent if named != old else run)
        )
        name = stopping.choose(cfg, SimpleNamespace(), pytest.fail)
        return Path(cfg.resume_from_checkpoint).name, name

    def save(step: int, resumed_from: str = "") -> None:
        folder = run / f"checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text("{}")
        state = SimpleNamespace(
            global_step=step, is_world_process_zero=True, num_input_tokens_seen=1
        )
        stopping.Pace(settings(run, None), resumed_from).on_save(
            SimpleNamespace(output_dir=str(run)), state, None
        )

    named = run / "checkpoint-500"
    assert chosen(named) == ("checkpoint-500", "checkpoint-500"), "it is not there yet"
    for step in (500, 600, 700):
        save(step)
    assert chosen(named)[0] == "checkpoint-500"
    save(600, chosen(named)[1])
    assert chosen(named)[0] == "checkpoint-600", "700 is of the way that was left"
    # As a copy or `recipe fetch` leaves them, in any order of time.
    copy = shutil.copytree(run, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(copy / "checkpoint-600" / "complete.json", (1, 1))
    assert chosen(copy / "checkpoint-500")[0] == "checkpoint-600"
    # Rotation may have taken the named one.
    shutil.rmtree(named)
    assert chosen(named)[0] == "checkpoint-600"
    assert chosen(old) == ("checkpoint-9", str(old)), (
        "another one that the recipe names is gone back to"
    )
    save(10, str(old))
    assert chosen(old)[0] == "checkpoint-10"


def test_the_time_of_training_counts_over_a_stop(tmp_path, monkeypatch):
    clock = [100.0]
    own_time(monkeypatch, results, monotonic=lambda: clock[0])
    settings = SimpleNamespace(run_dir=str(tmp_path), effective_batch_size=1)

    def train(first: int, last: int, ends: bool) -> results.History:
        """A second a step."""
        known, model = results.History(settings), torch.nn.Linear(1, 1)
        state = TrainerState(global_step=first, max_steps=last, is_world_process_zero=True)
        known.on_train_begin(None, state, None, model=model)
        for state.global_step in range(first + 1, last + 1):
            clock[0] += 1
            known.on_log(None, state, None, logs={"loss": 1.0})
        if ends:
            known.on_train_end(None, state, None)
        clock[0] += 1000
        return known

    train(0, 7, ends=False)
    # Steps 6 and 7 are made again from the checkpoint of step 5; their time was spent all the same.
    assert train(5, 10, ends=True).final["training_seconds"] == 12
    assert [
        entry["step"]
        for entry in json.loads((tmp_path / "training_history.json").read_text())["steps"]
    ] == [*range(1, 11)]
    assert train(0, 3, ends=True).final["training_seconds"] == 3, (
        "what begins anew has used nothing yet"
    )
