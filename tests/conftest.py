"""What several tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples at every run, so that a change alone can turn a test red; `make test-long` draws new ones.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

# Axolotl would otherwise report each of its runs to its makers, and wait for an answer where there is no network.
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
# Recipes that name a cluster; others are for plain machines.
ON_CLUSTER = [path for path in RECIPES if "\nopenshift:" in path.read_text("utf-8")]


@pytest.fixture
def recipe_command():
    """Runs `recipe ARGS…` as a process of its own; returns the finished process, output as text."""

    def run(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 600):
        return subprocess.run(
            [sys.executable, "-m", "runner", *map(str, arguments)],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def survival_text() -> str:
    return (ROOT / "recipes" / "survival.yaml").read_text(encoding="utf-8")


@pytest.fixture
def edited(tmp_path, survival_text):
    """A copy of the survival recipe with lines replaced: `edited(("epochs: 4", "epocs: 4"))` gives its path."""
    import shutil

    def make(*replacements: tuple[str, str]) -> Path:
        text = survival_text
        for old, new in replacements:
            assert text.count(old) >= 1, f"{old!r} is not in the survival recipe"
            text = text.replace(old, new, 1)
        (tmp_path / "data").mkdir(exist_ok=True)
        shutil.copy(ROOT / "recipes" / "data" / "survival-sample.jsonl", tmp_path / "data")
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return make
