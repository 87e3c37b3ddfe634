"""The minimal starters learn in a rehearsal, through the real engines, with nothing but their
defaults."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MINIMAL


@pytest.mark.long
@pytest.mark.parametrize("path", MINIMAL, ids=lambda path: path.stem)
def test_a_minimal_starter_rehearses(recipe_command, tmp_path, path):
    done = recipe_command(
        "rehearse", path, "--out", tmp_path / "run", env={"HF_HUB_OFFLINE": "1"}, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert list((tmp_path / "run").rglob("training_summary.json"))
    # None of them names a question; those that answer are asked what validation rows ask. The first
    # of five texts begins a block, which could as well begin in the midst of one.
    asked = [
        json.loads(file.read_text("utf-8")) for file in (tmp_path / "run").rglob("answers.json")
    ]
    counts = {
        "image-classification": [],
        "from-scratch": [5, 5],
        "pretrain": [],
        "stages": [5, 5],
        "causal-lm": [4],
    }
    assert [len(rows) for rows in asked] == counts.get(path.stem, [5])
