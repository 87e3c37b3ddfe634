"""The page of a run: what it says, that nothing in it is anybody else's script, and how a browser
sees it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.parts.evaluate import gates
from runner.parts.report import charts, page
from runner.parts.report.facts import Curve
from runner.plan import Plan
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override, Recipe
from runner.run import inference, pipeline, this_machine
from runner.run import run as running
from runner.run.run_folder import RunFolder, StageFolder
from runner.run.run_manifest import RunManifest, keep
from runner.scenarios import translate
from runner.tools import packaged
from runner.tools.problem import Stop
from runner.tools.run_files import PAGE
from runner.trainer.records import Proof
from tests.conftest import ROOT
from tests.parts.report import browser
from tests.parts.report.pages import Page, holds_the_figures_of, read
from tests.stages import finish, leave, measured

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'
VERSIONS = {"recipe-runner": "0.1.0", "torch": "2.13.0"}


def history(steps: int, since: int = 0) -> dict:
    numbers = range(since + 1, since + steps + 1)
    return {
        "seconds": 50.0,
        "steps": [
            {"step": step, "epoch": step / steps, "loss": 3 - 2 * (step - since) / steps, "learning_rate": 1e-4 / step,
             "grad_norm": 1.0, "samples_per_second": 4.0, "tokens_per_second": 1000.0 + step, "gpu_memory_gib": 21.25}
            for step in numbers
        ],
        "epochs": [
            {"epoch": part, "step": since + part * steps // 4, "train_loss": 2.5 if part else None, "validation_loss": 3.0 - 0.5 * part}
            for part in range(5)
        ],
    }  # fmt: skip


def made(
    folder: Path, recipe: str, *options: str, kind: str = "run"
) -> tuple[Recipe, Plan, RunFolder]:
    """A finished run of a starter, without any training."""
    known, run = (
        load(ROOT / "recipes" / f"{recipe}.yaml", from_options(options))[0],
        RunFolder(folder, kind),
    )
    folder.mkdir(parents=True)
    run.mark("finished", recipe=known.name)
    plan, since = translate(known, run.place()), 0
    finish(plan)
    for stage in (stage for stage in plan.stages if stage.trains):
        home = StageFolder(plan, stage).path
        leave(plan, stage, steps=since + 8, last_training_loss=1.0, versions=VERSIONS)
        (home / "training_history.json").write_text(json.dumps(history(8, since)))
    (Path(plan.place.data_dir) / "report.json").write_text(json.dumps({
        "source": "rows.jsonl", "rows_in": 84, "dropped": {"no answer": 3}, "duplicates": 5, "train_rows": 68, "validation_rows": 8,
        "length_bins": [[10, 19, 7], [20, 29, 61]],
        "findings": [{"kind": "near duplicates", "count": 6, "said": "nearly the same", "remedy": "Look at them.", "lines": []}], "licence": "cc-by-4.0", "key": "0123abcd",
    }))  # fmt: skip
    keep(run, known, plan)
    return known, plan, run


def page_of(*runs: RunFolder) -> Page:
    from runner.parts.report import facts

    file = runs[0].path / PAGE
    file.write_text(page.render([facts.RunFacts(run) for run in runs]), "utf-8")
    return read(file)


def test_the_first_screen_says_what_was_trained_on_what_and_whether_it_is_better(tmp_path):
    _, plan, run = made(tmp_path / "run", "survival")
    said = page_of(run)
    assert (
        "HuggingFaceTB/SmolLM3-3B was trained on 68 rows of rows.jsonl: all of its 3 parameters, 8 steps in 50 s."
        in said.said
    )
    assert "Improved: the validation loss fell from 3.000 to 1.000, 66.7% lower." in said.said
    assert re.search(
        r"It took 50 s \(planned [\d.]+ \w+ to [\d.]+ \w+\) and at most 21\.2 GiB on a GPU \(planned [\d.]+ GiB\)\.",
        said.said,
    )
    holds_the_figures_of(said, run.path)
    for words in (
        "no answer 3",
        "10 to 19 7",
        "licence cc-by-4.0",
        "apache-2.0",
        "Every setting is that of the starter survival",
    ):
        assert words in said.said, words
    leave(plan, plan.stages[-1], (1.0, 1.5))
    assert (
        "Not improved: the validation loss was 1.000 at the start and 1.500 at best."
        in page_of(run).said
    )


def test_what_differs_from_the_starter_is_shown_with_where_it_comes_from(tmp_path):
    _, _, run = made(tmp_path / "run", "survival", "train.epochs=2", "train.seed=7")
    assert (
        "train.epochs 4 2 --set train.epochs=2 train.seed 42 7 --set train.seed=7"
        in page_of(run).said
    )


def test_nothing_that_a_run_says_becomes_part_of_the_page(tmp_path):
    """Questions, answers, rows, reasons and settings are anybody's text."""
    _, _, run = made(
        tmp_path / "run", "survival", f"description={EVIL}", f"data.system_prompt={EVIL}"
    )
    (run.path / "demo_outputs").mkdir()
    answers = [
        {"question": f"{EVIL} {part}", "before": EVIL, "after": f'" autofocus onfocus="{EVIL}'}
        for part in "ab"
    ]
    (run.path / "demo_outputs" / "answers.json").write_text(json.dumps(answers))
    shown = ({"row": 7, "tokens": 3, "spans": [["seen", [EVIL]], ["trained", ["fine", EVIL]]]},)
    Proof(
        kind="conversations", rows=68, trained=2, seen=1, shown=shown, asked=(EVIL,), notes=(EVIL,)
    ).write(run.path)
    run.mark("stopped", fault=EVIL, substitutions=[asdict(Override(EVIL, EVIL, EVIL, EVIL, EVIL))])
    said = page_of(run)
    assert not said.all("img") and len(said.all("script")) == 1
    assert said.said.count(EVIL) >= 12, "it is shown as it is"
    policy = next(
        meta["content"]
        for meta in said.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_what_other_hands_wrote_into_the_files_costs_no_page(tmp_path):
    _, _, run = made(tmp_path / "run", "survival")
    odd = history(3)
    odd["steps"] += [{"step": "x"}, 7, {"step": 4, "loss": float("nan")}, {"step": 5, "loss": None}]
    odd["epochs"] += [{"epoch": 9}, None]
    (run.path / "training_history.json").write_text(json.dumps(odd))
    (run.path / "demo_outputs").mkdir()
    (run.path / "demo_outputs" / "answers.json").write_text('[{"question": "Why?"}, 3]')
    for name in ("planned.json", "data/report.json"):
        (run.path / name).write_text("[]")
    said = page_of(run)
    assert [step for step, _ in said.curve("training")] == [1, 2, 3] and "Why?" not in said.said


def test_a_pipeline_shows_its_gates_and_who_overruled_them(tmp_path):
    _, plan, run = made(tmp_path / "run", "seven-b")
    guarded = [StageFolder(plan, stage) for stage in plan.stages if stage.gates]
    for folder in guarded:
        metrics = {gate.metric: gate.threshold for gate in folder.stage.gates}
        if folder is guarded[0]:
            metrics["perplexity"] = 99.5
        measured(folder, checkpoint="", metrics=metrics)
    name = guarded[0].stage.name
    said = page_of(run)
    assert (
        f"Gate after {name}: closed" in said.said
        and "perplexity < 15 99.5 missed: it misses the threshold" in said.said
    )
    (guarded[0].path / "promotion.json").unlink(missing_ok=True)
    gates.promote(guarded[0], "Kim", "the sample is too small")
    said = page_of(run)
    assert (
        f"Gate after {name}: open, overruled" in said.said
        and "PROMOTED against its gate by Kim at " in said.said
    )
    assert "the sample is too small missed: perplexity 99.5 (required < 15)" in said.said
    assert (
        "each of 6 stages ended with a better result" in said.said
        and "48 steps in 5.0 min" in said.said
    )
    assert said.said.count("GPU memory of tensors") >= 3


def test_a_failed_run_tells_its_story(tmp_path, monkeypatch):
    _, plan, run = made(tmp_path / "run", "survival")
    for name in ("training_summary.json", "stage.json"):
        (run.path / name).unlink()
    shutil.rmtree(run.path / "best_model")

    def launch(stage, place, progress):
        (run.path / "train.log").write_text("CUDA out of memory\n")
        raise Stop("Training failed. The card is too small.\nLower `micro_batch_size`.")

    monkeypatch.setattr(pipeline, "launch", launch)
    told: list[str] = []
    with pytest.raises(Stop), page.at_the_end(run, told.append):
        pipeline.carry_out(
            plan, list(plan.stages), told.append, lambda: nullcontext(lambda event: None)
        )
    assert told[-1] == f"The result page is {run.path / PAGE}"
    said = read(run.path / PAGE)
    for words in (
        "The run of survival has failed in the stage train, after step 8",
        "The stage train has failed. Training failed. The card is too small.",
        "The same command continues from the last checkpoint. 1 stage of 2 is finished.",
        "The last step on record is 8, with a training loss of 1.0000.",
        "CUDA out of memory",
    ):
        assert words in said.said, words
    assert said.curve("training")[-1] == [8, 1.0]
    monkeypatch.setattr(
        pipeline, "launch", lambda stage, place, progress: leave(plan, stage, versions=VERSIONS)
    )
    pipeline.carry_out(
        plan, list(plan.stages), told.append, lambda: nullcontext(lambda event: None)
    )
    assert not (run.path / PAGE).exists(), "no older page speaks for what is made now"
    assert "What went wrong" not in page_of(run).said, "a fault that was mended is gone"


def test_a_run_on_gpus_leaves_what_was_planned_for_those_that_were_there(tmp_path, monkeypatch):
    recipe = load(ROOT / "recipes" / "survival.yaml", [])[0]
    folder, told = RunFolder(tmp_path / "run"), []
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: (["NVIDIA L40S"], "0"))
    monkeypatch.setattr(
        pipeline,
        "launch",
        lambda stage, place, progress: leave(inference.plan_of(recipe, folder), stage),
    )
    for _ in range(2):
        with page.at_the_end(folder, told.append):
            watch = lambda: nullcontext(lambda event: None)  # noqa: E731
            running.run(recipe, folder, pipeline.Selection(), told.append, watch)
        known = RunManifest.read(folder.path)
        assert [(one.stage, one.gpus) for one in known.foreseen] == [
            ("train", 1)
        ] and not known.full_size
    assert "This run is already done. `--fresh` repeats it." in told
    said = read(folder.path / PAGE).said
    assert "What this machine changed" in said and "machines.nodes 4 1 this machine" in said


