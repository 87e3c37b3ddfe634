"""`recipe` without a command, in a folder with one recipe, shows how far it has come and what comes
next: by what was rehearsed and trained, and not by the times of files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click
import pytest
import yaml

from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.commands import run as run_commands
from runner.commands.cli import _code as typed
from runner.data.prepared import Lengths, PreparedRows
from runner.parts.planner import processor
from runner.run import pipeline, run_manifest
from runner.run import run as running
from runner.run.run_folder import RunFolder
from runner.tools import files
from runner.tools.files import cache_folder, read_record, write_json
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.stages import leave, model_folder

RECIPE = {
    "scenario": "lora",
    "name": "own",
    "model": {"base": "microsoft/Phi-4-mini-instruct"},
    "data": {
        "path": "data/rows.jsonl",
        "question": "For [topic], [question]",
        "answer": "[answer]",
    },
    "train": {"epochs": 2},
    "machines": {"gpu": "NVIDIA-L40S"},
}


class Project:
    """A folder with one recipe, whose engines only leave what engines leave.

    meanwhile: what a person does while a stage works, by its name; failing: stages that fail;
    losses: before and after training."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.file = folder / "own.yaml"
        self.rows = folder / "data" / "rows.jsonl"
        self.rows.parent.mkdir(parents=True)
        shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", self.rows)
        self.file.write_text(yaml.safe_dump(RECIPE, sort_keys=False), "utf-8")
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self.failing: set[str] = set()
        self.losses = (3.0, 1.0)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(pipeline, "launch", self.launch)
        monkeypatch.setattr(running, "_import_ahead", lambda *_: None)
        monkeypatch.setattr(run_commands, "forking", nullcontext)

    def launch(self, stage, place, progress) -> None:
        run_dir = next(
            home for home in (Path(place.run_dir), *Path(place.run_dir).parents)
            if (home / "run.json").is_file()
        )  # fmt: skip
        if stage.name in self.meanwhile:
            self.meanwhile[stage.name]()
        if stage.name in self.failing:
            raise Stop("out of luck")
        leave(run_manifest.plan_of(RunFolder.at(run_dir)), stage, self.losses, steps=40)
        if not stage.trains:
            lengths = Lengths(270.0, 20.0, 300.0)
            rows = PreparedRows(train_rows=240, validation_rows=20, lengths=lengths)
            rows.write(Path(stage.config["out"]))
            twin = stage.config.get("twin")
            if twin and not Path(twin["folder"]).exists():
                model_folder(Path(twin["folder"]))

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text("utf-8")
        assert before in text
        self.file.write_text(text.replace(before, after), "utf-8")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    card = Gpu(PROCESSOR, "Some", 64, 64.0, "0.0", 90.0, "host", 1.0, "torch 2", fp32_tflops=50.0)
    cache_folder().mkdir(parents=True)
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    return Project(tmp_path / "project", monkeypatch)


@pytest.fixture
def shown(project, recipe_command):
    """What `recipe` alone prints there, with its exit code."""

    def run(folder: Path | None = None) -> str:
        done = recipe_command(cwd=folder or project.folder)
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"

    return run


def first_row_twice(rows: Path) -> None:
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join([lines[0], *lines]))


def answer_no(monkeypatch) -> list[str]:
    """A person at a terminal who answers every question with no; returns the questions."""
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda question: questions.append(question) or False)
    monkeypatch.setattr(running, "UNASKED", -1.0)
    monkeypatch.setattr(running, "UNASKED_REHEARSAL", -1.0)
    return questions


def test_a_new_recipe_is_to_be_rehearsed(shown, golden_message):
    golden_message(shown())


def test_a_recipe_with_mistakes_is_to_be_checked(project, shown, golden_message):
    with project.file.open("a", encoding="utf-8") as file:
        file.write("nonsense: 1\n")
    golden_message(shown())


def test_what_was_rehearsed_and_trained_is_shown_and_a_comment_changes_nothing(
    project, shown, golden_message
):
    assert typed(["rehearse", "own.yaml"]) == 0
    golden_message(shown(), "rehearsed")
    assert typed(["run", "own.yaml", "--yes"]) == 0
    project.edit("epochs: 2", "epochs: 2  # enough")
    golden_message(shown(), "trained")


