"""The formulas of stages that Axolotl trains; and what a trace finds in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner import catalog
from runner.catalog import Gpu
from runner.parts.planner import duration, memory, memory_offers, parameters, state
from runner.parts.planner.forecast import Changes, Counts, Forecast
from runner.parts.planner.memory import Memory
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.workload import TABLES, Offload, Run, Workload, from_stage
from runner.plan import Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.text import template


@dataclass(frozen=True)
class Traced:
    """The results of a trace: counts, bytes, floating-point operations of one micro batch, seconds of tracing. weights,
    gradients, optimizer: held between steps. activations: alive after the forward pass beyond those. peak,
    evaluation_peak: most bytes alive in training and in evaluation. peak_at: the operation at the peak."""

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    peak_at: str
    evaluation_peak: int
    flops: int
    seconds: float


def left_out(run: Run) -> dict[str, Any]:
    """The fields of a run that a trace replaces: ZeRO and offloading are not traced."""
    if not isinstance(run, Workload) or not (run.sharding.startswith("zero") or run.offload):
        return {}
    # Everything is on one GPU, in the precision that the split weights have.
    return {"sharding": "none", "offload": Offload(), "fp32_weights": run.masters}


def of_stage(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> LanguageForecast | None:
    """The forecast for a stage; None if its model is unknown. look: whether to read the hub's cache."""
    # The stage's model is the recipe's own, else that of its config in the catalog or in the hub's cache.
    name, revision = (str(stage.config.get(key) or "") for key in ("base_model", "revision_of_model"))
    recipe = recipe.of_stage(stage.name)
    model = recipe.model_facts or catalog.model(name, recipe.folder)
    if model is None and look:
        model = catalog.cached_model(name, revision or "main")
    if model is None:
        return None
    work = from_stage(stage, model, rows)
    stated = (recipe.settings.get("train") or {}).get("eval_batch_size")
    follows = stated is None and work.evaluation_batch_size == work.micro_batch_size
    speed = (recipe.settings.get("sharding") or {}).get("nvme_mb_s") or work.offload.mb_s
    offload = replace(work.offload, mb_s=float(speed))
    return LanguageForecast(stage, replace(work, evaluation_follows=follows, offload=offload), rows)


@dataclass(frozen=True)
class LanguageForecast(Forecast):
    """The needs of a stage that trains a language model."""

    workload: Workload

    @property
    def model(self) -> str:
        return self.workload.model.id

    @cached_property
    def counts(self) -> Counts:
        parameters.family(self.workload.model)
        # The layer of a reward model's score; PEFT trains a copy of it (0.20, `modules_to_save`).
        score = self.workload.model.hidden_size if self.workload.objective == "reward" else 0
        total = parameters.total(self.workload.model) + (2 if self.workload.adapter else 1) * score
        return Counts(total, parameters.trainable(self.workload) + score, parameters.adapter(self.workload))

    @cached_property
    def memory(self) -> Memory:
        return memory.estimate(self.workload)

    @property
    def steps(self) -> int | None:
        return self.workload.steps

    @property
    def warmup_steps(self) -> int:
        """A whole number, and two instead of one (Axolotl 0.19.0, _configure_warmup_and_logging)."""
        if self.workload.warmup_steps or not self.steps:
            return self.workload.warmup_steps
        rising = int(self.steps * self.workload.warmup_ratio)
        return 2 if rising == 1 else rising

    def time_on(self, gpu: Gpu) -> duration.Duration | None:
        return duration.estimate(self.workload, gpu)

    def fitting(self, recipe: Recipe, gpu: Gpu, budget: float) -> Iterable[Changes]:
        lines = memory_offers.Lines(recipe, self.stage)
        return [advice.changes for advice in memory_offers.cheapest(lines, self.workload, gpu, budget)]

    def written(self) -> dict[str, int]:
        """Prepared rows, a checkpoint, the best model, a model merged with its adapter; and the download."""
        work = self.workload
        rows = ((work.rows or 0) + (work.evaluation_rows or 0)) * work.answers
        # A row as text, and its tokens, labels and mask as Arrow keeps them.
        sizes = {"prepared data": 0 if work.max_steps else round(rows * (work.lengths.mean or work.sequence_len) * 21)}
        sizes |= {"checkpoint": state.checkpoint(work), "best model": state.saved_weights(work)}
        halves = work.width * parameters.total(work.model)
        if work.adapter:
            sizes["merged model"] = halves
        if on_disk := state.on_disk(work):
            sizes[state.ON_DISK] = on_disk
        if self.stage.model or not str(self.stage.config.get("base_model") or "").startswith("/"):
            sizes["model download"] = halves
        return sizes

    def beside(self) -> dict[str, int]:
        """Offloaded state, and the largest moment: loading, saving, resuming or merging."""
        parts = state.main_memory(self.workload)
        name, size = max(state.moments(self.workload).items(), key=lambda moment: moment[1])
        return parts | {name: size}

    def notes(self) -> Mapping[str, str]:
        text = template(Path(__file__).with_name("notes.txt.jinja")).render(
            work=self.workload,
            reference=state.reference(self.workload),
            gradients=state.held(self.workload).gradients,
            tables=TABLES,
            units=units,
        )
        return dict(line.split(": ", 1) for line in text.splitlines())