def test_what_was_refused_before_it_began_leaves_the_page_alone(tmp_path):
    _, _, run = made(tmp_path / "run", "survival")
    told: list[str] = []
    with pytest.raises(Stop), page.at_the_end(run, told.append):
        raise Stop("not this way")
    assert not told and not (run.path / PAGE).exists()


def test_a_plan_that_is_refused_does_not_replace_that_of_what_lies_there(tmp_path):
    _, plan, run = made(tmp_path / "run", "survival")
    other = translate(
        load(ROOT / "recipes" / "survival.yaml", from_options(["train.seed=7"]))[0], run.place()
    )
    kept: list[str] = []
    for wanted in (plan, other):
        with (
            nullcontext()
            if wanted is plan
            else pytest.raises(Stop, match="of this recipe from before it changed")
        ):
            watch = lambda: nullcontext(lambda event: None)  # noqa: E731
            pipeline.carry_out(
                wanted, list(wanted.stages), kept.append, watch, keep=lambda: kept.append("kept")
            )
    assert kept.count("kept") == 1


def test_runs_stand_on_one_axis_with_what_differs(tmp_path):
    _, _, one = made(tmp_path / "one", "survival")
    _, plan, two = made(tmp_path / "two", "survival", "train.epochs=2")
    leave(plan, plan.stages[-1], (3.0, 0.5), last_training_loss=0.25, versions=VERSIONS)
    said = page_of(one, two)
    a, b = one.shown, two.shown
    assert said.curve(f"{a}, training") == said.curve(f"{b}, training")
    assert f"What differs in the recipes setting {a} {b} train.epochs 4 2 Made by" in said.said
    assert "validation loss at best 1.0000 0.5000" in said.said
    assert "effective batch" not in said.said, "what is the same does not stand in the table"


