"""`recipe doctor RECIPE --gpu`: what a few minutes of training take here, beside the plan."""

from __future__ import annotations

import csv
import json

import pytest
import yaml
from datasets import Dataset

from benchmarks import outside
from runner.catalog.hardware import GIB
from runner.check.validate import changed, load
from runner.commands.cli import _code as command
from runner.parts.planner import forecast
from runner.parts.start import measure
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.run.run_folder import RunFolder
from runner.scenarios import place, translate
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
    assert {each: getattr(read, each) for each in same} == {
        each: getattr(one.workload, each) for each in same
    }
    assert (
        read.machines.world_size == one.workload.machines.world_size
        and read.model.id == recipe.model.base
    )
    assert (row.said("allocated_gib"), row.said("reserved_gib"), row.said("driver_gib")) == (
        30.0,
        32.0,
        33.0,
    )
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


GPU = ["NVIDIA H100 80GB HBM3"]


def test_a_measurement_keeps_the_settings_of_the_recipe_on_these_gpus(tmp_path):
    """Another card, fewer of them; but the same batch on each, the same technique, kernels and
    attention."""
    recipe, _ = planned("survival")
    own = measure.Measured(GPU, tmp_path)
    here = changed(recipe, own.before_data(recipe, None))[0]
    assert (here.machines.gpu, here.machines.nodes, here.machines.gpus_per_node) == (
        "NVIDIA-H100-80GB-HBM3",
        1,
        1,
    )
    assert (
        here.model.plain() == recipe.model.plain()
        and here.data.hub is None
        and not here.settings.get("gates")
    )
    same = {
        key: value for key, value in recipe.train.plain().items() if key != "effective_batch_size"
    }
    assert same.items() <= here.train.plain().items()


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpa"])
@pytest.mark.parametrize("name", ["survival", "lyrics"])
def test_on_a_gpu_a_measurement_trains_with_the_recipe_s_own_attention(name, attention, tmp_path):
    """FlashAttention has never run on a GPU of the project's: who has one finds out with this
    command."""
    recipe, _ = planned(name, f"model.attention={attention}")
    here = changed(recipe, measure.Measured(GPU, tmp_path).before_data(recipe, None))[0]
    (trained,) = [stage for stage in translate(here, place(here)).stages if stage.trains]
    assert trained.config["attn_implementation"] == attention


def test_images_are_random_ones_of_the_recipes_size_and_classes(tmp_path):
    recipe, _ = planned(
        "resnet",
        "data.hub=nobody/has-it",
        "model.classes=700",
        "model.image_size=16",
        "train.micro_batch_size=1000",
    )
    here = changed(recipe, measure.Measured(GPU, tmp_path).before_data(recipe, None))[0]
    assert (
        here.model.plain() == recipe.model.plain()
        and here.data.hub is None
        and here.data.test_split is None
    )
    rows = Dataset.from_parquet(here.data.path, cache_dir=str(tmp_path / "cache"))
    assert rows[0][recipe.data.image_column].size == (16, 16) and set(
        rows[recipe.data.label_column]
    ) == set(range(700))
    assert len(rows) * (1 - recipe.data.validation_share) > 2 * 1000, "two full batches"


