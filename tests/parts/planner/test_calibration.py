"""What a run took is said beside its plan, and plans after it know it; what is checked and rendered
does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.check.validate import examine, load
from runner.parts.planner import calibration, constants, forecast
from runner.parts.planner.calibration import Learned, Observed
from runner.parts.planner.view.commands import plan as plan_command
from runner.recipe import units
from runner.recipe.overrides import from_options
from runner.run import inference
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import RunManifest, keep
from runner.scenarios.render import emit
from runner.tools.files import settings_folder
from runner.tools.problem import Stop
from runner.trainer.records import Summary
from tests.conftest import ROOT

LYRICS = ROOT / "recipes" / "lyrics.yaml"
L40S = "NVIDIA-L40S"
GIB = 2**30


@pytest.fixture
def recipe():
    return load(LYRICS)[0]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A configuration folder that knows nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "recipe-runner"


@pytest.fixture
def ran(recipe, tmp_path):
    """Makes a run that took so many times what the plan says, and allocator slack of a tenth."""

    def make(
        ratio: float, name: str = "one", kind: str = "run", gpu: str = "NVIDIA L40S"
    ) -> RunFolder:
        run = RunFolder(tmp_path / "runs" / name, kind)
        run.path.mkdir(parents=True)
        run.mark("finished", recipe=recipe.name)
        plan = inference.plan_of(recipe, run)
        (planned,) = forecast.of(recipe, plan, look=False)
        Summary(
            name=recipe.name, fingerprint=plan.fingerprint, gpu=gpu, step_seconds=ratio * planned.time.step_seconds, gpu_memory_gib=36.0,
            gpu_reserved_gib=39.6,
        ).write(run.path)  # fmt: skip
        return run

    return make


def planned_by_command(*options: str) -> dict:
    done = CliRunner().invoke(
        plan_command, [str(LYRICS), "--format", "json", *options], standalone_mode=False
    )
    assert done.exception is None, done.output
    (stage,) = json.loads(done.stdout)["stages"]
    return stage


def test_a_run_says_what_was_planned_and_plans_after_it_know_its_pace(
    recipe, ran, home, golden_message
):
    before = planned_by_command()
    golden_message("\n".join(calibration.after(recipe, ran(1.5))), "said of the run")
    assert json.loads((home / "learned.json").read_text())["runs"][0]["gpu"] == L40S
    after = planned_by_command()
    assert after["time"]["step_seconds"] == pytest.approx(
        1.5 * before["time"]["step_seconds"], rel=0.02
    )
    assert after["gpu_memory_bytes"]["parts"]["slack"] == pytest.approx(
        0.1 / 0.04 * before["gpu_memory_bytes"]["parts"]["slack"], rel=0.01
    )
    golden_message(after["time_published"], "said of the next plan")
    # One run says little of how far the next is off.
    assert after["time"]["spread"] == before["time"]["spread"]
    other = planned_by_command("--set", "machines.gpu=NVIDIA-A40")
    assert "your own runs" not in other["time_published"]


def test_what_was_said_before_the_run_is_what_it_is_compared_with(recipe, ran):
    run = ran(1.5)
    plan = inference.plan_of(recipe, run)
    keep(run, recipe, plan)
    (before,) = RunManifest.read(run.path).foreseen
    ((foreseen, _),) = calibration.beside(run, plan, [before])
    assert foreseen == before
    assert before.step_seconds > before.waiting_seconds
    # Formulas may have changed since.
    said = replace(before, step_seconds=10 * before.step_seconds)
    replace(RunManifest.read(run.path), foreseen=(said,)).write(run.path)
    (told,) = calibration.after(recipe, run)
    assert f"instead of the planned {units.speed(said.step_seconds)} s (−85 %)" in told
    assert list(calibration.after_plan(plan, run)) == [told]


def test_a_second_look_at_a_run_counts_once_and_two_runs_are_both_known(recipe, ran):
    run = ran(1.5)
    for _ in range(2):
        list(calibration.after(recipe, run))
    list(calibration.after(recipe, ran(1.1, "two")))
    (first, second) = Learned.read(settings_folder()).runs
    # The plan that a run is compared with has learned nothing.
    assert first.seconds / first.planned == pytest.approx(
        1.5
    ) and second.seconds / second.planned == pytest.approx(1.1)
    assert calibration.learned()[L40S].slowness == pytest.approx(1.3)


def test_what_is_checked_and_rendered_is_the_same_for_those_who_have_learned(recipe, ran, home):
    def made() -> tuple:
        return [str(problem) for problem in examine(LYRICS)], emit(load(LYRICS)[0])

    before = made()
    list(calibration.after(recipe, ran(40.0)))
    assert constants.constants(L40S) == constants.ASSUMED  # outside of a plan
    assert calibration.learned()[L40S].slowness == pytest.approx(40, rel=0.01) and made() == before


def test_a_fetched_run_is_learned_from_by_its_folder(recipe, ran, golden_message):
    run = ran(2.0)
    learned_from = planned_by_command("--learn", str(run.path))
    assert "one of your own runs" in learned_from["time_published"]
    for kind, name, gpu in (
        ("rehearsal", "three", "NVIDIA L40S"),
        ("run", "four", ""),
        ("run", "five", "NVIDIA H100"),
    ):
        with pytest.raises(Stop) as refused:
            calibration.learn(recipe, [str(ran(1.0, name, kind, gpu).path)])
    golden_message(refused.value)
    for other, folder in (
        (load(LYRICS, from_options(["train.micro_batch_size=8"]))[0], str(run.path)),
        (load(ROOT / "recipes" / "survival.yaml")[0], str(run.path)),
        (recipe, "nowhere"),
    ):
        with pytest.raises(Stop):
            calibration.learn(other, [folder])


def test_a_file_that_is_none_and_a_folder_that_nobody_may_write_stop_no_run(
    recipe, ran, home, monkeypatch
):
    home.mkdir(parents=True)
    for text in (
        "",
        "[",
        '{"runs": 3}',
        '{"runs": [{"gpu": "NVIDIA-L40S", "run": "x", "seconds": -1, "planned": 0}]}',
    ):
        (home / "learned.json").write_text(text)
        assert calibration.learned() == {} and planned_by_command()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    run = ran(1.5)
    assert len(list(calibration.after(recipe, run))) == 1
    with pytest.raises(Stop, match="cannot be saved"):
        calibration.learn(recipe, [str(run.path)])


def test_the_newest_runs_of_each_card_are_kept(home):
    calibration.keep(Observed(str(n), "A", 1.0, 1.0) for n in range(calibration.MOST_RUNS + 5))
    calibration.keep([Observed("new", "B", 1.0, 1.0), Observed("7", "A", 2.0, 1.0)])
    runs = Learned.read(home).runs
    assert [each.run for each in runs if each.gpu == "B"] == ["new"]
    (*_, last), count = (
        [each for each in runs if each.gpu == "A"],
        sum(each.gpu == "A" for each in runs),
    )
    assert (last.run, last.seconds, count) == ("7", 2.0, calibration.MOST_RUNS)
    # Nineteen runs are enough for a range of their own.
    assert (
        calibration.learned()["A"].spread is not None and calibration.learned()["B"].spread is None
    )


def test_a_relative_folder_is_not_taken(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert settings_folder() == Path("~/.config/recipe-runner").expanduser()
