"""What every scenario says, whatever trains it: batch and learning rate, machines, limits, where data comes from, and the
Plan of one stage."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from runner.plan import RECIPE_FILE, Artifact, Machines, Place, Plan, Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe, Settings


def learning_rate(recipe: Recipe) -> float:
    """The learning rate that the optimizer gets: linear scaling multiplies by the world size (Goyal et al. 2017,
    arXiv 1706.02677, section 2.1)."""
    scale = machines(recipe).world_size if recipe.train.learning_rate_scaling == "linear" else 1
    # Twelve digits, so that 4 × 5e-5 is written as 2e-4 and not as the next binary number.
    return float(f"{recipe.train.learning_rate * scale:.12g}")


def effective_batch_size(recipe: Recipe) -> int:
    """Rows behind one optimizer step: micro batch × accumulation × world size."""
    return recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps * machines(recipe).world_size


def machines(recipe: Recipe) -> Machines:
    stated, counts = recipe.machines, recipe.gpu_counts
    return Machines(
        stated.nodes,
        stated.gpus_per_node,
        stated.gpu,
        stated.memory_gib,
        stated.cpus,
        memory_limit_gib=stated.memory_limit_gib,
        cpus_limit=stated.cpus_limit,
        uneven=counts if len(set(counts)) > 1 else (),
    )


def shared_memory_gib(runs_on: Machines, most: int = 8) -> int:
    """`/dev/shm` of a machine, GiB: a quarter of its memory, which NCCL and data loaders share, and `most` at most."""
    return min(most, max(1, runs_on.memory_gib // 4))


def batch_facts(recipe: Recipe) -> dict[str, Any]:
    """World size, rows behind a step, and the learning rate as stated and as scaled."""
    return {
        "world_size": machines(recipe).world_size,
        "effective_batch_size": effective_batch_size(recipe),
        "base_learning_rate": recipe.train.learning_rate,
        "learning_rate": learning_rate(recipe),
    }


def run_facts(recipe: Recipe, place: Place) -> dict[str, Any]:
    """What the training process must know of its run, under `recipe_runner` in its config."""
    return {
        "name": recipe.name,
        "fingerprint": recipe.fingerprint,
        "run_dir": place.run_dir,
        "recipe_file": f"{place.config_dir}/{RECIPE_FILE}",
        "backend": "nccl" if place.accelerator else "gloo",
        **batch_facts(recipe),
        **time_limit(recipe),
    }


def time_limit(recipe: Recipe) -> dict[str, float]:
    """The recipe's time limit as the training process reads it, in seconds; nothing where there is none."""
    stated = (recipe.settings.get("limits") or {}).get("time")
    return {"time_limit_seconds": units.seconds(stated)} if stated else {}


def common_environment(recipe: Recipe, place: Place) -> dict[str, str]:
    """Environment of every training process."""
    return {
        "NCCL_DEBUG": recipe.communication.nccl_debug,
        "TENSORBOARD_LOGGING_DIR": f"{place.run_dir}/tensorboard",
        "TQDM_DISABLE": "1",
    }


def source(recipe: Recipe, place: Place, data: Settings) -> dict[str, Any]:
    """Where rows come from: the hub, or a file beside the recipe."""
    return {
        **{name: data.get(name) for name in ("hub", "revision", "subset", "split")},
        "path": data_file(recipe, place, data.path),
    }


def data_file(recipe: Recipe, place: Place, name: str | None) -> str | None:
    """A file that the recipe names, as whoever prepares the data finds it. Pods have those of `recipes/data/` through the
    image or the clone, and what lies on a claim."""
    if name is None:
        return None
    if place.files_dir is None or recipe.on_claim(name):
        return str(recipe.folder / name)
    return f"{place.files_dir}/{PurePosixPath(name).name}"


def recipe_file(recipe: Recipe) -> Artifact:
    """The recipe with every default, for whoever asks later what has run."""
    return Artifact(RECIPE_FILE, json.dumps(recipe.settings.plain(), indent=2, ensure_ascii=False) + "\n")


def made_by(recipe: Recipe, reader: str) -> str:
    """The first lines of an emitted config; reader: who reads it."""
    return (
        f"# Made by recipe-runner from the recipe `{recipe.name}` ({recipe.fingerprint}), for {reader}.\n"
        "# Change the recipe and render again; changes made here are lost.\n"
    )


def one_stage(recipe: Recipe, place: Place, stage: Stage) -> Plan:
    """A Plan of one stage."""
    return Plan(
        name=recipe.name,
        scenario=recipe.scenario,
        fingerprint=recipe.fingerprint,
        place=place,
        code_from_git=recipe.code_from_git,
        site=recipe.settings.get("openshift") or {},
        nodes=recipe.settings.get("nodes") or {},
        facts=batch_facts(recipe),
        stages=(stage,),
    )