def test_an_edit_during_a_rehearsal_is_not_rehearsed(project, shown, golden_message):
    project.meanwhile["data"] = lambda: project.edit("epochs: 2", "epochs: 5")
    assert typed(["rehearse", "own.yaml"]) == 0
    golden_message(shown())
    project.edit("epochs: 5", "epochs: 2")
    assert "rehearsed  finished, in runs/own-rehearsal\n" in shown(), "the edit was undone"


def test_other_rows_are_not_rehearsed(project, shown, golden_message):
    rows = project.rows.read_bytes()
    assert typed(["rehearse", "own.yaml"]) == 0
    project.rows.write_bytes(rows.replace(b"water", b"waves"))
    golden_message(shown())
    project.rows.write_bytes(rows)
    assert "rehearsed  finished, in runs/own-rehearsal\n" in shown(), "the rows are as they were"


def test_rows_that_are_edited_during_a_rehearsal_are_not_rehearsed(project, shown):
    project.meanwhile["train"] = lambda: first_row_twice(project.rows)
    assert typed(["rehearse", "own.yaml"]) == 0
    assert "`data/rows.jsonl` has changed since" in shown()


def test_rows_are_read_only_if_something_has_touched_them(project, monkeypatch, capsys):
    monkeypatch.setattr(files, "SETTLED", 0)
    assert typed(["rehearse", "own.yaml"]) == 0
    read = []
    monkeypatch.setattr("runner.run.run_folder.content_of", lambda file: read.append(file) or "")
    capsys.readouterr()
    assert typed([]) == 0
    assert "finished, in" in capsys.readouterr().out and read == []
    os.utime(project.rows)
    assert typed([]) == 0
    assert read == [Path("data/rows.jsonl")]
    first_row_twice(project.rows)
    assert typed([]) == 0
    assert len(read) == 1, "another size is other content"


def test_a_copied_folder_has_the_same_results(project, shown):
    assert typed(["rehearse", "own.yaml"]) == 0
    copied = project.folder.with_name("copy")
    shutil.copytree(project.folder, copied, copy_function=shutil.copy)
    shutil.rmtree(project.folder / "data")
    for file in copied.rglob("*"):
        os.utime(file)
    assert "rehearsed  finished, in runs/own-rehearsal\n" in shown(copied)
    first_row_twice(copied / "data/rows.jsonl")
    assert "`data/rows.jsonl` has changed since" in shown(copied)


def test_a_rehearsal_with_other_settings_is_not_the_recipes(project, shown, golden_message):
    assert typed(["rehearse", "own.yaml", "--set", "train.epochs=5"]) == 0
    golden_message(shown())
    project.edit("epochs: 2", "epochs: 5")
    assert "rehearsed  finished, in runs/own-rehearsal\n" in shown(), "now they are"


def test_a_rehearsal_that_learned_nothing_has_not_passed(project, shown, golden_message):
    project.losses = (3.0, 3.0)
    assert typed(["rehearse", "own.yaml"]) == 1
    golden_message(shown())


@pytest.mark.parametrize("ending", ["fails", "is declined"])
def test_a_real_model_leaves_the_rehearsal_with_a_twin_alone(
    project, shown, ending, monkeypatch, golden_message
):
    model_folder(project.folder / "small-model")
    assert typed(["rehearse", "own.yaml"]) == 0
    before = shown()
    with_model = ["rehearse", "own.yaml", "--model", "small-model"]
    questions = []
    if ending == "fails":
        project.failing = {"train"}
        assert typed([*with_model, "--yes"]) == 1
    else:
        questions = answer_no(monkeypatch)
        assert typed(with_model) == 1
    assert bool(questions) == (ending == "is declined")
    assert shown() == before
    assert (project.folder / "runs/own-rehearsal-real").exists() == (ending == "fails")
    project.failing = set()
    assert typed([*with_model, "--yes"]) == 0
    shutil.rmtree(project.folder / "runs/own-rehearsal")
    golden_message(shown())


def test_a_declined_rehearsal_leaves_the_results_before_it(project, shown, monkeypatch):
    model_folder(project.folder / "small-model")
    with_model = ["rehearse", "own.yaml", "--model", "small-model", "--yes"]
    assert typed(with_model) == 0
    run = project.folder / "runs/own-rehearsal-real"
    records = [read_record(run / name) for name in ("run.json", "planned.json", "config/plan.json")]
    before = shown()
    assert "rehearsed  finished with the model `small-model`" in before
    project.edit("epochs: 2", "epochs: 5")
    answer_no(monkeypatch)
    assert typed(with_model[:-1]) == 1
    assert "the recipe has changed since" in shown()
    assert records == [
        read_record(run / name) for name in ("run.json", "planned.json", "config/plan.json")
    ]
    project.edit("epochs: 5", "epochs: 2")
    assert shown() == before


