"""Golden files: what every recipe emits, byte for byte, and what people read. `make golden`
rewrites them; read the difference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.check.validate import load
from runner.parts.openshift import site
from runner.scenarios import planned
from runner.scenarios.render import emit
from tests.conftest import (
    ASKING,
    COLLECTED,
    MESSAGES,
    MINIMAL,
    ON_CLUSTER,
    RECIPES,
    RENDERED,
    ROOT,
    SERVICES,
    WRITE_GOLDEN,
    changing_messages,
    read_messages,
    write_messages,
)
from tests.golden_references import with_references

pytestmark = pytest.mark.golden

GOLDEN = ROOT / "tests" / "golden"


def emitted(path) -> dict[str, str]:
    recipe, _, _ = load(path)
    return {artifact.path: artifact.text for artifact in emit(recipe)}


def test_there_are_recipes():
    assert RECIPES, "no recipe found: every other test here would look at nothing"


def golden_folder(path) -> str:
    return f"minimal-{path.stem}" if path in MINIMAL else path.stem


@pytest.mark.parametrize("path", RENDERED, ids=golden_folder)
def test_every_recipe_renders_its_golden_files(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = emitted(path.relative_to(ROOT))
    assert_golden(GOLDEN / golden_folder(path), with_references(files))


def test_a_copy_is_a_reference_and_what_differs_is_shown_whole():
    plan = {"stages": [{"name": "data"}]}
    longer = {"stages": [{"name": "data"}, {"name": "train"}]}
    changed = {"stages": [{"name": "rows"}, {"name": "train"}]}
    block = "data:\n  axolotl.yaml: |\n    lr: 1\n\n    seed: 2\n  other: 3\n"
    files = {
        "a/axolotl.yaml": "lr: 1\n\nseed: 2\n",
        "a/configmap.yaml": block,
        "b/configmap.yaml": block,
        "c/configmap.yaml": block.replace("seed: 2", "seed: 3"),
        "a/plan.json": json.dumps(plan, indent=1) + "\n",
        "b/plan.json": json.dumps(longer, indent=1) + "\n",
        "c/plan.json": json.dumps(changed, indent=1) + "\n",
    }
    shown = with_references(files)
    kept = ("a/axolotl.yaml", "c/configmap.yaml", "a/plan.json", "c/plan.json")
    assert {path for path in files if shown[path] == files[path]} == {*kept}
    for path, original in (("a", "axolotl.yaml"), ("b", "a/axolotl.yaml")):
        reference = f"data:\n  axolotl.yaml: (= {original})\n  other: 3\n"
        assert shown[f"{path}/configmap.yaml"] == reference
    stages = json.loads(shown["b/plan.json"])["stages"]
    assert stages == ["(= a/plan.json, stages[0])", {"name": "train"}]


def test_openshift_is_the_site_of_the_starter_recipes():
    """What `recipe site` writes for them; `openshift/admin` is no site, and kept by hand."""
    plans = [planned(load(path)[0], "pytorchjob") for path in ON_CLUSTER]
    files = {file.path: file.text for file in site.render(plans)}
    folder = ROOT / "openshift"
    for home in {name.partition("/")[0] for name in files if "/" in name}:
        below = {
            name.removeprefix(f"{home}/"): text
            for name, text in files.items()
            if name.startswith(f"{home}/")
        }
        assert_golden(folder / home, below)
    if WRITE_GOLDEN:
        (folder / "kustomization.yaml").write_text(files["kustomization.yaml"], encoding="utf-8")
    assert (folder / "kustomization.yaml").read_text("utf-8") == files["kustomization.yaml"]
    assert {path.name for path in folder.iterdir()} == {
        "admin",
        *(name.partition("/")[0] for name in files),
    }


def assert_golden(folder, files: dict[str, str]) -> None:
    """Compares files with those in a golden folder, all of them, or writes them there."""
    if WRITE_GOLDEN:
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    known = {
        str(file.relative_to(folder)): file.read_text("utf-8")
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert sorted(files) == sorted(known)
    for name, text in files.items():
        assert text == known[name], (
            f"{folder / name} is not what is written now; `make golden` rewrites it"
        )


def test_golden_files_do_not_depend_on_what_a_shell_says_about_the_hub():
    """With HF_HUB_OFFLINE in the environment, `make golden` would write that the hub cannot be
    asked."""
    shell = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "https://mirror.example",
        "MLFLOW_TRACKING_URI": "http://x",
    }
    code = f"import os, tests.conftest; print([name for name in os.environ if name.startswith({SERVICES!r})])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=shell,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_no_golden_folder_is_left_without_a_recipe():
    folders = {folder.name for folder in GOLDEN.iterdir() if folder.is_dir()} - {MESSAGES.name}
    assert folders == {golden_folder(path) for path in RENDERED}


@pytest.mark.parametrize("path", RENDERED, ids=golden_folder)
def test_rendering_twice_gives_the_same_bytes(path):
    assert emitted(path) == emitted(path)


def test_no_message_is_left_without_a_test_that_asks_for_it():
    """A test keeps its own entries in order; this is about tests that are gone, or that ask for
    none any more."""
    if set((ROOT / "tests").rglob("test_*.py")) > COLLECTED:
        pytest.skip("not all tests were collected")
    for golden in MESSAGES.glob("*.txt"):
        if WRITE_GOLDEN:
            with changing_messages(golden.name) as entries:
                for heading in unasked(golden.name, entries):
                    del entries[heading]
        else:
            left = unasked(golden.name, read_messages(golden.name))
            assert not left, "`make golden` deletes what nobody asks for"


def unasked(file: str, entries: dict[str, str]) -> list[str]:
    """The headings of a file of messages that no test asks for."""
    return [heading for heading in entries if (file, heading.partition(" · ")[0]) not in ASKING]


def test_messages_are_read_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.conftest.MESSAGES", tmp_path / "messages")
    entries = {
        "b.py::test[a (b)]": "one\n\n  two\tthree\n\u00a0",
        "b.py::test[a (b)] · again": "",
        "a.py::test": "# one",
    }
    write_messages("room.txt", entries)
    assert read_messages("room.txt") == entries
    assert list(read_messages("room.txt")) == sorted(entries)


def test_messages_of_several_processes_are_all_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.conftest.MESSAGES", tmp_path / "messages")

    def add(number: int) -> None:
        with changing_messages("room.txt") as entries:
            time.sleep(0.01)  # without the lock, the others read what is here now
            entries[f"b.py::test_{number}"] = "said"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert len(read_messages("room.txt")) == 8