LARGEST = {
    "minimal/stages": "dpo",
    "domain": "text",
    "minimal/from-scratch": "pretrain-2048",
    "resnet": "train",
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_stage_that_needs_the_most_memory_is_measured(name, tmp_path):
    recipe, _, _ = load(RECIPES / f"{name}.yaml")
    assert (
        measure.stage_of(recipe, RunFolder(tmp_path, "measurement"), None).stage.name
        == LARGEST[name]
    )


@pytest.mark.parametrize(
    ("name", "stage"),
    [("seven-b", stage) for stage in ("pretrain-1024", "sft", "dpo", "lora")]
    + [("sft-dpo", "sft")],
)
def test_every_stage_can_be_measured_as_a_recipe_of_its_own(name, stage, tmp_path):
    """The same memory as in its place in the whole recipe, with the machines of the recipe."""
    recipe, _, _ = load(RECIPES / f"{name}.yaml")
    whole, run = measure.stage_of(recipe, RunFolder(tmp_path, "measurement"), stage), tmp_path
    one = recipe.of_stage(stage)
    blocks = 1024 if stage == "pretrain-1024" else 0
    made = measure.Measured(GPU * whole.stage.machines.world_size, run, blocks).before_data(
        one, None
    )
    # The sample's rows have other lengths than the data set's.
    kept = [change for change in made if not change.setting.startswith(("machines.", "data."))]
    here = changed(one, kept)[0]
    (alone,) = forecast.of(here, translate(here, place(here)), look=False)
    assert alone.stage.name in (stage, "train") and alone.memory.total == pytest.approx(
        whole.memory.total, rel=0.05
    )


@pytest.mark.parametrize("name", ["seven-b", "resnet", "sft-dpo"])
def test_what_cannot_be_measured_is_refused(name, capsys, tmp_path, monkeypatch, golden_message):
    monkeypatch.chdir(tmp_path)
    for stage, code in (("data", 1), ("trian", 2)):
        assert command(["doctor", str(RECIPES / f"{name}.yaml"), "--gpu", "--stage", stage]) == code
    golden_message(capsys.readouterr().err)


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
def test_a_measurement_trains_random_weights_in_full_size_and_the_next_plan_knows_its_pace(
    tmp_path, recipe_command
):
    base_of("survival", tmp_path / "own-model")
    sizes = json.loads((tmp_path / "own-model" / "config.json").read_text())
    rows = {
        "path": str(RECIPES / "data" / "survival-sample.jsonl"),
        "question": "[question]",
        "answer": "[answer]",
    }
    machines = {"gpu": "NVIDIA-L40S"}
    written = {
        "scenario": "lora",
        "name": "own",
        "model": {"base": "own-model"},
        "data": rows,
        "machines": machines,
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(written))
    home = tmp_path / "config"
    env = without_gpu(tmp_path) | {
        "XDG_CONFIG_HOME": str(home),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = recipe_command("doctor", "own.yaml", "--gpu", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This machine has no GPU, so its CPU is measured." in done.stdout
    assert "train: a step took " in done.stdout and " instead of the planned " in done.stdout
    run = tmp_path / "runs" / "own-measurement"
    made = json.loads((run / "base_model" / "config.json").read_text())
    shape = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
    )
    assert [made[each] for each in shape] == [sizes[each] for each in shape]
    steps = json.loads((run / "training_summary.json").read_text())["steps"]
    assert 0 < steps <= measure.ENOUGH_STEPS
    (kept,) = json.loads((home / "recipe-runner" / "learned.json").read_text())["runs"]
    assert kept["gpu"] == "processor" and kept["seconds"] > 0 and kept["planned"] > 0
    assert not [
        file for file in run.rglob("*") if file.is_file() and file.stat().st_size > measure.LARGE
    ]
    # Nobody takes it for a run of the recipe.
    assert "no run" in recipe_command("report", "own.yaml", cwd=tmp_path, env=env).stderr.lower()


def small(name: str, **sections):
    return {"name": name, "machines": {"gpu": "NVIDIA-L40S"}, **sections}


def measured_here(recipe_command, folder, recipe, *options: str) -> str:
    (folder / "own.yaml").write_text(yaml.safe_dump(recipe))
    done = recipe_command(
        "doctor", "own.yaml", "--gpu", *options, cwd=folder, env=without_gpu(folder)
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This machine has no GPU, so its CPU is measured." in done.stdout
    (kept,) = json.loads((folder / "config" / "recipe-runner" / "learned.json").read_text())["runs"]
    assert kept["gpu"] == "processor" and kept["seconds"] > 0 and kept["planned"] > 0
    run = folder / "runs" / f"{recipe['name']}-measurement"
    assert not [
        file for file in run.rglob("*") if file.is_file() and file.stat().st_size > measure.LARGE
    ]
    return done.stdout


def test_a_measurement_of_images_needs_none(tmp_path, recipe_command):
    network = {"width": 8, "image_size": 16, "classes": 3}
    recipe = small(
        "own", scenario="image-classification", model=network, data={"hub": "nobody/has-it"}
    )
    said = measured_here(recipe_command, tmp_path, recipe)
    assert "images in                2,000" in said and "train: a step took " in said


@pytest.mark.long
def test_a_measurement_of_several_stages_trains_the_largest_alone(tmp_path, recipe_command):
    base_of("survival", tmp_path / "own-model")
    rows = {
        "path": str(RECIPES / "data" / "survival-sample.jsonl"),
        "question": "[question]",
        "answer": "[answer]",
    }
    train = {"micro_batch_size": 1, "gradient_accumulation_steps": 1}
    stages = [
        {
            "name": "one",
            "technique": "lora",
            "data": rows,
            "train": train,
            "gates": ["perplexity < 2"],
        },
        {
            "name": "two",
            "technique": "full",
            "data": rows,
            "train": train,
            "gates": ["perplexity < 2"],
        },
    ]
    recipe = small(
        "own", scenario="stages", model={"base": "own-model", "sequence_len": 256}, stages=stages
    )
    said = measured_here(
        recipe_command, tmp_path, recipe, "--set", "stages.1.train.micro_batch_size=2"
    )
    assert (
        "Stage `two` is measured." in said
        and "train: a step took " in said
        and "gate" not in said.split("data:")[1]
    )


@pytest.mark.long
@pytest.mark.parametrize(("stage", "trained"), [(None, "pretrain-128"), ("sft", "train")])
def test_a_measurement_of_a_pipeline_trains_a_context_length_or_a_stage_after_it(
    stage, trained, tmp_path, recipe_command
):
    data, gates, batch = (
        RECIPES / "data",
        ["perplexity < 2"],
        {"micro_batch_size": 2, "gradient_accumulation_steps": 1},
    )
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "layers": 2,
        "attention_heads": 2,
        "key_value_heads": 2,
    }
    lengths = [{"sequence_len": 64, "until": 0.5}, {"sequence_len": 128, "until": 1}]
    questions = {
        "path": str(data / "seven-b-questions.jsonl"),
        "question": "[instruction]",
        "answer": "[response]",
    }
    recipe = small(
        "own",
        scenario="stages",
        stages=[
            {
                "name": "pretrain",
                "technique": "pretrain",
                "model": {**shape, "vocabulary": 2048, "context": 256},
                "tokenizer": {"vocabulary": 1024},
                "data": {"path": str(data / "seven-b-text.jsonl")},
                "train": {"steps": 2000, "curriculum": lengths, **batch},
                "gates": gates,
            },
            {
                "name": "sft",
                "technique": "full",
                "model": {"sequence_len": 64},
                "data": questions,
                "train": batch,
                "gates": gates,
            },
        ],
    )
    said = measured_here(recipe_command, tmp_path, recipe, *(["--stage", stage] if stage else []))
    assert f"Stage `{stage or trained}` is measured." in said and f"{trained}: a step took " in said
