"""Results: what a run leaves behind, written by the first process when training is over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner.files import read_json, write_json
from runner.training.history import History
from runner.training.settings import RunSettings
from runner.training.versions import versions

SUMMARY_FILE = "training_summary.json"

# A child that must not believe that it is one of the training processes.
_LAUNCHER_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LAUNCHER_PREFIXES = ("PET_", "TORCHELASTIC_", "ACCELERATE_")


def keep_best_model(run_dir: Path, checkpoints: Path) -> Path:
    """Moves the final weights, which are the best ones, from among the checkpoints into `best_model/`."""
    best, fresh = run_dir / "best_model", run_dir / ".best_model.partial"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for entry in sorted(checkpoints.iterdir()):
        if entry.is_file() and entry.suffix in {".json", ".safetensors", ".jinja", ".model", ".txt", ".bin"}:
            shutil.move(entry, fresh / entry.name)
    shutil.rmtree(best, ignore_errors=True)
    fresh.rename(best)
    return best


def summary(
    settings: RunSettings, history: History, state: Any, config: dict[str, Any], engine: str = "axolotl"
) -> dict[str, Any]:
    """What `training_summary.json` says; losses are cross-entropy in nats a token or an image, times in seconds."""
    losses = [entry["validation_loss"] for entry in history.epochs if entry["validation_loss"] is not None]
    return {
        "name": settings.name,
        "fingerprint": settings.fingerprint,
        "recipe": read_json(Path(settings.recipe_file)),
        "engine": engine,
        "base_model": config.get("base_model"),
        "world_size": settings.world_size,
        "backend": settings.backend if settings.world_size > 1 else None,
        "effective_batch_size": settings.effective_batch_size,
        "base_learning_rate": settings.base_learning_rate,
        "learning_rate": settings.learning_rate,
        **history.parameters,
        "steps": state["global_step"],
        "epochs": state["epoch"],
        "training_seconds": state["seconds"],
        "first_validation_loss": losses[0] if losses else None,
        "best_validation_loss": min(losses) if losses else None,
        "last_validation_loss": losses[-1] if losses else None,
        "last_training_loss": history.steps[-1]["loss"] if history.steps else None,
        "best_checkpoint": Path(state["best_checkpoint"]).name if state["best_checkpoint"] else None,
        "versions": versions(),
    }


def answer_demo(settings: RunSettings) -> None:
    """Puts the demo questions to the original and the tuned model, in a process of its own: it loads both models as
    any user would, and what it holds on the GPU goes with it."""
    if settings.demo is None or not settings.demo.questions:
        return
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    subprocess.run([sys.executable, "-m", "runner.training.demo", settings.run_dir], env=env, check=True)


def keep_log_and_configs(run_dir: Path, checkpoints: Path, recipe_file: Path) -> None:
    """On a cluster nobody else collects them: the configs that ran, and Axolotl's own log as `train.log`."""
    if not (run_dir / "train.log").exists() and (checkpoints / "debug.log").is_file():
        shutil.copyfile(checkpoints / "debug.log", run_dir / "train.log")
    configs = run_dir / "config"
    if recipe_file.parent != configs and recipe_file.is_file():
        configs.mkdir(exist_ok=True)
        for file in recipe_file.parent.iterdir():
            if file.is_file():
                shutil.copyfile(file, configs / file.name)


def finish(settings: RunSettings, history: History, state: dict[str, Any], config: dict[str, Any]) -> None:
    run_dir = Path(settings.run_dir)
    keep_best_model(run_dir, Path(config["output_dir"]))
    keep_log_and_configs(run_dir, Path(config["output_dir"]), Path(settings.recipe_file))
    if settings.demo is not None:
        write_json(run_dir / "demo.json", settings.demo.model_dump())
    answer_demo(settings)
    # Last, because its presence says that everything before it is there.
    write_json(run_dir / SUMMARY_FILE, summary(settings, history, state, config))
