"""Asking, comparing and reporting of runs, one stage or several, by what the stages have left."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.check.validate import load
from runner.parts.evaluate import commands, gates
from runner.plan import Plan
from runner.recipe.recipe import Override
from runner.run import inference, pipeline
from runner.run.run import report
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools.problem import Stop
from runner.trainer.records import elapsed_seconds
from tests.conftest import RECIPES, ROOT
from tests.stages import finish, leave, measured, model_folder, plan_in

SEVEN_B, SURVIVAL, RESNET = (
    ROOT / "recipes" / f"{name}.yaml" for name in ("seven-b", "survival", "resnet")
)


def run_of(folder: Path, recipe: str) -> Plan:
    RunFolder(folder).mark("running", recipe=recipe)
    plan = plan_in(folder, recipe)
    finish(plan)
    return plan


def folder_of(plan: Plan, name: str) -> StageFolder:
    return StageFolder(plan, plan.stage(name))


def test_the_last_stage_that_has_left_a_model_is_asked(tmp_path):
    recipe, plan = load(SEVEN_B)[0], run_of(tmp_path, "seven-b")
    assert inference.newest(plan).stage.name == "lora"
    for name in ("lora", "dpo"):
        folder_of(plan, name).clear()
        folder_of(plan, name).mark("running")
    assert inference.newest(plan).stage.name == "sft"
    before, after = inference.models(recipe, inference.newest(plan))
    assert (before.model, after.model) == (
        f"{tmp_path}/pretrain-2048/best_model",
        f"{tmp_path}/sft/best_model",
    )
    assert after.chat and after.tokenizer == before.tokenizer == after.model
    _, text = inference.models(recipe, folder_of(plan, "pretrain-512"))
    assert not text.chat and text.turn_end == "<|endoftext|>"
    with pytest.raises(Stop, match="`init` has no model that could answer"):
        inference.models(recipe, folder_of(plan, "init"))


def test_what_its_time_limit_has_ended_can_be_asked(tmp_path):
    plan = run_of(tmp_path, "seven-b")
    folder_of(plan, "lora").clear()
    leave(plan, plan.stage("lora"))
    folder_of(plan, "lora").mark("out of time")
    assert inference.newest(plan).stage.name == "lora"


def test_a_run_of_one_training_is_asked_in_the_same_way(tmp_path):
    recipe, plan = load(SURVIVAL)[0], run_of(tmp_path, "survival")
    assert inference.newest(plan).stage.name == "train"
    before, after = inference.models(recipe, inference.newest(plan))
    assert (before.model, after.model) == (recipe.model.base, f"{tmp_path}/best_model")
    assert after.max_new_tokens == recipe.demo.max_new_tokens
    with pytest.raises(Stop, match="`data` has no model"):
        inference.models(recipe, folder_of(plan, "data"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_run_that_has_trained_nothing_yet_says_how_to_go_on(path, tmp_path):
    RunFolder(tmp_path).mark("running")
    with pytest.raises(Stop) as stop:
        inference.newest(plan_in(tmp_path, path.stem))
    assert (
        "no trained model yet" in stop.value.text
        and "It continues where it stopped." in stop.value.text
    )


def test_the_settings_of_training_are_no_model(tmp_path):
    RunFolder(tmp_path).mark("running")
    plan = plan_in(tmp_path, "survival")
    (tmp_path / "best_model").mkdir()
    (tmp_path / "best_model" / "training_args.bin").write_bytes(b"settings")
    assert not folder_of(plan, "train").has_trained
    with pytest.raises(Stop, match="no trained model yet"):
        inference.newest(plan)


def test_a_model_is_loaded_once_for_all_questions(tmp_path, monkeypatch):
    run_of(tmp_path, "survival")
    loaded = []

    def loads(chat):
        loaded.append(chat.model)
        return SimpleNamespace(answer=str.upper)

    monkeypatch.setattr(inference, "load", loads)
    rows = commands.compared(load(SURVIVAL)[0], [RunFolder(tmp_path)], ["Why?", "How?"])
    assert [texts for _, what, texts in rows if what.startswith("answer to")] == [
        ("WHY?",),
        ("HOW?",),
    ]
    assert loaded == [f"{tmp_path}/best_model"]


def test_a_model_of_images_is_asked_nothing_in_words(tmp_path):
    plan = plan_in(tmp_path, "resnet")
    (tmp_path / "best_model.pth").write_text("weights")
    assert inference.newest(plan).stage.name == "train"
    with pytest.raises(Stop, match="classifies images"):
        inference.models(load(RESNET)[0], inference.newest(plan))


def test_a_run_that_was_moved_or_fetched_still_knows_what_each_stage_began_with(tmp_path):
    run_of(tmp_path / "there", "seven-b")
    (tmp_path / "there").rename(tmp_path / "here")
    plan = plan_in(tmp_path / "here", "seven-b")
    before, after = inference.models(load(SEVEN_B)[0], folder_of(plan, "sft"))
    assert before.model == f"{tmp_path}/here/pretrain-2048/best_model"
    assert after.model == f"{tmp_path}/here/sft/best_model"


def test_a_run_whose_base_model_lay_on_a_claim_is_asked_with_the_one_of_the_hub(tmp_path):
    recipe, plan = load(SURVIVAL)[0], run_of(tmp_path, "survival")
    demo = json.loads((tmp_path / "demo.json").read_text())
    (tmp_path / "demo.json").write_text(
        json.dumps(demo | {"base_model": "/claim/base-models/it", "revision": "main"})
    )
    before, _ = inference.models(recipe, inference.newest(plan))
    assert (before.model, before.revision) == (recipe.model.base, recipe.model.revision)


@pytest.mark.parametrize("recipe", ["survival", "seven-b"])
def test_a_stage_that_is_not_there_is_said_with_the_ones_that_are(recipe, recipe_command, tmp_path):
    run_of(tmp_path / "run", recipe)
    done = recipe_command(
        "ask",
        ROOT / "recipes" / f"{recipe}.yaml",
        "Why?",
        "--stage",
        "dada",
        "--run",
        tmp_path / "run",
    )
    assert done.returncode == 2
    assert "no stage `dada`" in done.stderr and "`data`" in done.stderr


@pytest.mark.parametrize(
    "verb", [("ask", "Why?", "--stage", "dada"), ("gate", "dada"), ("evaluate", "dada")]
)
def test_a_run_can_be_looked_at_when_its_data_file_is_gone(verb, recipe_command, tmp_path):
    """Else a person whose rows have moved could not ask the model that they trained."""
    run_of(tmp_path / "run", "survival")
    gone = (
        "--set",
        "data.path=gone.csv",
        "--set",
        "data.hub=",
        "--set",
        "data.split=",
        "--set",
        "data.revision=",
    )
    done = recipe_command(
        verb[0], ROOT / "recipes/survival.yaml", *verb[1:], *gone, "--run", tmp_path / "run"
    )
    assert "no stage `dada`" in done.stderr and "gone.csv` does not exist" not in done.stderr


@pytest.mark.parametrize(
    ("file", "facts"),
    [
        ("training_summary.json", {"steps": "many", "total_parameters": 0, "best_accuracy": 0.5}),
        (
            "training_summary.json",
            {"tokens": [7], "time_limit": {"reached": True}, "last_validation_loss": "low"},
        ),
        (
            "training_summary.json",
            {"time_limit": {"reached": "no", "limit_seconds": None}, "changes": [1]},
        ),
        ("time_limit.json", {"limit_seconds": 7}),
        ("time_limit.json", {"used_seconds": "long"}),
        ("stage.json", {"outputs": {"best_model/model.safetensors": 7}, "status": "finished"}),
        (
            "run.json",
            {"substitutions": [{"setting": "train.epochs", "after": 2, "mood": "good"}, 7]},
        ),
        ("run.json", {"substitutions": {"setting": 7}, "recipe": ["survival"], "status": None}),
    ],
)
def test_a_record_without_sense_counts_for_nothing_and_ends_in_no_trace(tmp_path, file, facts):
    plan = run_of(tmp_path, "survival")
    (tmp_path / file).write_text(
        json.dumps(
            json.loads((tmp_path / file).read_text()) | facts
            if file in ("stage.json", "training_summary.json")
            else facts
        )
    )
    recipe, run = load(SURVIVAL)[0], RunFolder(tmp_path)
    commands.compared(recipe, [run])
    "\n".join(report(inference.plan_of(recipe, run)))
    folder = folder_of(plan, "train")
    pipeline.decision_on(folder)
    "\n".join(pipeline.finish(folder))
    assert elapsed_seconds([tmp_path]) == 0


def test_a_moved_rehearsal_has_its_tiny_model_where_it_lies_now(tmp_path):
    there, here = RunFolder(tmp_path / "there", "rehearsal"), tmp_path / "here"
    rebuilt = model_folder(there.path / "base_model")
    made = [Override("model.base", None, str(rebuilt), "rehearsal", "a tiny twin")]
    there.mark("running", recipe="survival", **there.made_with([], made))
    recipe = load(SURVIVAL)[0]
    assert inference.plan_of(recipe, there).stage("train").config["base_model"] == str(rebuilt)
    there.path.rename(here)
    run = RunFolder.at(here)
    assert inference.plan_of(recipe, run).stage("train").config["base_model"] == str(
        here / "base_model"
    )
    shutil.copytree(here, there.path)
    assert inference.plan_of(recipe, run).stage("train").config["base_model"] == str(
        here / "base_model"
    ), "also beside the old one"


def cells(rows: list[commands.ComparedLine], stage: str) -> dict[str, tuple[str, ...]]:
    return {what: texts for of, what, texts in rows if of == stage}


def test_a_run_of_another_recipe_is_named(tmp_path):
    """Its changes may not fit this recipe."""
    run = run_of(tmp_path / "run", "gemma") and RunFolder(tmp_path / "run")
    run.mark("running", substitutions=[{"setting": "nodes", "after": {}, "by": "a test"}])
    with pytest.raises(Stop, match=r"/run` is a run of the recipe `gemma`\.\nName that recipe\."):
        inference.plan_of(load(SURVIVAL)[0], run)


def test_two_runs_of_one_training_are_compared(tmp_path, recipe_command):
    runs = [tmp_path / "one", tmp_path / "two"]
    for folder, losses in zip(runs, ((3.0, 1.0), (3.0, 2.0)), strict=True):
        leave(run_of(folder, "survival"), plan_in(folder, "survival").stage("train"), losses)
    rows = commands.compared(load(SURVIVAL)[0], [RunFolder(folder) for folder in runs])
    assert cells(rows, "train")["validation loss"] == ("3 → 1", "3 → 2")
    assert cells(rows, "train")["state"] == ("finished", "finished")
    assert not cells(rows, "data"), "what trains nothing has nothing to compare"
    done = recipe_command("compare", SURVIVAL, "--run", runs[0], "--with", runs[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 → 1" in done.stdout and "3 → 2" in done.stdout


@pytest.mark.parametrize("recipe", ["seven-b", "resnet"])
def test_runs_of_recipes_that_name_no_questions_are_compared_by_what_they_measured(
    recipe, recipe_command, tmp_path
):
    run_of(tmp_path, recipe)
    path = ROOT / "recipes" / f"{recipe}.yaml"
    for other in ((), ("--with", tmp_path)):
        done = recipe_command("compare", path, "--run", tmp_path, *other)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "validation loss" in done.stdout and "3 → 1" in done.stdout


def test_metrics_gates_and_overrides_of_several_runs_stand_side_by_side(tmp_path):
    one, two = run_of(tmp_path / "one", "seven-b"), run_of(tmp_path / "two", "seven-b")
    metrics = {
        "perplexity": 20.0,
        "generated_tokens": 16,
        "regression.lm_eval.hellaswag.acc_norm": 0.0,
    }
    for plan in (one, two):
        measured(folder_of(plan, "sft"), metrics=metrics)
    gates.promote(folder_of(two, "sft"), "Ada Lovelace", "the demo is tomorrow")
    rows = commands.compared(
        load(SEVEN_B)[0], [RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")]
    )
    assert list(dict.fromkeys(of for of, _, _ in rows)) == [
        stage.name for stage in one.stages if stage.trains
    ]
    sft = cells(rows, "sft")
    assert sft["perplexity"] == ("20", "20")
    assert all(text.startswith("MISSED: 20") for text in sft["gate perplexity < 15"])
    assert sft["promotion"][0] == "" and "Ada Lovelace" in sft["promotion"][1]
    assert cells(rows, "lora")["gate generated_tokens >= 1"][0].startswith(
        "MISSED: no evaluation was recorded"
    )


def test_a_run_is_asked_with_what_this_machine_has_put_in_its_place(tmp_path):
    run = RunFolder(tmp_path, "rehearsal")
    run.mark(
        "running", **run.made_with([], [Override("train.epochs", 4, 9, "rehearsal", "few rows")])
    )
    assert inference.plan_of(load(SURVIVAL)[0], run).stage("train").config["num_epochs"] == 9


def test_the_report_tells_of_one_training_everything_and_of_several_a_line_each(tmp_path):
    one, several = run_of(tmp_path / "one", "survival"), run_of(tmp_path / "several", "seven-b")
    rows = [{"question": "Why?", "before": "", "after": "Because of the tide."}]
    (tmp_path / "one" / "demo_outputs").mkdir()
    (tmp_path / "one" / "demo_outputs" / "answers.json").write_text(json.dumps(rows))
    said = "\n".join(report(one))
    assert (
        "trained 3 of 3 parameters" in said
        and "validation loss 3.000 → 1.000, 66.7% better" in said
    )
    assert re.search(
        r"^Why\?\nbefore: +after:\n\(nothing\) +Because of the tide\.$", said, re.MULTILINE
    )
    assert said.endswith(f"All results are in {tmp_path}/one/")
    lines = list(report(several))
    trained = [stage.name for stage in several.stages if stage.trains]
    assert [line.split()[0] for line in lines if "validation loss" in line] == trained
    assert any(
        f"7 of {several.facts['tokens_in_all']:,} tokens trained on, up to pretrain-2048" in line
        for line in lines
    )
