"""The life of a stage in a run folder: begun, gone on with, kept, run again, or refused where
training would be lost."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.parts.evaluate.commands import compared
from runner.plan import Plan
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.run import inference, pipeline
from runner.run.pipeline import Selection, carry_out
from runner.run.run_folder import RunFolder, StageFolder, find, folder, session
from runner.tools.problem import Interrupted, Stop
from runner.tools.run_files import COMPLETE
from tests.conftest import ROOT
from tests.stages import finish, leave, model_folder

ROWS = ROOT / "recipes" / "data" / "survival-sample.jsonl"
LOCAL = ("data.hub=", "data.revision=")


class Life:
    """A recipe in its run folder, whose engines only leave what engines leave."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "run") -> None:
        self.rows, self.run, self.told, self.fails = (
            path / "rows.jsonl",
            RunFolder(path / "run", kind),
            [],
            set(),
        )
        self.rows.write_bytes(ROWS.read_bytes())
        self.ends: BaseException = Stop("out of luck")
        monkeypatch.setattr(pipeline, "launch", self.launch)

    def plan(self, *sets: str) -> Plan:
        changes = from_options([*LOCAL, f"data.path={self.rows}", *sets])
        return inference.plan_of(load(ROOT / "recipes" / "survival.yaml", changes)[0], self.run)

    def launch(self, stage, place, progress) -> None:
        self.told.append(f"launched {stage.name}")
        if stage.name in self.fails:
            checkpoint = Path(place.checkpoints_dir) / "checkpoint-1"
            if stage.trains:
                checkpoint.mkdir(parents=True, exist_ok=True)
            raise self.ends
        leave(self.planned, stage)

    def go(
        self, *sets: str, stage: str | None = None, made: tuple[Override, ...] = ()
    ) -> list[str]:
        self.told = []
        plan = self.planned = self.plan(*sets)
        with session(self.run, plan.name, fresh=False):
            record = self.run.made_with(made, made)
            carry_out(
                plan,
                Selection(stage).of(plan),
                self.told.append,
                lambda: nullcontext(lambda event: None),
                record,
            )
        return [
            line.removeprefix("launched ") for line in self.told if line.startswith("launched ")
        ]


@pytest.fixture
def life(tmp_path, monkeypatch) -> Life:
    return Life(tmp_path, monkeypatch)


def test_a_finished_run_is_not_repeated_and_its_stages_are_on_record(life):
    assert life.go() == ["data", "train"]
    assert life.go() == []
    assert any("already done." in line for line in life.told)
    records = {
        name: StageFolder(life.plan(), life.plan().stage(name)) for name in ("data", "train")
    }
    assert all(record.finished for record in records.values())
    assert records["train"].state.inputs["results of data"]
    assert list(records["data"].state.outputs) == ["train.parquet"]
    assert life.run.state.status == "finished" and life.run.state.id


@pytest.mark.parametrize("how", ["the data", "a setting"])
def test_a_rehearsal_of_a_changed_recipe_begins_anew_and_says_why(tmp_path, monkeypatch, how):
    life = Life(tmp_path, monkeypatch, "rehearsal")
    life.go()
    if how == "the data":
        life.rows.write_text(life.rows.read_text() + life.rows.read_text().splitlines()[0] + "\n")
        # The engine here leaves the same rows of whatever file, and what is trained on them stays.
        assert life.go() == ["data"]
        assert "  data: runs again (data.path: the file's content has changed)" in life.told
    else:
        assert life.go("train.epochs=5") == ["train"]
        assert "  train: runs again (num_epochs: 4 → 5)" in life.told
    assert life.run.state.status == "finished"


@pytest.mark.parametrize("how", ["the data", "a setting"])
def test_what_took_training_is_left_alone_when_the_recipe_changes(life, how):
    life.go()
    before = {
        file: file.read_bytes()
        for file in life.run.path.rglob("*")
        if file.is_file() and file.name != "run.json"
    }
    changed = ()
    if how == "the data":
        life.rows.write_text(life.rows.read_text() + life.rows.read_text().splitlines()[0] + "\n")
        why = "data.path: the file's content has changed"
    else:
        changed, why = ("train.seed=7",), "seed: 42 → 7"
    if how == "the data":
        with pytest.raises(Stop, match="of this recipe from before it changed"):
            life.go(stage="data")
    with pytest.raises(Stop) as stop:
        life.go(*changed)
    assert "of this recipe from before it changed" in stop.value.text and why in stop.value.text
    assert "`--fresh` deletes that run" in stop.value.text
    assert {file: file.read_bytes() for file in before} == before, (
        "nothing was touched, the prepared data neither"
    )