def test_a_folder_that_was_moved_is_the_same_run(tmp_path):
    _, _, run = made(tmp_path / "run", "survival")
    before = page_of(run).said
    run.path.rename(tmp_path / "elsewhere")
    assert page_of(RunFolder(tmp_path / "elsewhere")).said == before


def test_a_long_run_is_a_small_page_and_keeps_its_peaks(tmp_path):
    _, _, run = made(tmp_path / "run", "survival")
    long = history(20_000)
    long["steps"][4_321]["loss"] = 77.0
    (run.path / "training_history.json").write_text(json.dumps(long))
    said = page_of(run)
    points = said.curve("training")
    assert len(points) <= charts.MOST_POINTS + 2 and [4_322, 77.0] in points
    assert points[0][0] == 1 and points[-1][0] == 20_000
    assert "of many points, only the lowest and highest of each stretch are drawn" in said.said


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-9, 1e-9), (-3.0, 1e12), (5.0, 5.0000001)])
def test_axes_have_a_few_round_marks_whatever_the_values(values):
    curve = Curve("Loss", "nats", {"training": ((1.0, values[0]), (2.0, values[1]))})
    drawn = charts.chart(curve)
    assert 2 <= len(drawn.ys) <= 9 and len(drawn.xs) >= 2
    assert all(charts.TOP <= at <= charts.HEIGHT - charts.BOTTOM for at, _ in drawn.ys)
    _, path, *_ = drawn.lines[0]
    assert "nan" not in path and "inf" not in path


