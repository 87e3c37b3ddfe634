"""The wheel with what a laptop needs that does not train, on each Python that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# Each works without a cluster and without a package that trains.
COMMANDS = (
    ("list",),
    ("new", "my-demo", "--from", "survival"),
    ("new", "bees", "--data", "bees.csv", "--model", "small", "--gpu", "none"),
    ("check", "my-demo.yaml", "bees.yaml"),
    ("plan", "my-demo.yaml"),
    ("explain", "train.epochs", "my-demo.yaml"),
    ("show", "my-demo.yaml"),
    ("render", "my-demo.yaml", "--out", "rendered"),
    ("site", "my-demo.yaml"),
    ("models",),
    ("gpus",),
)
# Each needs a cluster or training, and says so.
REFUSED = {
    ("submit", "my-demo.yaml", "--yes"): "not logged in to a cluster",
    ("status", "my-demo.yaml"): "not logged in to a cluster",
    ("fetch", "my-demo.yaml"): "not logged in to a cluster",
    ("report", "my-demo.yaml"): "There is no run of",
    ("rehearse", "my-demo.yaml"): "",
}


def python_of(version: str) -> str:
    """That Python: the one that RECIPE_TEST_PYTHONS lists (a path for each, as in PATH), else the
    one in PATH. Skips the test without one."""
    wanted = f"python{version}"
    candidates = [
        *os.environ.get("RECIPE_TEST_PYTHONS", "").split(os.pathsep),
        shutil.which(wanted) or "",
    ]
    for candidate in filter(None, candidates):
        ask = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(ask, capture_output=True, text=True)
        if said.stdout.strip() == version:
            return candidate
    pytest.skip(f"no {wanted} is here; RECIPE_TEST_PYTHONS can name one")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    assert file.stat().st_size < 5e6
    return file


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wheel_without_training_is_installed_and_does_its_work(version, wheel, tmp_path):
    environment = tmp_path / "desk"
    subprocess.run([python_of(version), "-m", "venv", str(environment)], check=True)
    began = time.monotonic()
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", f"{wheel}[desk]"]
    subprocess.run(pip, check=True)
    print(f"{version}: installed in {time.monotonic() - began:.0f} s")
    lines = ["Question,Answer"]
    for number in range(60):
        lines.append(
            f"How many bees live in hive {number}?,About {number + 3} thousand bees live there."
        )
    (tmp_path / "bees.csv").write_text("\n".join(lines), encoding="utf-8")

    def recipe(*words: str) -> subprocess.CompletedProcess[str]:
        # Neither this clone nor this user's login.
        own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "120"}
        command = [str(environment / "bin" / "recipe"), *words]
        return subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)

    for words in COMMANDS:
        done = recipe(*words)
        assert done.returncode == 0, (words, done.stderr)
    for words, reason in REFUSED.items():
        done = recipe(*words)
        assert done.returncode == 1 and reason in done.stderr, (words, done.stderr)
    assert "recipe" in recipe("--help").stdout
