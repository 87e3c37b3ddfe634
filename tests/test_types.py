"""Types: every room is held to them, and what `recipe.section.name` is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT


def test_no_room_is_excused_from_types():
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert mypy["strict"] is True
    assert not [part["module"] for part in mypy["overrides"] if part.get("ignore_errors")]
    sources = [*(ROOT / "runner").rglob("*.py")]
    assert sources and not [file for file in sources if "type: ignore" in file.read_text("utf-8")]


# What can be said of a recipe's settings, and what mypy says of it.
CLAIMS = {
    "recipe.train.epochs + 1": None,
    "recipe.train.epocs": "attr-defined",
    "recipe.train.get('epochs')": None,
    "recipe.train.get('epocs')": "arg-type",
    "recipe.train['epocs']": "index",
    "recipe.train.epochs.upper()": "attr-defined",
    "recipe.openshift.claims": "union-attr",
    "recipe.nodes.machines[0].gpus if recipe.nodes else 0": None,
    "recipe.distribution == 'zero7'": "comparison-overlap",
}


@pytest.mark.long
def test_settings_have_the_types_of_the_schemas(tmp_path):
    lines = ["from runner.recipe.recipe import Recipe"]
    lines += [
        f"def f{number}(recipe: Recipe) -> object: return {claim}"
        for number, claim in enumerate(CLAIMS)
    ]
    file = tmp_path / "claims.py"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(file)], cwd=ROOT, capture_output=True, text=True
    )
    complaints = {
        int(line): kind
        for line, kind in re.findall(r"claims\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    }
    expected = {number: kind for number, kind in enumerate(CLAIMS.values(), start=2) if kind}
    assert complaints == expected, done.stdout