def test_the_command_says_where_the_page_is_and_what_is_no_run(
    tmp_path, recipe_command, golden_message
):
    _, _, run = made(tmp_path / "runs" / "survival", "survival")
    done = recipe_command("report", "runs/survival", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "runs/survival/report.html\n"), done.stderr
    done = recipe_command(
        "report", ROOT / "recipes" / "survival.yaml", "runs/survival", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "report.html\n"), done.stderr
    assert "2 runs side by side" in read(tmp_path / "report.html").said
    done = recipe_command("report", ROOT / "recipes" / "survival.yaml", cwd=tmp_path)
    survival = shlex.quote(str(ROOT / "recipes/survival.yaml"))
    assert f"Next: recipe chat {survival} --page" in done.stderr
    (run.path / "config" / "plan.json").write_text("{")
    for case, folder in (("no plan", "runs/survival"), ("no run", tmp_path)):
        done = recipe_command("report", folder, cwd=tmp_path)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        golden_message(done.stderr, case)


def test_without_its_libraries_a_run_ends_well_and_says_what_to_install(tmp_path, monkeypatch):
    _, _, run = made(tmp_path / "run", "survival")
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    told: list[str] = []
    with page.at_the_end(run, told.append):
        pass
    assert told == [f"The run has no result page: {packaged.install('report')}"]


def test_a_fault_of_the_page_never_ends_a_run(tmp_path, monkeypatch):
    _, _, run = made(tmp_path / "run", "survival")
    monkeypatch.setattr(page, "render", lambda runs: 1 / 0)
    told: list[str] = []
    page.leave(run, told.append)
    assert told == [
        f"The result page failed (ZeroDivisionError: division by zero). `recipe report {run.shown}` tries again."
    ]


@pytest.mark.skipif(browser.found() is None, reason="no Chromium here (apt-get install chromium)")
def test_a_browser_shows_it_without_a_complaint_narrow_wide_and_dark(tmp_path):
    _, plan, run = made(tmp_path / "run", "seven-b")
    home = StageFolder(plan, plan.stages[-1]).path
    (home / "demo_outputs").mkdir()
    answers = [{"question": EVIL, "before": "x" * 300, "after": EVIL}]
    (home / "demo_outputs" / "answers.json").write_text(json.dumps(answers))
    run.mark(
        "finished",
        substitutions=[asdict(Override("train." + "x" * 60, "y" * 90, "z", "test", "w" * 90))],
    )
    page_of(run)
    known = json.loads(
        (StageFolder(plan, plan.stages[2]).path / "training_history.json").read_text()
    )
    with browser.Browser(tmp_path / "profile") as tab:
        papers = {}
        for width, dark in ((360, False), (1200, False), (1200, True)):
            tab.open(run.path / PAGE, width, dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, "nothing sticks out"
            papers[dark] = tab.value("getComputedStyle(document.body).backgroundColor")
        assert papers[True] != papers[False]
        assert (
            tab.value("document.scripts.length") == 1 and tab.value("document.images.length") == 0
        )
        assert EVIL in tab.value("document.querySelector('#answers').innerText")
        tab.value("document.querySelector('figure[data-x0] svg').scrollIntoView()")
        box = tab.value("(() => { const b = document.querySelector('figure[data-x0] svg').getBoundingClientRect(); "
                        "return [b.left, b.top, b.width, b.height] })()")  # fmt: skip
        tab.point_at(box[0] + box[2] * charts.LEFT / charts.WIDTH + 1, box[1] + box[3] / 2)
        first, said = (
            known["steps"][0],
            tab.value("document.querySelector('figure[data-x0] output').innerText"),
        )
        assert said == f"step 0: training {first['loss']:g} (step 1), validation 3"
        tab.value("document.querySelector('figure[data-x0] svg').focus()")
        tab.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
        said = tab.value("document.querySelector('figure[data-x0] output').innerText")
        assert said.startswith("step 1: training 2.75, validation")
        assert not tab.complaints
