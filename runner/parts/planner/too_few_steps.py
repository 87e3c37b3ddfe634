"""Few: a stage whose rows make too few steps to learn from, and what would make about a hundred of them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from runner.parts.planner.forecast import Forecast
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

# Below the one a warmup of the usual share is none at all; the other is plenty for rows that are few.
TOO_FEW, ENOUGH = 12, 100
# More times through the same rows and they are learned by heart.
MOST_EPOCHS = 10
OFFERED = f"`recipe plan` offers settings that make about {ENOUGH}."


def stages(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """Those that go through rows and make too few steps of them."""
    return [each for each in forecasts if each.steps and each.steps < TOO_FEW and not each.workload.max_steps]


def section(recipe: Recipe, forecast: Forecast) -> str:
    return forecast.stage.name if forecast.stage.name in recipe.settings else "train"


def notes(recipe: Recipe, forecasts: Sequence[Forecast], hint: str = OFFERED) -> Iterator[Problem]:
    for forecast in stages(forecasts):
        steps, rising = forecast.steps or 0, forecast.warmup_steps
        home = section(recipe, forecast)
        yield recipe.document.problem(
            (home, "epochs"),
            f"Stage `{forecast.stage.name}` makes {steps} step{'' if steps == 1 else 's'} of {forecast.workload.effective_batch_size} "
            f"rows, with a warmup of {rising}: too few to learn much.",
            hint,
            severity="note",
        )


def ways(recipe: Recipe, forecasts: Sequence[Forecast]) -> Iterator[dict[str, Any]]:
    """Settings that make about ENOUGH steps of the first such stage: smaller steps and more epochs, on the same machines and on
    one GPU."""
    for forecast in stages(forecasts)[:1]:
        work, home = forecast.workload, section(recipe, forecast)
        every = (forecast.steps or 0) * work.effective_batch_size / work.epochs
        rows = min(every, work.rows or every)
        for gpus in dict.fromkeys((work.machines.world_size, 1)):
            micro = max(1, min(work.micro_batch_size, int(rows * work.epochs / ENOUGH / gpus)))
            epochs = max(work.epochs, min(MOST_EPOCHS, math.ceil(ENOUGH * micro * gpus / rows)))
            alone = {"machines.nodes": 1, "machines.gpus_per_node": 1} if gpus == 1 < work.machines.world_size else {}
            smaller = {f"{home}.micro_batch_size": micro, f"{home}.gradient_accumulation_steps": 1}
            yield {**alone, **smaller, **({f"{home}.epochs": epochs} if epochs > work.epochs else {})}


def enough(before: Sequence[Forecast], after: Sequence[Forecast]) -> bool:
    """Whether no stage makes too few steps any more, where one did."""
    return bool(stages(before)) and not stages(after)