def test_a_declined_run_has_not_begun(project, shown, monkeypatch):
    before = shown()
    questions = answer_no(monkeypatch)
    assert typed(["run", "own.yaml"]) == 1
    assert questions and shown() == before
    assert not (project.folder / "runs/own").exists()
    (project.folder / "runs/own/data").mkdir(parents=True)  # of `recipe prepare`
    assert typed(["run", "own.yaml"]) == 1
    assert shown() == before
    assert typed(["run", "own.yaml", "--yes"]) == 0, "what it left is in nobody's way"


def test_a_stopped_run_says_whether_it_can_continue(project, shown, golden_message):
    assert typed(["rehearse", "own.yaml"]) == 0
    project.failing = {"train"}
    assert typed(["run", "own.yaml", "--yes"]) == 1
    golden_message(shown(), "before training")
    (project.folder / "runs/own/checkpoints/checkpoint-5").mkdir(parents=True)
    golden_message(shown(), "in training")
    project.edit("epochs: 2", "epochs: 5")
    golden_message(shown(), "before the recipe changed")


def test_a_killed_run_is_stopped(project, shown):
    assert typed(["rehearse", "own.yaml"]) == 0
    run = RunFolder.at(project.folder / "runs/own-rehearsal")
    run.mark("running")
    assert "rehearsed  stopped, in runs/own-rehearsal; `recipe rehearse` continues it" in shown()


def test_while_a_command_is_at_work_why_comes_next(project, shown):
    printed = []
    project.meanwhile["data"] = lambda: printed.append(shown())
    assert typed(["rehearse", "own.yaml"]) == 0
    assert "rehearsed  running now, in runs/own-rehearsal" in printed[0]
    assert printed[0].rstrip().endswith("Next: recipe why own.yaml")


def test_a_renamed_file_finds_its_runs(project, shown):
    assert typed(["rehearse", "own.yaml"]) == 0
    project.file.rename(project.folder / "renamed.yaml")
    assert "rehearsed  finished, in runs/own-rehearsal\n" in shown()


def test_a_recipe_with_another_name_finds_the_runs_with_the_same_content(
    project, shown, capsys, golden_message
):
    assert typed(["rehearse", "own.yaml"]) == 0
    project.edit("name: own", "name: mine")
    golden_message(shown())
    capsys.readouterr()
    assert typed(["compare", "own.yaml"]) in (0, 1)
    assert str(project.folder / "runs/own-rehearsal") in capsys.readouterr().out


def test_a_recipe_with_another_name_and_content_says_where_its_runs_are(
    project, shown, capsys, golden_message
):
    assert typed(["rehearse", "own.yaml"]) == 0
    project.edit("name: own", "name: mine")
    project.edit("epochs: 2", "epochs: 5")
    golden_message(shown(), "recipe")
    capsys.readouterr()
    assert typed(["ask", "own.yaml", "Why?"]) == 1
    golden_message(capsys.readouterr().err, "recipe ask")
    where = "The runs under its earlier name `own` are in `runs/own-rehearsal`."
    assert typed(["why", "own.yaml"]) == 1
    assert where in capsys.readouterr().err
    assert typed(["run", "own.yaml", "--yes"]) == 0
    assert capsys.readouterr().out.startswith(where)


def test_the_list_says_which_recipe_each_run_is_of(project, capsys, golden_message):
    """Two recipes here have the same name."""
    assert typed(["rehearse", "own.yaml"]) == 0
    assert typed(["run", "own.yaml", "--yes", "--set", "train.epochs=7"]) == 0
    shutil.copy(project.file, project.folder / "copy.yaml")
    project.edit("epochs: 2", "epochs: 5")
    capsys.readouterr()
    assert typed(["list", "--format", "json"]) == 0
    runs = yaml.safe_load(capsys.readouterr().out)["runs"]
    lines = [f"{row['folder']}: {row['status']}, {row['made from']}" for row in runs]
    golden_message("\n".join(lines))


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
