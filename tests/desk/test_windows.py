"""What somebody does at a Windows laptop without training gives the same there as on Linux."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.tools import packaged
from tests.conftest import ROOT

WINDOWS = Path(__file__).with_name("windows.py")
# The script changes the inside of Python's own paths, which is another one from 3.12 on.
pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the imitation is written for Python 3.11"
)
# An encoding of Windows for what is piped, none that knows all letters for files, and an error
# where a file is opened without saying which.
OF_WINDOWS = {
    "LC_ALL": "C",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "cp1252",
    "PYTHONUTF8": "0",
    "PYTHONWARNDEFAULTENCODING": "1",
}


def on_windows(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, str(WINDOWS), *words], folder, OF_WINDOWS)


def on_linux(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-m", "runner", *words], folder, {"PYTHONIOENCODING": "utf-8"})


def _run(
    command: list[str], folder: Path, more: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | more
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300
    )


def differences(one: Path, other: Path) -> list[str]:
    """The files below two folders that are not in both, or not the same."""
    names = {
        file.relative_to(folder).as_posix()
        for folder in (one, other)
        for file in folder.rglob("*")
        if file.is_file()
    }
    _, unequal, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    assert len(names) >= 3
    return [*unequal, *missing]


@pytest.mark.parametrize("starter", ["survival", "gemma", "resnet", "seven-b"])
def test_a_copy_its_verdict_and_what_it_renders_are_the_same(starter, tmp_path):
    linux = tmp_path / "linux"
    windows = tmp_path / "windows"
    linux.mkdir()
    windows.mkdir()
    for words in (
        ("new", "my-demo", "--from", starter),
        ("check", "my-demo.yaml", "--format", "json"),
        ("plan", "my-demo.yaml"),
        ("render", "my-demo.yaml", "--out", "rendered"),
        ("show", "my-demo.yaml"),
    ):
        expected = on_linux(*words, folder=linux)
        found = on_windows(*words, folder=windows)
        assert found.returncode == expected.returncode == 0, found.stderr
        assert found.stdout.replace("\\", "/") == expected.stdout
    assert differences(linux, windows) == []


def test_rows_of_a_file_are_proposed_and_copied_the_same(tmp_path):
    for folder in (tmp_path / "linux", tmp_path / "windows"):
        rows = folder / "data" / "bees.csv"
        rows.parent.mkdir(parents=True)
        lines = ["Frage;Antwort"]
        for number in range(1, 61):
            lines.append(
                f"Wie viele Bienen wohnen im Stock {number}?;Im Stock {number} wohnen {number} Bienen, eine Königin und viele Drohnen."
            )
        rows.write_text("\n".join(lines), encoding="cp1252")
    words = ("new", "bees", "--data", "data/bees.csv", "--model", "small", "--gpu", "none")
    expected = on_linux(*words, folder=tmp_path / "linux")
    found = on_windows(*words, folder=tmp_path / "windows")
    assert found.returncode == expected.returncode == 0, found.stderr + expected.stderr
    assert differences(tmp_path / "linux", tmp_path / "windows") == []


@pytest.mark.parametrize("verb", ["rehearse", "run", "prepare"])
def test_what_trains_says_where_it_can(verb, tmp_path):
    on_windows("new", "my-demo", "--from", "lyrics", folder=tmp_path)
    said = on_windows(verb, "my-demo.yaml", folder=tmp_path)
    assert said.returncode == 1
    assert "needs Linux with Python 3.11 or 3.12, and this is Windows" in said.stderr
    assert "recipe submit" in said.stderr and "WSL" in said.stderr
    assert not (tmp_path / "runs").exists()


def test_doctor_reports_this_machine(tmp_path):
    said = on_windows("doctor", folder=tmp_path)
    assert "This is a bug" not in said.stderr
    assert "memory" in said.stdout


def test_a_name_of_a_device_is_refused(recipe_command, tmp_path):
    said = recipe_command("new", "com1", "--from", "survival", cwd=tmp_path)
    assert said.returncode == 1
    assert "cannot have the name `com1`, which Windows keeps for a device" in said.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("platform", "version", "words"),
    [
        ("linux", (3, 11), ""),
        ("linux", (3, 12), ""),
        (
            "linux",
            (3, 14),
            "this is Linux with Python 3.14.\n`recipe submit` trains on a cluster. Here,",
        ),
        ("darwin", (3, 12), "this is macOS with Python 3.12."),
        ("win32", (3, 13), "this is Windows with Python 3.13."),
    ],
)
def test_where_training_works(platform, version, words, monkeypatch):
    monkeypatch.setattr(packaged.sys, "platform", platform)
    monkeypatch.setattr(packaged.sys, "version_info", (*version, 0))
    reason = packaged.why_no_training()
    assert words in reason and bool(words) == bool(reason)


def test_an_extra_that_cannot_be_installed_is_not_proposed(monkeypatch):
    monkeypatch.setattr(packaged.sys, "platform", "win32")
    assert "pip install" not in packaged.remedy("train")
    assert "pip install" in packaged.remedy("cluster")