def test_an_interrupted_run_goes_on_and_only_with_the_data_that_it_began_with(life):
    life.fails.add("train")
    with pytest.raises(Stop, match=r"The stage `train` has failed\. out of luck"):
        life.go()
    assert life.run.state.status == "stopped"
    rows = life.rows.read_bytes()
    life.rows.write_bytes(rows + b"{}\n")
    life.fails.clear()
    with pytest.raises(Stop, match="of this recipe from before it changed"):
        life.go()
    life.rows.write_bytes(rows)
    assert life.go() == ["train"]
    assert "train: continuing; log in" in "\n".join(life.told)


def test_a_mistake_before_anything_was_trained_keeps_no_later_run_out(life):
    life.fails.add("data")
    with pytest.raises(Stop, match=r"^out of luck$"):
        life.go()
    life.fails.clear()
    assert life.go("train.seed=7") == ["data", "train"]


def test_a_model_of_which_nothing_is_on_record_is_not_trained_over(life):
    life.go()
    (life.run.path / "stage.json").unlink()
    with pytest.raises(Stop, match="its inputs are not on record"):
        life.go()


def test_what_was_interrupted_is_not_said_to_run_for_ever(life):
    life.fails, life.ends = {"train"}, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        life.go()
    assert life.run.state.status == "stopped"
    rows = compared(load(ROOT / "recipes" / "survival.yaml")[0], [life.run])
    assert [texts for _, what, texts in rows if what == "state"] == [("not finished",)]


@pytest.mark.parametrize(
    ("events", "saved", "said"),
    [
        ((), (), "Interrupted during `train`. The same command continues it."),
        ((24,), (12, 24), "Interrupted at step 24 of 45. The same command continues from there."),
        ((24,), (25,), "Interrupted at step 25 of 45. The same command continues from there."),
        (
            (24,),
            (12,),
            "Interrupted at step 24 of 45. The same command continues from step 12, the last saved one.",
        ),
        (
            (24,),
            (),
            "Interrupted at step 24 of 45. The same command continues from the last saved step, or starts `train` again.",
        ),
    ],
)
def test_an_interrupted_training_says_where_it_goes_on(life, monkeypatch, events, saved, said):
    def launch(stage, place, progress) -> None:
        if not stage.trains:
            return leave(life.planned, stage)
        for step in events:
            progress({"event": "step", "step": step, "steps": 45})
        for step in saved:
            folder = Path(place.checkpoints_dir) / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / COMPLETE).write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "launch", launch)
    with pytest.raises(Interrupted) as ended:
        life.go()
    assert str(ended.value) == said


def test_a_refused_command_leaves_no_trace_in_the_record_of_what_was_made(life):
    life.go(made=(Override("train.logging_steps", 10, 5, "me"),))
    known = (life.run.state.changes, life.run.state.substitutions, life.run.overrides)
    refused = Override("train.logging_steps", 10, 7, "me")
    with pytest.raises(Stop, match="of this recipe from before it changed"):
        life.go("train.seed=7", made=(refused,))
    assert (life.run.state.changes, life.run.state.substitutions, life.run.overrides) == known
    life.go(made=(refused,))
    assert (life.run.state.changes, life.run.state.substitutions, life.run.overrides) == known, (
        "nothing was made"
    )


def test_a_stage_by_its_name(life):
    assert life.go(stage="data") == ["data"]
    assert life.go(stage="train") == ["train"]
    with pytest.raises(Stop, match="has no stage `trian`"):
        life.go(stage="trian")


def test_a_folder_of_another_recipe_or_of_other_things_is_refused(life, tmp_path):
    life.go()
    with (
        pytest.raises(Stop, match="contains a run of the recipe `survival`"),
        session(life.run, "other", False),
    ):
        raise AssertionError("not reached")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mum.txt").write_text("Dear")
    letters = RunFolder(tmp_path / "letters")
    with (
        pytest.raises(Stop, match="contains files that do not belong to a run"),
        session(letters, "x", True),
    ):
        raise AssertionError("not reached")
    assert (tmp_path / "letters" / "to-mum.txt").is_file()


