"""`recipe rehearse --model`: a real model, small enough for this machine, in place of the twin."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.commands.cli import _code as command
from runner.data.prepared import Lengths, PreparedRows
from runner.parts.planner import processor
from runner.run import run as running
from runner.run.run_folder import StageFolder
from runner.tools.files import cache_folder, write_json
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.export.runs import base_of
from tests.run.test_training_on_a_processor import without_gpu


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    """A recipe for a GPU, whose rows are here and whose model is not."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", tmp_path / "rows.jsonl")
    data = {"path": "rows.jsonl", "question": "For [topic], [question]", "answer": "[answer]"}
    train = {
        "adapter": "qlora",
        "optimizer": "adamw_bnb_8bit",
        "packing": "flatten",
        "epochs": 2,
        "eval_steps": 40,
        "save_steps": 40,
    }
    written = {
        "scenario": "lora",
        "name": "own",
        "model": {"base": "microsoft/Phi-4-mini-instruct", "attention": "flash_attention_2"},
        "data": data,
    }
    written |= {"train": train, "machines": {"gpu": "NVIDIA-L40S"}, "demo": {"max_new_tokens": 8}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(written))
    return tmp_path / "own.yaml"


@pytest.mark.heavy
@pytest.mark.long
def test_a_folder_with_a_model_is_trained_instead_of_a_twin(recipe, recipe_command):
    model = base_of("survival", recipe.parent / "small-model")
    done = recipe_command(
        "rehearse",
        recipe.name,
        "--model",
        "small-model",
        cwd=recipe.parent,
        env=without_gpu(recipe.parent),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search("model.base: microsoft/Phi-4-mini-instruct → .*real model", done.stdout)
    for replaced in ("qlora → lora", "adamw_bnb_8bit → adamw_torch"):
        assert replaced in done.stdout
    assert "twin" not in done.stdout and "tiny" not in done.stdout + done.stderr
    assert "`train` takes about " in done.stdout, (
        "the plan of this processor chooses how much is trained"
    )
    assert "with a real model" in done.stderr
    run = recipe.parent / "runs/own-rehearsal-real"
    summary = json.loads((run / "training_summary.json").read_text())
    assert summary["best_validation_loss"] < summary["first_validation_loss"]
    assert not (run / "base_model").exists()
    assert json.loads((run / "demo.json").read_text())["base_model"] == str(model)
    page = (run / "report.html").read_text()
    assert "twin" not in page and "small-model" in page
    asked = recipe_command("ask", recipe.name, "How do I boil water?", "--base", cwd=recipe.parent)
    assert f"The model that `train` started from in this rehearsal: {model}" in asked.stdout


@pytest.mark.parametrize(("tflops", "asked"), [(0.005, True), (50.0, False)])
def test_a_real_model_gets_its_minutes_and_above_fifteen_the_person_is_asked(
    recipe, tflops, asked, monkeypatch, capsys, golden_message
):
    """The small model is trained as long as the recipe says, however slow the processor is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(recipe.parent / "cache"))
    card = Gpu(
        PROCESSOR,
        "Some with 4 threads",
        64,
        64.0,
        "0.0",
        90.0,
        "host",
        1.0,
        "torch 2",
        fp32_tflops=tflops,
    )
    cache_folder().mkdir(parents=True)
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    trained = []

    def carry_out(plan, stages, *_):
        if "train" in (stage.name for stage in stages):
            trained.append(plan.stage("train").config["num_epochs"])
            raise Stop("Training begins.")
        PreparedRows(train_rows=240, validation_rows=20, lengths=Lengths(270.0, 20.0, 300.0)).write(
            Path(plan.place.data_dir)
        )
        StageFolder(plan, plan.stages[0]).mark("finished")

    monkeypatch.setattr(running, "carry_out", carry_out)
    assert command(["rehearse", "own.yaml", "--model", "small"]) == 1
    if asked:
        assert trained == []
        golden_message(capsys.readouterr().err)
    assert command(["rehearse", "own.yaml", "--model", "small", "--yes"]) == 1
    assert set(trained) == {2}, "the epochs of the recipe"


def test_a_folder_without_a_model_is_explained(recipe, capsys, golden_message):
    assert command(["rehearse", "own.yaml", "--model", "no-model"]) == 1
    golden_message(capsys.readouterr().err, "no-model")
    assert command(["rehearse", str(ROOT / "recipes/resnet.yaml"), "--model", "no-model"]) == 1
    golden_message(capsys.readouterr().err, "a recipe without a base model")
