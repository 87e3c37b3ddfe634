"""The built wheel works outside the checkout: in an empty folder, with nothing else installed."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.conftest import MINIMAL, RECIPES, ROOT
from tests.parts.editor.browsing import editing, needs_nicegui


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, text=True)
    (built,) = folder.glob("recipe_runner-*.whl")
    return built


def test_the_wheel_has_every_file_of_the_package(wheel):
    here = (
        file
        for file in (ROOT / "runner").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    files = {file.relative_to(ROOT).as_posix() for file in here}
    assert files <= {*zipfile.ZipFile(wheel).namelist()}
    assert {Path(file).suffix for file in files} >= {".jinja", ".css", ".js", ".toml", ".yaml"}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with only the wheel and what it needs; gives its `recipe` command."""
    folder = tmp_path_factory.mktemp("installed")
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], **run)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "-c",
            str(ROOT / "constraints.txt"),
            str(wheel),
        ],
        **run,
    )
    empty = folder / "empty"
    empty.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def recipe(*arguments: str):
        return subprocess.run(
            [str(folder / "venv" / "bin" / "recipe"), *arguments],
            cwd=empty,
            env=env,
            capture_output=True,
            text=True,
        )

    recipe.folder = empty
    recipe.python = python
    return recipe


@pytest.mark.long
def test_list_new_check_and_render_work_in_an_empty_folder(installed):
    listed = installed("list")
    names = [line.split()[0] for line in listed.stdout.splitlines() if line]
    assert names[1 : 1 + len(RECIPES)] == [path.stem for path in RECIPES]
    assert names[2 + len(RECIPES) :] == [f"minimal/{path.stem}" for path in MINIMAL]
    for path in RECIPES:
        name = f"my-{path.stem}"
        for command in (["new", name, "--from", path.stem], ["check", f"{name}.yaml"]):
            done = installed(*command)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        done = installed("render", f"{name}.yaml")
        if path.stem == "museum":
            assert done.returncode == 1 and "is for this machine" in done.stderr, done.stderr
        else:
            assert done.returncode == 0, f"render {name}: {done.stdout}{done.stderr}"
            assert any((installed.folder / "build" / name).iterdir())
    assert installed("site", "my-survival.yaml").returncode == 0, (
        "its templates are not in the wheel"
    )
    assert list(installed.folder.glob("*.schema.json"))
    for command in (
        ["new", "short", "--from", "survival", "--minimal"],
        ["check", "short.yaml"],
        ["show", "short.yaml"],
    ):
        done = installed(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@pytest.mark.long
def test_the_light_install_is_light(installed):
    done = subprocess.run(
        [str(installed.python), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
    )
    names = {line.split("==")[0].lower() for line in done.stdout.split()}
    assert len(names) < 20
    assert not names & {"torch", "transformers", "datasets", "numpy", "kubernetes"}


@pytest.mark.long
def test_training_without_the_extra_says_what_to_install(installed):
    installed("new", "my-demo", "--from", "survival")
    for command in ("rehearse", "run", "prepare"):
        done = installed(command, "my-demo.yaml")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "is not installed." in done.stderr, done.stderr
        install = done.stderr.splitlines()[-1]
        assert (
            install.startswith("pip install 'axolotl[deepspeed]==")
            and "recipe-runner" not in install
        )


@needs_nicegui
def test_the_page_of_recipe_edit_is_served_from_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    (tmp_path / "mine.yaml").write_bytes((ROOT / "recipes" / "survival.yaml").read_bytes())
    with editing(tmp_path, "mine.yaml", PYTHONPATH=str(tmp_path / "site")) as address:
        base, _, token = address.partition("?token=")
        cookie = f"recipe-edit-{base.rstrip('/').rpartition(':')[2]}={token}"

        def got(path: str) -> str:
            asked = urllib.request.Request(f"{base}{path}", headers={"Cookie": cookie})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.read().decode()

        assert ".recipe-verdict" in got("") and "export function reveal" in got(
            "editor.js"
        ).replace("async ", "")
