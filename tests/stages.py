"""Runs whose stages look finished, without any training: what reads records needs no more."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from runner import catalog
from runner.check.validate import load
from runner.parts.evaluate import gates, seal
from runner.plan import Plan, Stage
from runner.recipe.overrides import from_options
from runner.run.run_folder import RunFolder, StageFolder, inputs
from runner.scenarios import translate
from runner.tools.files import write_json
from runner.tools.run_files import DEMO, EVALUATION
from runner.trainer.records import Summary
from runner.trainer.settings import Demo
from tests.conftest import ROOT


def plan_in(folder: Path, recipe: str, *options: str, **place: Any) -> Plan:
    """The plan of a recipe of this project in a run folder. place: what its place has besides."""
    known, _, _ = load(ROOT / "recipes" / f"{recipe}.yaml", from_options(options))
    return translate(known, replace(RunFolder(folder).place(), **place))


def finish(plan: Plan, *names: str) -> None:
    """Leaves what a stage leaves and its record, for the stages named, else for all."""
    for stage in plan.stages:
        if stage.name in names or not names:
            folder = StageFolder(plan, stage)
            leave(plan, stage)
            facts = {
                "inputs": inputs(plan, stage),
                "keys": dict(stage.keys),
                "outputs": folder.outputs(),
            }
            folder.mark("finished", **facts)


def leave(
    plan: Plan, stage: Stage, losses: tuple[float, float] = (3.0, 1.0), **summary: Any
) -> None:
    """The files of a stage: rows for each one that reads them, or weights of its own name, with a
    summary where it trains."""
    folder = StageFolder(plan, stage)
    if folder.prepares:
        for other in plan.stages:
            for name in other.reads.get(stage.name, ("",)) or ("",):
                file = folder.results / (name if name.endswith(".npy") else f"{name}train.parquet")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{name} of {stage.name}")
        return
    folder.model.mkdir(parents=True, exist_ok=True)
    save_file({stage.name: np.ones(3, np.float32)}, folder.model / "model.safetensors")
    if not stage.trains:
        return
    told = stage.config["recipe_runner"]
    if "demo" in told:
        (folder.path / DEMO).write_text(json.dumps(asdict(Demo(**told["demo"]))))
    facts = {
        "fingerprint": told["fingerprint"],
        "steps": 7,
        "tokens": 7,
        "training_seconds": 50.0,
        "first_validation_loss": losses[0],
        "best_validation_loss": losses[1],
        "last_validation_loss": losses[1],
        "trainable_parameters": 3,
        "total_parameters": 3,
    }
    Summary(**facts | summary).write(folder.path)


def measured(folder: StageFolder, **facts: Any) -> None:
    """An evaluation of what lies there is on record, sealed; facts: of it, or others than it
    has."""
    record = asdict(gates.subject(folder)) | {"missing": {}} | facts
    write_json(folder.path / EVALUATION, seal.sealed(record, make=False))


def model_folder(folder: Path) -> Path:
    """A folder that counts as a small model, whose weights are no more than a word."""
    facts = catalog.model("HuggingFaceTB/SmolLM2-135M-Instruct")
    sizes = (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    sizes += ("num_key_value_heads", "vocab_size", "max_position_embeddings")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({name: getattr(facts, name) for name in sizes}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder
