"""Forecast: everything that a plan says about a recipe. The one definition that `plan`, `check` and reports share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import advice, duration, memory, parameters, rows, workload
from runner.estimate.advice import Advice
from runner.estimate.duration import Duration
from runner.estimate.memory import Memory
from runner.estimate.rows import Rows
from runner.estimate.workload import Workload
from runner.plan import Plan, Stage
from runner.problem import Problem
from runner.recipe import units
from runner.recipe.recipe import Recipe

BASIS = (
    "By closed formulas checked against fake-tensor runs alone; CUDA context, allocator slack and the speed that a card "
    "reaches are assumed, because nothing has been measured on a GPU yet."
)


@dataclass(frozen=True)
class Forecast:
    """What one stage needs. gpu: None where the catalog does not know it. price: of one GPU hour, None for none."""

    stage: Stage
    workload: Workload
    rows: Rows
    gpu: Gpu | None
    price: float | None

    @cached_property
    def memory(self) -> Memory:
        return memory.estimate(self.workload)

    @cached_property
    def time(self) -> Duration | None:
        return duration.estimate(self.workload, self.gpu) if self.gpu else None

    @property
    def usable(self) -> int | None:
        return memory.usable(self.gpu) if self.gpu else None

    @property
    def fits(self) -> bool | None:
        return None if self.usable is None else self.memory.total <= self.usable

    @property
    def gpu_hours(self) -> float | None:
        return self.time.total_seconds / 3600 * self.stage.machines.world_size if self.time else None

    @property
    def cost(self) -> float | None:
        return self.gpu_hours * self.price if self.gpu_hours is not None and self.price is not None else None

    @property
    def warmup_steps(self) -> int:
        """Steps with a rising learning rate, as Trainer counts them."""
        if self.workload.warmup_steps or not self.time:
            return self.workload.warmup_steps
        return math.ceil(self.time.steps * self.workload.warmup_ratio)

    def on(self, count: int) -> Forecast:
        """The same stage on another number of machines; one GPU shares nothing."""
        machines = replace(self.stage.machines, nodes=count)
        way = self.workload.sharding
        way = "none" if machines.world_size == 1 else "ddp" if way == "none" else way
        return replace(
            self,
            workload=replace(self.workload, machines=machines, sharding=way),
            stage=replace(self.stage, machines=machines),
        )


def of(recipe: Recipe, plan: Plan, price: float | None = None, given_rows: int | None = None) -> list[Forecast]:
    """A Forecast for every stage that trains a language model; none for stages of other engines.

    Raises KeyError where a model's architecture has no formulas.
    """
    found = []
    for stage in plan.stages:
        if stage.engine != "axolotl" or not (model := _model(recipe, stage)):
            continue
        there = rows.known(stage.data, Path("runs") / recipe.name / "data", given_rows)
        found.append(
            Forecast(
                stage=stage,
                workload=workload.from_stage(stage, model, there.as_workload()),
                rows=there,
                gpu=catalog.gpu(stage.machines.gpu),
                price=price if price is not None else (recipe.settings.get("limits") or {}).get("price_per_gpu_hour"),
            )
        )
    return found


def _model(recipe: Recipe, stage: Stage) -> catalog.Model | None:
    """The stage's model: the recipe's own, else by the name in the stage's config, else from the hub's cache."""
    if recipe.model_facts:
        return recipe.model_facts
    name = str(stage.config.get("base_model") or "")
    return catalog.model(name, recipe.folder) or catalog.cached_model(name)


def unknown_architecture(recipe: Recipe, error: KeyError) -> Problem:
    return recipe.document.problem(
        ("model", "base"),
        f"There are no formulas for models of the type {error}, so nothing can be said about memory and time.",
        f"Formulas are there for {', '.join(parameters.FAMILIES)}.",
    )


def too_large(recipe: Recipe, forecast: Forecast, severity: str = "error") -> Problem | None:
    """That a stage does not fit its GPU, at the line that names the GPU; None where it fits or nobody knows."""
    if forecast.fits is not False:
        return None
    need, have = forecast.memory.total, forecast.usable
    offers = advice.cheapest(recipe, forecast.workload, forecast.gpu, have)
    return recipe.document.problem(
        ("machines", "gpu"),
        f"Stage `{forecast.stage.name}` needs {units.both(need)} on each GPU, and {forecast.gpu.title} has {units.both(have)} to use.",
        remedy(offers, "Nothing that this recipe can change makes it fit; name a larger GPU, or more of them."),
        severity=severity,
    )


def remedy(offers: list[Advice], otherwise: str) -> str:
    if not offers:
        return otherwise
    return "What makes it fit, cheapest first:\n" + "\n".join(f"  {n}. {offer}" for n, offer in enumerate(offers, 1))
