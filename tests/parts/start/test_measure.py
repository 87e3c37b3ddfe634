"""`recipe doctor RECIPE --gpu`: what a few minutes of training take here, beside the plan."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from benchmarks import outside
from runner.check.validate import changed, load
from runner.commands.cli import _code as command
from runner.parts.planner import forecast
from runner.parts.planner.constants import GIB
from runner.parts.start import measure
from runner.recipe.overrides import Override, from_options
from runner.render import place
from runner.scenarios import translate
from runner.trainer.records import Summary
from tests.conftest import ROOT
from tests.parts.export.runs import base_of
from tests.run.test_training_on_a_processor import without_gpu

RECIPES = ROOT / "recipes"


def planned(name: str, *options: str):
    recipe, _, _ = load(RECIPES / f"{name}.yaml", from_options(options))
    (one,) = forecast.of(recipe, translate(recipe, place(recipe)), look=False)
    return recipe, one


TAKEN = Summary(
    gpu="NVIDIA L40S", total_parameters=5, step_seconds=2.0, gpu_memory_gib=30.0, gpu_reserved_gib=32.0, gpu_driver_gib=33.0
)  # fmt: skip
MEASURABLE = ("lyrics", "gemma", "minimal/lora", "minimal/full", "minimal/causal-lm")


@pytest.mark.parametrize("name", MEASURABLE)
def test_the_public_line_is_read_back_as_the_same_run(name):
    recipe, one = planned(name)
    (cells,) = csv.reader([measure.public_line(recipe, one, TAKEN)])
    header = next(csv.reader(outside.ROWS.open(encoding="utf-8")))
    row = outside.Row(dict(zip(header, cells, strict=True)))
    read = outside.workload(row, outside.model_of(row, [outside.MODELS]))
    same = [
        "adapter",
        "precision",
        "fp8",
        "attention",
        "checkpointing",
        "most_tokens",
        "micro_batch_size",
        "accumulation",
        "optimizer",
    ]
    same += ["sharding", "fused_loss", "compile", "packing", "expandable_segments"]
    assert {each: getattr(read, each) for each in same} == {each: getattr(one.workload, each) for each in same}
    assert read.machines.world_size == one.workload.machines.world_size and read.model.id == recipe.model.base
    assert (row.said("allocated_gib"), row.said("reserved_gib"), row.said("driver_gib")) == (30.0, 32.0, 33.0)
    tokens = row.said("tokens_per_s_per_gpu")
    assert tokens and tokens * 2.0 <= one.workload.most_tokens * one.workload.effective_batch_size
    assert outside.replay(row, [outside.MODELS]).planned["allocated"] == pytest.approx(
        one.memory.tensors / GIB, rel=0.1
    )


def test_the_public_line_has_nothing_private(tmp_path):
    base_of("survival", tmp_path / "secret")
    recipe, one = planned("minimal/lora", f"model.base={tmp_path / 'secret'}")
    assert measure.public_line(recipe, one, TAKEN) == ""
    recipe, one = planned("minimal/lora", "name=secret", "data.hub=secret/rows")
    line = measure.public_line(recipe, one, TAKEN)
    assert "NVIDIA-L40S" in line and "secret" not in line


def test_what_the_table_has_no_columns_for_has_no_public_line():
    assert measure.public_line(*planned("minimal/lora"), Summary(step_seconds=2.0)) == "", "no GPU"
    assert measure.public_line(*planned("survival"), TAKEN) == "", "last layers"


def test_a_measurement_keeps_the_settings_of_the_recipe_on_these_gpus():
    """Another card, fewer of them; but the same batch on each, the same technique, kernels and attention."""
    recipe, _ = planned("survival")
    own = measure.Measured(["NVIDIA H100 80GB HBM3"])
    here = changed(recipe, own.before_data(recipe, None))[0]
    assert (here.machines.gpu, here.machines.nodes, here.machines.gpus_per_node) == ("NVIDIA-H100-80GB-HBM3", 1, 1)
    assert here.model.plain() == recipe.model.plain() and here.data.hub is None and not here.settings.get("gates")
    same = {key: value for key, value in recipe.train.plain().items() if key != "effective_batch_size"}
    assert same.items() <= here.train.plain().items()


@pytest.mark.parametrize("name", ["seven-b", "resnet", "sft-dpo"])
def test_what_cannot_be_measured_is_refused(name, capsys, tmp_path, monkeypatch, golden_message):
    monkeypatch.chdir(tmp_path)
    assert command(["doctor", str(RECIPES / f"{name}.yaml"), "--gpu"]) == 1
    golden_message(capsys.readouterr().err)
    assert not list(tmp_path.glob("runs/*"))


def test_a_measurement_needs_a_recipe(capsys, golden_message):
    assert command(["doctor", "--gpu"]) == 1
    golden_message(capsys.readouterr().err)


def test_what_is_too_large_for_this_machine_is_refused_before_it_trains(golden_message):
    recipe, _, _ = load(RECIPES / "minimal" / "full.yaml")
    large = [Override("model.base", None, "Qwen/Qwen2.5-7B-Instruct", "")]
    here = changed(recipe, large)[0]
    (one,) = forecast.of(here, translate(here, place(here)), look=False)
    with pytest.raises(Exception) as stopped:
        measure._require_memory(one)
    golden_message(stopped.value)


@pytest.mark.long
def test_a_measurement_trains_random_weights_in_full_size_and_the_next_plan_knows_its_pace(tmp_path, recipe_command):
    base_of("survival", tmp_path / "small")
    sizes = json.loads((tmp_path / "small" / "config.json").read_text())
    rows = {"path": str(RECIPES / "data" / "survival-sample.jsonl"), "question": "[question]", "answer": "[answer]"}
    machines = {"gpu": "NVIDIA-L40S"}
    written = {"scenario": "lora", "name": "own", "model": {"base": "small"}, "data": rows, "machines": machines}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(written))
    home = tmp_path / "config"
    env = without_gpu(tmp_path) | {"XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = recipe_command("doctor", "own.yaml", "--gpu", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This machine has no GPU, so its CPU is measured." in done.stdout
    assert "train: a step took " in done.stdout and " instead of the planned " in done.stdout
    run = tmp_path / "runs" / "own-measurement"
    made = json.loads((run / "base_model" / "config.json").read_text())
    shape = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
    assert [made[each] for each in shape] == [sizes[each] for each in shape]
    steps = json.loads((run / "training_summary.json").read_text())["steps"]
    assert 0 < steps <= measure.ENOUGH_STEPS
    (kept,) = json.loads((home / "recipe-runner" / "learned.json").read_text())["runs"]
    assert kept["gpu"] == "processor" and kept["seconds"] > 0 and kept["planned"] > 0
    assert not [file for file in run.rglob("*") if file.is_file() and file.stat().st_size > measure.LARGE]
    # Nobody takes it for a run of the recipe.
    assert "no run" in recipe_command("report", "own.yaml", cwd=tmp_path, env=env).stderr.lower()
