"""Language models: the formulas behind the forecast of a stage that Axolotl trains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import memory, parameters, saved, steps
from runner.estimate.activations import widths
from runner.estimate.counts import Counts
from runner.estimate.memory import Memory, held
from runner.estimate.rows import Rows
from runner.estimate.workload import Workload, from_stage
from runner.plan import Stage
from runner.recipe.recipe import Recipe

if TYPE_CHECKING:
    from runner.estimate.duration import Duration


def workload(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> Workload | None:
    """The stage's workload; None where nobody knows its model. look: whether the hub's cache may be asked."""
    model = _model(recipe, stage, look)
    if model is None:
        return None
    work = from_stage(stage, model, rows.as_workload())
    stated = (recipe.settings.get("train") or {}).get("eval_batch_size")
    follows = stated is None and work.evaluation_batch_size == work.micro_batch_size
    return replace(work, evaluation_follows=follows)


def _model(recipe: Recipe, stage: Stage, look: bool) -> catalog.Model | None:
    """The stage's model: the recipe's own, else by the name in the stage's config, else from the hub's cache."""
    if recipe.model_facts:
        return recipe.model_facts
    name = str(stage.config.get("base_model") or "")
    return catalog.model(name, recipe.folder) or (catalog.cached_model(name) if look else None)


def name(work: Workload) -> str:
    return work.model.id


def counts(work: Workload) -> Counts:
    """Raises KeyError where the model's architecture has no formulas."""
    return Counts(parameters.total(work.model), parameters.trainable(work), parameters.adapter(work))


def gpu_memory(work: Workload) -> Memory:
    return memory.estimate(work)


def count_steps(work: Workload) -> int | None:
    """Steps of the optimizer; None where nobody knows the rows."""
    return steps.steps(work)


def time(work: Workload, gpu: Gpu) -> Duration | None:
    from runner.estimate import duration  # as below

    return duration.estimate(work, gpu)


def rate(work: Workload, gpu: Gpu) -> float:
    """Operations a second that the card's data sheet promises."""
    from runner.estimate import duration

    return duration.rate(work, gpu)


def offers(recipe: Recipe, stage: Stage, work: Workload, gpu: Gpu, budget: float) -> list[Any]:
    """The cheapest changes that bring the memory to `budget` bytes (see `advice`)."""
    from runner.estimate import advice  # seldom needed, and `recipe check` counts its milliseconds
    from runner.estimate.offers import Lines

    return advice.cheapest(Lines.of(recipe, stage), work, gpu, budget)


def written(work: Workload, stage: Stage) -> dict[str, int]:
    """Bytes that the run leaves: prepared rows, a checkpoint, the best model, a model merged with its adapter; and what
    it fetches."""
    rows = ((work.rows or 0) + (work.evaluation_rows or 0)) * work.answers
    # A row as text, and its tokens, labels and mask as Arrow keeps them.
    found = {"prepared data": 0 if work.max_steps else round(rows * (work.row_tokens or work.sequence_len) * 21)}
    found |= {"checkpoint": saved.checkpoint(work), "best model": saved.weights(work)}
    halves = widths(work).linear * parameters.total(work.model)
    if work.adapter:
        found["merged model"] = halves
    if stage.model or not str(stage.config.get("base_model") or "").startswith("/"):
        found["model download"] = halves
    return found


def beside(work: Workload, stage: Stage) -> dict[str, int]:
    """Bytes of a machine's main memory beyond processes and shared memory: offloaded state, and the most that a sharded run
    holds there when it loads or saves."""
    parts = {}
    whole = saved.whole(work)
    if work.offload:
        parts["offloaded optimizer"] = 12 * parameters.trainable(work) // stage.machines.nodes
    if work.sharding == "zero3":
        parts["weights gathered for saving"] = whole
    elif work.sharding == "fsdp":
        # Saving gathers one after the other, in the formats that they are split in (accelerate 1.13.0, save_fsdp_model
        # and _optimizer). Loading comes before, whole in every process (Axolotl 0.19.0, loaders/model.py).
        state = held(work)
        gathered = max(state.weights, state.optimizer) * work.machines.world_size or whole
        loaded = stage.machines.gpus_per_node * whole
        name = "weights that every process loads" if loaded > gathered else "state gathered for saving"
        parts[name] = max(loaded, gathered)
    return parts
