"""Golden files: what every recipe emits, byte for byte. `make golden` rewrites them; read the difference."""

from __future__ import annotations

import os
import shutil

import pytest

from runner.emit import emit
from runner.recipe.check import load
from tests.conftest import RECIPES, ROOT

GOLDEN = ROOT / "tests" / "golden"


def emitted(path) -> dict[str, str]:
    recipe, _, _ = load(path)
    return {artifact.path: artifact.text for artifact in emit(recipe)}


def test_there_are_recipes():
    assert RECIPES, "no recipe found: every other test here would look at nothing"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_renders_its_golden_files(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = GOLDEN / path.stem
    files = emitted(path.relative_to(ROOT))
    if os.environ.get("RECIPE_GOLDEN") == "write":
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    known = {str(file.relative_to(folder)): file.read_text("utf-8") for file in folder.rglob("*") if file.is_file()}
    assert sorted(files) == sorted(known)
    for name, text in files.items():
        assert text == known[name], f"{path.stem}/{name} differs from its golden file; `make golden` rewrites it"


def test_no_golden_folder_is_left_without_a_recipe():
    folders = {folder.name for folder in GOLDEN.iterdir() if folder.is_dir()}
    assert folders == {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_rendering_twice_gives_the_same_bytes(path):
    assert emitted(path) == emitted(path)
