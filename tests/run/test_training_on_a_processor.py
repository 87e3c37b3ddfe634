"""`recipe run` without a GPU, for real: engines train recipes that ask for what only GPUs do, and
every command reads the run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from runner.run.run_folder import RunFolder
from tests.conftest import ROOT
from tests.parts.export.runs import base_of


def without_gpu(folder: Path) -> dict[str, str]:
    """The environment of a machine without a GPU, where what it learns of itself is that of this
    test alone."""
    own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG")}
    return {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **own}


def run_here(recipe_command, folder: Path, recipe: dict) -> tuple[str, RunFolder]:
    (folder / "small.yaml").write_text(yaml.safe_dump({"name": "small"} | recipe))
    done = recipe_command("run", "small.yaml", cwd=folder, env=without_gpu(folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "`train` takes about " in done.stdout and "a step took " in done.stdout, (
        "planned, and held against it"
    )
    return done.stdout, RunFolder.at(folder / "runs/small")


def reads(recipe_command, folder: Path, *commands: tuple[str, ...]) -> list[str]:
    said = []
    for command in commands:
        done = recipe_command(*command, cwd=folder, env=without_gpu(folder))
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        said.append(done.stdout)
    return said


@pytest.mark.long
def test_an_adapter_whose_recipe_asks_for_a_gpu_trains_on_the_processor(recipe_command, tmp_path):
    base_of("survival", tmp_path / "base")
    shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", tmp_path / "rows.jsonl")
    data = {"path": "rows.jsonl", "question": "For [topic], [question]", "answer": "[answer]"}
    gpus = {
        "base": "base",
        "precision": "bf16",
        "attention": "flash_attention_2",
        "sequence_len": 256,
    }
    train = {
        "adapter": "qlora",
        "optimizer": "adamw_bnb_8bit",
        "packing": "flatten",
        "cross_entropy": "fused",
    }
    train |= {"epochs": 1, "micro_batch_size": 8, "gradient_accumulation_steps": 1, "lora_rank": 4}
    recipe = {"scenario": "lora", "model": gpus, "data": data, "train": train}
    recipe |= {
        "machines": {"gpu": "NVIDIA-L40S"},
        "demo": {"max_new_tokens": 8},
        "limits": {"time": "5 s"},
    }
    said, run = run_here(recipe_command, tmp_path, recipe)
    for replaced in (
        "bf16 → fp32",
        "flash_attention_2 → sdpa",
        "qlora → lora",
        "adamw_bnb_8bit → adamw_torch",
    ):
        assert replaced in said
    assert run.kind == "run" and run.state.status == "finished" and run.state.processor
    summary = json.loads((run.path / "training_summary.json").read_text())
    assert summary["world_size"] == 1 and summary["steps"] > 2
    assert summary["planned"]["label"] == "processor" and summary["planned"]["seconds"] > 0
    again, *_, why = reads(
        recipe_command,
        tmp_path,
        ("run", "small.yaml"),
        ("ask", "small.yaml", "How do I boil water?"),
        ("evaluate", "small.yaml"),
        ("report", "small.yaml"),
        ("export", "small.yaml"),
        ("compare", "small.yaml"),
        ("check", "small.yaml"),
        ("why", "small.yaml"),
    )
    assert "already done" in again and "trained" in why


def test_a_network_for_images_trains_on_the_processor_with_all_threads(recipe_command, tmp_path):
    shutil.copy(ROOT / "recipes/data/shapes-sample.parquet", tmp_path / "images.parquet")
    data = {"path": "images.parquet", "image_column": "img", "label_column": "label"}
    train = {"epochs": 1, "optimizer": "adamw_torch_fused", "micro_batch_size": 16}
    recipe = {
        "scenario": "image-classification",
        "model": {"width": 8, "precision": "bf16"},
        "data": data,
        "train": train,
    }
    _, run = run_here(
        recipe_command, tmp_path, recipe | {"machines": {"gpu": "NVIDIA-L40S", "gpus_per_node": 2}}
    )
    summary = json.loads((run.path / "training_summary.json").read_text())
    assert summary["world_size"] == 1 and summary["effective_batch_size"] == 16
    reads(recipe_command, tmp_path, ("evaluate", "small.yaml"), ("report", "small.yaml"))


@pytest.mark.parametrize("wanted", ["", "3"])
def test_training_takes_all_processors_unless_the_person_says_otherwise(
    wanted, monkeypatch, tmp_path
):
    from runner.check.validate import load
    from runner.run import launch, this_machine
    from runner.run import run as running
    from runner.run.pipeline import Selection
    from runner.run.run_folder import folder
    from runner.tools.process import cores

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: ([], ""))
    seen: list[dict[str, str]] = []

    def carry_out(plan, *_):
        seen.append(launch.environment(plan.stages[-1], plan.place))
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "carry_out", carry_out)
    known = load(ROOT / "recipes/resnet.yaml")[0]
    with pytest.raises(KeyboardInterrupt):
        running.run(
            known,
            folder("resnet", "run"),
            Selection(),
            lambda line: None,
            None,
            (),
            lambda takes: True,
        )
    assert seen[0]["OMP_NUM_THREADS"] == (wanted or str(cores()))
    assert seen[0]["CUDA_VISIBLE_DEVICES"] == "" and seen[0]["ACCELERATE_USE_CPU"] == "true"
    assert os.environ["OMP_NUM_THREADS"] == wanted
