"""`recipe` without a command, in a folder with one recipe, shows how far it has come and what comes
next."""

from __future__ import annotations

import os
import shutil

import pytest

from runner.run.run_folder import RunFolder
from tests.conftest import ROOT


@pytest.fixture
def alone(tmp_path):
    """A folder with one recipe, `lyrics-demo`."""
    shutil.copytree(ROOT / "recipes" / "data", tmp_path / "data")
    text = (ROOT / "recipes/minimal/lyrics-demo.yaml").read_text("utf-8").replace("../data", "data")
    (tmp_path / "mine.yaml").write_text(text, "utf-8")
    return tmp_path


@pytest.fixture
def shown(alone, recipe_command):
    """What `recipe` alone says there, with its exit code."""

    def run() -> str:
        done = recipe_command(cwd=alone)
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"

    return run


def left(folder, kind: str, status: str, **facts) -> RunFolder:
    run = RunFolder(
        folder / "runs" / ("lyrics-demo" if kind == "run" else "lyrics-demo-rehearsal"), kind
    )
    run.path.mkdir(parents=True)
    run.mark(status, recipe="lyrics-demo", **facts)
    return run


def test_a_new_recipe_is_to_be_rehearsed(alone, shown, golden_message):
    golden_message(shown())


def test_a_recipe_with_mistakes_is_to_be_checked(alone, shown, golden_message):
    with (alone / "mine.yaml").open("a", encoding="utf-8") as file:
        file.write("nonsense: 1\n")
    golden_message(shown())


def test_a_rehearsed_recipe_is_to_be_trained(alone, shown, golden_message):
    left(alone, "rehearsal", "finished")
    run = left(alone, "run", "stopped")
    golden_message(shown(), "nothing was trained")
    (run.path / "checkpoints/checkpoint-5").mkdir(parents=True)
    golden_message(shown(), "training had begun")


def test_a_trained_model_is_to_be_looked_at(alone, shown, golden_message):
    left(alone, "rehearsal", "finished")
    left(alone, "run", "finished")
    golden_message(shown())


def test_a_recipe_edited_after_its_rehearsal_is_to_be_rehearsed_again(alone, shown, golden_message):
    left(alone, "rehearsal", "finished")
    later = (alone / "mine.yaml").stat().st_mtime + 60
    os.utime(alone / "mine.yaml", (later, later))
    golden_message(shown())


def test_a_run_of_another_recipe_does_not_count(alone, shown):
    left(alone, "rehearsal", "finished").mark("finished", recipe="another")
    assert "rehearsed  not yet" in shown()


def test_while_a_command_is_at_work_why_comes_next(alone, shown):
    with left(alone, "rehearsal", "running").lock():
        assert shown().rstrip().endswith("Next: recipe why mine.yaml")


@pytest.mark.parametrize(
    ("recipes", "ending"),
    [
        (0, "\nThere is no recipe in this folder yet.\nNext: recipe new my-demo --from survival\n"),
        (2, "\nThis folder has 2 recipes. Name one of them after a command.\nNext: recipe list\n"),
    ],
)
def test_with_no_recipe_or_several_the_help_is_shown(tmp_path, recipes, ending, recipe_command):
    for number in range(recipes):
        shutil.copy(ROOT / "recipes/minimal/lora.yaml", tmp_path / f"{number}.yaml")
    done = recipe_command(cwd=tmp_path)
    assert done.returncode == 2 and "Usage: recipe" in done.stderr
    assert done.stderr.endswith(ending)


def test_the_help_has_five_headings_and_begins_each_with_what_is_used_every_day(
    recipe_command, golden_message
):
    golden_message(recipe_command("--help").stdout)
