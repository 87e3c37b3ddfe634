"""A new scenario is one folder: in a copy of the project it is found, checked, rendered and
rehearsed, and nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project with the scenario `my-layers`, which is `last-layers` under another
    name and a rule of its own."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("runner", "schemas"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    home = copy / "runner" / "scenarios" / "my_layers"
    home.mkdir()
    (home / "schema.yaml").write_text("$ref: last-layers/schema.yaml\n", encoding="utf-8")
    ours = "Nothing is trained: `last_layers` is 0 and `lm_head` is false."
    for name in ("translation.py", "contradictions.toml"):
        text = (copy / "runner" / "scenarios" / "language" / name).read_text("utf-8")
        assert (ours in text) == (name == "contradictions.toml")
        (home / name).write_text(
            text.replace(ours, "Nothing of mine is trained."), encoding="utf-8"
        )
    done = run(copy, "schemas/build.py")
    assert done.returncode == 0, done.stdout + done.stderr
    changed = {
        str(file.relative_to(copy))
        for file, content in before.items()
        if file.read_bytes() != content and file.parent.name != "schemas"
    }
    # Built: its list of scenarios has one more. Schemas share what is now in two of them.
    assert changed == {"runner/recipe/sections.pyi"}
    text = (ROOT / "recipes" / "survival.yaml").read_text("utf-8")
    for old, new in (
        ("scenario: last-layers", "scenario: my-layers"),
        ("name: survival", "name: mine"),
    ):
        assert text.count(f"\n{old} ") == 1
        text = text.replace(f"\n{old} ", f"\n{new} ")
    (copy / "recipes" / "data").mkdir(parents=True)
    (copy / "recipes" / "mine.yaml").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "recipes" / "data" / "survival-sample.jsonl", copy / "recipes" / "data")
    return copy


def run(copy: Path, *arguments: str):
    """Python with the copy, and no other, on its path."""
    env = os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, timeout=900
    )


def recipe(copy: Path, *arguments: str):
    return run(copy, "-m", "runner", *arguments)


def test_its_recipe_is_listed_and_right(project):
    listed = recipe(project, "list")
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["mine", "my-layers"]
    ], listed.stderr
    done = recipe(project, "check", "recipes/mine.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_minimal_starter_it_says_so(project):
    done = recipe(project, "new", "mine-too", "--from", "mine", "--minimal")
    assert done.returncode == 1 and "`my-layers` has no minimal starter" in done.stderr


def test_its_schema_and_its_rules_judge(project):
    done = recipe(project, "check", "recipes/mine.yaml", "--set", "train.last_layers=-1")
    assert done.returncode == 1 and "last_layers" in done.stdout + done.stderr
    nothing = ("--set", "train.last_layers=0", "--set", "train.lm_head=false")
    done = recipe(project, "check", "recipes/mine.yaml", *nothing)
    assert done.returncode == 1 and "Nothing of mine is trained" in done.stdout + done.stderr


def test_a_name_close_to_its_own_is_understood(project):
    text = (
        (project / "recipes" / "mine.yaml")
        .read_text("utf-8")
        .replace("scenario: my-layers", "scenario: my-layer")
    )
    (project / "close.yaml").write_text(text, encoding="utf-8")
    done = recipe(project, "check", "close.yaml")
    assert done.returncode == 1 and "`my-layers`" in done.stdout + done.stderr


def test_it_renders_a_job_under_its_own_name(project):
    done = recipe(project, "render", "recipes/mine.yaml", "--out", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = (project / "build").rglob("pytorchjob.yaml")
    assert "recipe-runner/scenario: my-layers\n" in job.read_text("utf-8")


@pytest.mark.long
def test_it_rehearses(project):
    done = recipe(project, "rehearse", "recipes/mine.yaml", "--out", "rehearsal")
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (project / "rehearsal").rglob("training_summary.json")
    assert json.loads(summary.read_text("utf-8"))["steps"] >= 30
