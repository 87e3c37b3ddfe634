"""What training goes on from: the rows that are left, and the last checkpoint that is whole."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.training import checkpoints, resume
from runner.training.blocks import TrainBlocks
from runner.training.settings import BlocksSettings


def blocks(first: int, last: int, steps: int = 10):
    return BlocksSettings(folder="", sequence_len=4, first_step=first, last_step=last, steps=steps, seed=1)


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


def test_a_checkpoint_that_a_kill_left_half_written_is_never_resumed_from(tmp_path):
    for step, complete in ((10, True), (20, True), (30, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}" if step != 20 else '{"half')
        if complete:
            (folder / "complete.json").write_text(json.dumps({"step": step, "tokens": 1}))
    assert checkpoints.last_good(tmp_path) == tmp_path / "checkpoint-10"
    checkpoints.drop_broken(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_a_named_checkpoint_is_gone_back_to_once(tmp_path, monkeypatch):
    own, old = tmp_path / "checkpoints", tmp_path / "old" / "checkpoint-9"
    old.mkdir(parents=True)

    def save(step: int) -> None:
        folder = own / f"checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text("{}")
        (folder / "complete.json").write_text(json.dumps({"step": step}))
        time.sleep(0.02)

    def chosen(name: Path, rank: int = 0) -> str:
        monkeypatch.setenv("RANK", str(rank))
        cfg = SimpleNamespace(resume_from_checkpoint=str(name), output_dir=str(own))
        resume.choose(cfg, SimpleNamespace(run_dir=str(tmp_path)))
        return Path(cfg.resume_from_checkpoint).name

    named = own / "checkpoint-500"
    assert chosen(named) == "checkpoint-500" and not (tmp_path / "resumed-from.json").exists(), "it is not there yet"
    for step in (500, 600, 700):
        save(step)
    # The second process looks before and after the first has written its note.
    assert [chosen(named, rank) for rank in (1, 0, 1, 0)] == ["checkpoint-500"] * 4
    time.sleep(0.02)
    save(600)
    assert [chosen(named, rank) for rank in (1, 0)] == ["checkpoint-600"] * 2, "700 is of the way that was left"
    shutil.rmtree(named)
    assert chosen(named) == "checkpoint-600"
    assert chosen(old) == "checkpoint-9", "another one that the recipe names is gone back to"
    shutil.rmtree(old)
    assert chosen(old) == "checkpoint-700"
