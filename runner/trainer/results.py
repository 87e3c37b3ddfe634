"""Results: what a run leaves behind, written by the first process when training is over."""

import os
import shutil
import statistics
import sys
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from runner.plan import EngineConfig, precision_of
from runner.tools import child_process, packaged, run_files
from runner.tools.files import read_json, replacing_folder, write_json, write_text
from runner.tools.tokenizer import tokenizer_in
from runner.trainer import fork_server
from runner.trainer.generation import with_questions, with_system
from runner.trainer.records import Proof, Summary, TimeUsed, versions
from runner.trainer.settings import Demo, RunSettings
from runner.trainer.telemetry import History

TABLES = packaged.toml(__file__, "tables.toml")
CHOSEN: Mapping[str, Any] = {"first": itemgetter(0), "last": itemgetter(-1), "lowest": min, "highest": max}


def keep_best(checkpoints: Path, folder: Path) -> Path:
    """Moves the final weights, which are the best ones, with their other files from the checkpoints into `folder`."""
    with replacing_folder(folder) as partial:
        for entry in sorted(checkpoints.iterdir()):
            if entry.is_file() and entry.suffix in {".json", ".safetensors", ".jinja", ".model", ".txt", ".bin"}:
                shutil.move(entry, partial / entry.name)
    return folder


def summary(settings: RunSettings, history: History, config: EngineConfig, engine: str = "axolotl") -> Summary:
    """The summary of a finished training."""
    evaluations: dict[str, Any] = {
        field: CHOSEN[which](values)
        for field, (measure, which) in TABLES["evaluations"].items()
        if (values := [entry[measure] for entry in history.epochs if entry.get(measure) is not None])
    }
    return Summary(
        **{name: getattr(settings, name) for name in TABLES["names"]["settings"]},
        recipe=read_json(Path(settings.recipe_file)),
        engine=engine,
        base_model=config.get("base_model"),
        adapter={name: config[key] for name, key in TABLES["adapter"].items()} if config.get("adapter") else None,
        backend=settings.backend if settings.world_size > 1 else None,
        **history.parameters,
        **history.final,
        **_taken(settings, history),
        # A record from before the limit was removed means nothing.
        time_limit=TimeUsed.read(Path(settings.run_dir)) if settings.time_limit_seconds is not None else None,
        early_stop=history.early_stop,
        **evaluations,
        last_training_loss=history.steps[-1]["loss"] if history.steps else None,
        proof=proof.summed if (proof := Proof.read(Path(settings.run_dir))) else None,
        versions=versions(),
    )


def _taken(settings: RunSettings, history: History) -> dict[str, Any]:
    """The run's GPU memory and time per step, without the first entry, whose steps warm up."""
    steps = history.steps[1:] or history.steps
    paces = [pace for entry in steps if (pace := entry["samples_per_second"])]
    memory = ("gpu_memory_gib", "gpu_reserved_gib", "gpu_driver_gib")
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "step_seconds": settings.effective_batch_size / statistics.median(paces) if paces else None,
        **{name: max((entry.get(name) or 0.0 for entry in steps), default=0.0) or None for name in memory},
    }


def keep_template(demo: Demo, model: Path) -> None:
    """Writes a chat template with the system prompt of training for servers, also beside an adapter alone."""
    if not demo.system_prompt:
        return
    tokenizer = tokenizer_in(model, demo.trust_remote_code)
    if isinstance(tokenizer.chat_template, str):
        for folder in filter(Path.is_dir, (model, model.with_name(run_files.ADAPTER))):
            write_text(folder / run_files.SERVED_TEMPLATE, with_system(tokenizer.chat_template, demo.system_prompt))


def _alone(module: str, *arguments: str) -> None:
    """Runs a module in a process of its own, which loads models as a user would and frees its memory at its end."""
    names, prefixes = TABLES["names"]["launcher"], tuple(TABLES["names"]["launcher-prefixes"])
    own = {name: value for name, value in os.environ.items() if name not in names and not name.startswith(prefixes)}
    fork_server.run([sys.executable, "-m", module, *arguments], own)


def keep_log_and_configs(run_dir: Path, checkpoints: Path, recipe_file: Path) -> None:
    """Copies the configs that ran and, as `train.log`, Axolotl's own log, because on a cluster nothing else does."""
    if run_files.LOG_KEPT not in os.environ and (checkpoints / "debug.log").is_file():
        shutil.copyfile(checkpoints / "debug.log", run_dir / run_files.LOG)
    configs = run_dir / run_files.CONFIG
    if recipe_file.parent != configs and recipe_file.is_file():
        configs.mkdir(exist_ok=True)
        for file in filter(Path.is_file, recipe_file.parent.iterdir()):
            shutil.copyfile(file, configs / file.name)


def finish(settings: RunSettings, history: History, config: EngineConfig) -> None:
    """Saves the best model, and the best adapter beside it in `lora_adapter/`; the demo's answers; and the summary."""
    run_dir, checkpoints = Path(settings.run_dir), Path(config["output_dir"])
    best = run_dir / run_files.BEST_MODEL
    if config.get("adapter"):
        adapter = keep_best(checkpoints, run_dir / run_files.ADAPTER)
        facts = read_json(adapter / "adapter_config.json")
        # Merging or serving it later needs the same base model.
        facts |= {"base_model_name_or_path": config["base_model"], "revision": config.get("revision_of_model")}
        write_json(adapter / "adapter_config.json", facts)
        trust = ["trust"] if config.get("trust_remote_code") else []
        _alone("runner.trainer.merging", str(adapter), str(best), precision_of(config), *trust)
        # Servers that have the adapter alone get its generation settings with it.
        if (generation := best / "generation_config.json").is_file():
            shutil.copy(generation, adapter / generation.name)
    else:
        keep_best(checkpoints, best)
    keep_log_and_configs(run_dir, checkpoints, Path(settings.recipe_file))
    if settings.demo is not None:
        demo = with_questions(settings.demo, config, run_dir)
        write_json(run_dir / run_files.DEMO, demo.model_dump())
        keep_template(demo, best)
        if demo.questions:
            child_process.tell("phase", phase=child_process.ASKING)
            files = (one["path"] for one in config.get("datasets") or () if one["path"].endswith(".parquet"))
            _alone("runner.trainer.generation", settings.run_dir, *files)
    # Last, because its presence means that everything else is complete.
    summary(settings, history, config).write(run_dir)