def test_a_run_begins_where_rows_were_prepared_and_shown(tmp_path):
    run = RunFolder(tmp_path / "my-demo")
    place = run.place(None)
    for left in (place.data_dir, f"{place.scratch_dir}/tokenised"):
        Path(left).mkdir(parents=True)
    with session(run, "my-demo", False):
        pass
    assert run.state.recipe == "my-demo" and Path(place.data_dir).is_dir()


def test_a_refused_command_leaves_no_folder(tmp_path):
    run = RunFolder(tmp_path / "new")
    with pytest.raises(Stop, match="no GPU"), session(run, "x", False):
        raise Stop("no GPU")
    assert not run.path.exists()


def test_a_command_that_begins_nothing_leaves_the_record_of_a_run_as_it_was(tmp_path):
    """As after a no to hours of training: else the run would seem to be one that somebody has
    stopped."""
    run = RunFolder(tmp_path / "x")
    (run.path / "data").mkdir(parents=True)
    with pytest.raises(Stop, match="Nothing"), session(run, "x", False):
        raise Stop("Nothing was started.")
    assert not run.state and (run.path / "data").is_dir()
    run.mark("finished", recipe="x")
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(Stop, match="Nothing"), session(run, "x", False):
        raise Stop("Nothing was started.")
    assert (run.path / "run.json").read_bytes() == before
    with pytest.raises(Stop, match="failed"), session(run, "x", False):
        run.mark("stopped")
        raise Stop("A stage has failed.")
    assert run.state.status == "stopped"


def test_a_folder_that_is_deleted_meanwhile_is_named(tmp_path):
    """What fails then is a file somewhere inside, and its name alone explains nothing."""
    run = RunFolder(tmp_path / "runs" / "new")
    with pytest.raises(Stop) as stop, session(run, "x", False):
        shutil.rmtree(run.path.parent)
        run.mark("stopped")  # as the end of a failed stage does, which creates the folder again
        raise FileNotFoundError(2, "No such file or directory", "train.log")
    assert "was deleted or moved away" in stop.value.text
    assert not run.path.exists()


def test_the_run_that_has_trained_something_is_meant_before_one_that_has_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rehearsal, run = folder("x", "rehearsal"), folder("x", "run")
    for one in (rehearsal, run):
        one.mark("running")
    assert find("x", None) == run, "the one that was worked on last"
    (rehearsal.path / "training_summary.json").write_text("{}")
    assert find("x", None) == rehearsal
    assert find("x", str(run.path)) == run
    with pytest.raises(Stop, match="is not a run folder"):
        find("x", str(tmp_path))


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with a recipe, its rows, its model and the run of it, as people copy it about."""
    home = tmp_path / "project"
    model_folder(home / "mine")
    (home / "rows.jsonl").write_bytes(ROWS.read_bytes())
    (home / "survival.yaml").write_bytes((ROOT / "recipes" / "survival.yaml").read_bytes())
    return home


def actions(home: Path, file: str, recorded: bool = False) -> dict[str, tuple[str, str]]:
    """What becomes of each stage of a project whose recipe is named so, and why; `recorded` makes
    it look finished first."""
    recipe = load(
        file,
        from_options(
            [
                *LOCAL,
                "data.path=rows.jsonl",
                "data.sample=rows.jsonl",
                "model.base=mine",
                "model.revision=",
            ]
        ),
    )[0]
    plan = inference.plan_of(recipe, RunFolder(home / "run"))
    if recorded:
        finish(plan)
    return {
        decision.stage.name: (decision.action, "".join(decision.why))
        for decision in pipeline.decide(plan, plan.stages)
    }


def test_a_run_is_the_same_from_wherever_it_is_called_and_wherever_its_project_is_copied(
    project, monkeypatch
):
    monkeypatch.chdir(project)
    assert {action for action, _ in actions(project, "survival.yaml", recorded=True).values()} == {
        "keep"
    }
    monkeypatch.chdir(project.parent)
    assert {action for action, _ in actions(project, "project/survival.yaml").values()} == {"keep"}
    copy = shutil.copytree(project, project.with_name("copy"), copy_function=shutil.copyfile)
    assert {action for action, _ in actions(copy, str(copy / "survival.yaml")).values()} == {"keep"}


def test_a_base_model_in_a_folder_counts_by_what_it_holds(project):
    recipe = str(project / "survival.yaml")
    actions(project, recipe, recorded=True)
    (project / "mine" / "model.safetensors").write_bytes(b"changed")
    action, why = actions(project, recipe)["train"]
    assert action == "again" and "base_model: the file's content has changed" in why
