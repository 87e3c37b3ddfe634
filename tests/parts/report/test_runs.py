"""`recipe runs`: runs below a folder beside each other, with what differs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.commands import cli
from runner.tools.run_files import PAGE
from tests.parts.report.pages import read
from tests.parts.report.test_page import VERSIONS, made
from tests.stages import leave


@pytest.fixture
def three(tmp_path, monkeypatch) -> None:
    """Two trials of a recipe, and a run of another; each changed an hour after the one before."""
    monkeypatch.chdir(tmp_path)
    for hour, (folder, losses, *recipe) in enumerate(
        [
            ("survival-search/trial-01", (3.0, 0.75), "survival"),
            ("survival-search/trial-02", (3.0, 0.5), "survival", "train.epochs=2"),
            ("seven-b", (3.0, 1.0), "seven-b"),
        ]
    ):
        _, plan, run = made(Path("runs").absolute() / folder, *recipe)
        facts = {
            "gpu": "NVIDIA L40S",
            "world_size": 4,
            "training_seconds": 900.0 * (2 - hour),
            "versions": VERSIONS,
        }
        leave(plan, plan.stages[-1], losses, **facts)
        os.utime(run.path / "run.json", (1.8e9 + hour * 3600, 1.8e9 + hour * 3600))


def runs(capsys, *arguments: str) -> str:
    assert cli._code(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_the_latest_first_with_what_they_reached(three, capsys):
    rows = json.loads(runs(capsys, "--format", "json"))
    assert [row["folder"] for row in rows] == [f"runs/{name}" for name in ("seven-b", *TRIALS)]
    assert [row["loss"] for row in rows] == [1.0, 0.5, 0.75]
    assert [row["gpu hours"] for row in rows[1:]] == [1.0, 2.0]
    assert [row["gates"] for row in rows] == ["closed", "", ""]


TRIALS = ("survival-search/trial-02", "survival-search/trial-01")


def test_runs_of_one_recipe_show_the_settings_that_differ(three, capsys):
    titles, first, second = (
        line.split() for line in runs(capsys, "--recipe", "survival", "--sort", "loss").splitlines()
    )
    assert titles[-1] == "train.epochs" and (first[-1], second[-1]) == ("2", "4")
    assert [first[0], second[0]] == [f"runs/{name}" for name in TRIALS]
    _, least, *_ = runs(capsys, "--sort", "gpu hours").splitlines()
    assert least.startswith("runs/seven-b")


def test_runs_become_one_page(three, capsys):
    runs(capsys, "--recipe", "survival", "--page")
    said = read(Path("runs") / PAGE)
    assert all(f"runs/{name}" in said.said for name in TRIALS) and "setting" in said.said


def test_a_folder_without_runs_says_so(tmp_path, monkeypatch, capsys, golden_message):
    monkeypatch.chdir(tmp_path)
    assert cli._code(["runs"]) == 1
    golden_message(capsys.readouterr().err)
    assert cli._code(["runs", "--recipe", "own"]) == 1
    golden_message(capsys.readouterr().err, "of one recipe")
