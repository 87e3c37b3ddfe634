"""A recipe of one's own, as the page edits it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def copy(recipe_command, tmp_path) -> Path:
    done = recipe_command("new", "mine", "--from", "survival", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "mine.yaml"
