"""Limits: what a recipe says it may take, and what the arithmetic says to that, at the line that says it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.catalog import Gpu
from runner.parts.planner.forecast import OFFERED, Forecast
from runner.parts.planner.memory import EVALUATION
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.parts.planner.duration import Duration

# How the names of the stages begin that are one length of pretraining each.
CURRICULUM = "pretrain-"
# The parts that a recipe may state, and which of the estimate's parts each stands for.
PARTS = {
    "weights": ("weights",),
    "adapter": (),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "logits"),
    "temporary": ("temporary", "communication"),
    "reserve": ("context", "slack"),
}


def broken(recipe: Recipe, forecasts: list[Forecast]) -> list[Problem]:
    """A Problem for each limit of the recipe that does not hold."""
    limits = recipe.settings.get("limits") or {}
    if not forecasts:
        return [_no_formulas(recipe, setting) for setting, stated in limits.items() if stated and setting in _JUDGED]
    problems: list[Problem] = []
    if limits.get("gpu_memory"):
        most = max(forecast.memory.total for forecast in forecasts)
        problems += [p for forecast in forecasts for p in _memory(recipe, forecast, limits["gpu_memory"], most)]
    if limits.get("gpu_memory_parts"):
        problems += [p for forecast in forecasts for p in _parts(recipe, forecast, limits["gpu_memory_parts"])]
    for setting, judge in (("time", _time), ("cost", _cost), ("samples_per_second", _speed)):
        if limits.get(setting) is not None:
            problems += judge(recipe, forecasts, limits[setting])
    return problems


_JUDGED = ("time", "gpu_memory", "gpu_memory_parts", "cost", "samples_per_second")


def _no_formulas(recipe: Recipe, setting: str) -> Problem:
    return _problem(
        recipe,
        setting,
        f"Whether this limit holds cannot be told: there are no formulas for the scenario `{recipe.scenario}`.",
        "Training keeps a limit of time even so; no plan can promise it." if setting == "time" else "Delete it.",
    )


def _problem(recipe: Recipe, setting: str, message: str, hint: str, holds: Any = None) -> Problem:
    """holds: a value of the limit that would hold."""
    return recipe.document.problem(("limits", *setting.split(".")), message, hint, mending=holds)


def _memory(recipe: Recipe, forecast: Forecast, stated: str, most: int) -> Iterator[Problem]:
    """most: bytes that the stage with most of them needs."""
    limit, need = units.size(stated), forecast.memory.total
    if need <= limit:
        return
    parts = forecast.memory.parts()
    if forecast.memory.moment == EVALUATION:
        parts = {"tensors in evaluation": forecast.memory.evaluation, "context": parts["context"]}
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    shown = ", ".join(f"{name} {units.gib(size)}" for name, size in largest)
    yield _problem(
        recipe,
        "gpu_memory",
        f"Stage `{forecast.stage.name}` needs {units.both(need)} on each GPU, and the limit is {stated}. Most of it: {shown}.",
        f"Write `gpu_memory: {_up(most)}` where the card is yours alone. {OFFERED}" if forecast.fits else OFFERED,
        _up(most),
    )


def _up(need: float) -> str:
    return f"{-(-need // 10**9):.0f} GB"


def _parts(recipe: Recipe, forecast: Forecast, stated: Mapping[str, str]) -> Iterator[Problem]:
    # Gradients count in full, also where the peak comes before all of them are there.
    sizes = forecast.memory.parts() | {"gradients": forecast.memory.state.gradients}
    adapter = 4 * forecast.counts.adapter
    for part, text in stated.items():
        need = adapter if part == "adapter" else sum(sizes[name] for name in PARTS[part])
        if part == "weights":
            need -= adapter if "adapter" in stated else 0
        if need > units.size(text):
            holds = f"{math.ceil(need / 10**8) / 10:g} GB"
            yield _problem(
                recipe,
                f"gpu_memory_parts.{part}",
                f"`{part}` takes {units.both(need)} in stage `{forecast.stage.name}`, and {text} are stated.",
                f"Write `{part}: {holds}`, or change what it is made of; `recipe plan --details` shows every part.",
                holds,
            )


@dataclass(frozen=True)
class _Timed:
    """A forecast whose time can be told."""

    forecast: Forecast
    gpu: Gpu
    time: Duration


def _timed(recipe: Recipe, forecasts: list[Forecast], setting: str) -> list[_Timed] | Problem:
    """The forecasts with their times. Where one cannot be told, a limit on it cannot be judged, and that is said."""
    timed = []
    for forecast in forecasts:
        if forecast.gpu and forecast.time:
            timed.append(_Timed(forecast, forecast.gpu, forecast.time))
            continue
        unknown = f"the GPU `{forecast.stage.machines.gpu}` is not in the catalog"
        why = forecast.rows.source if forecast.gpu else unknown
        return _problem(
            recipe, setting, f"Whether this limit holds cannot be told: {why}.", "Mend that, or delete the limit."
        )
    return timed


def _time(recipe: Recipe, forecasts: list[Forecast], stated: str) -> list[Problem]:
    timed = _timed(recipe, forecasts, "time")
    if isinstance(timed, Problem):
        return [timed]
    limit, need = units.seconds(stated), sum(each.time.total_seconds for each in timed)
    if need <= limit:
        return []
    longest = max(timed, key=lambda each: each.time.total_seconds)
    time, gpus = longest.time, longest.forecast.stage.machines.world_size
    message = (
        f"The run takes about {units.duration(need)} on {gpus} × {longest.gpu.title}, and the limit is "
        f"{stated}: {time.steps:,} steps of {units.speed(time.step_seconds)} s, {units.speed(time.samples_a_second)} samples "
        f"and {units.speed(time.tokens_a_second)} tokens a second."
    )
    holds = units.at_least(sum(each.time.range_seconds[1] for each in timed))
    hint = f"Training itself stops at the limit with what it has learned by then; `time: {holds}` would let it end. {OFFERED}"
    return [_problem(recipe, "time", message, hint, holds)]


def fewer_steps(recipe: Recipe, forecasts: list[Forecast], share: float) -> dict[str, float]:
    """The settings that leave the longest stage, whose rows or steps take most of the time, so large a share of its steps; the
    lengths of a curriculum share theirs. Empty where not even one step would be left, or nothing says how many there are."""
    longest = max(forecasts, key=lambda each: each.time.total_seconds if each.time else 0)
    curriculum = longest.stage.name.startswith(CURRICULUM)
    shorter = [each for each in forecasts if each.stage.name.startswith(CURRICULUM)] if curriculum else [longest]
    work, steps = longest.workload, sum(each.steps or 0 for each in shorter)
    fewer = int(steps * share)
    if fewer < 1:
        return {}
    if work.max_steps:
        return {"pretrain.steps" if curriculum else "advanced.axolotl.max_steps": fewer}
    name = longest.stage.name if longest.stage.name in recipe.settings else "train"
    return {f"{name}.epochs": math.floor(work.epochs * share * 100) / 100}


def _cost(recipe: Recipe, forecasts: list[Forecast], limit: float) -> list[Problem]:
    timed = _timed(recipe, forecasts, "cost")
    if isinstance(timed, Problem):
        return [timed]
    costs = [cost for forecast in forecasts if (cost := forecast.cost) is not None]
    if len(costs) < len(forecasts):
        hint = "Write `limits.price_per_gpu_hour`, or give `--price`."
        return [_problem(recipe, "cost", "Whether this limit holds cannot be told: nobody has named a price.", hint)]
    need = sum(costs)
    if need <= limit:
        return []
    hours = sum(forecast.gpu_hours or 0 for forecast in forecasts)
    return [
        _problem(
            recipe,
            "cost",
            f"The run costs about {need:.2f} ({hours:.1f} GPU hours at {forecasts[0].price:g}), and the limit is {limit:g}.",
            f"Write `cost: {math.ceil(need)}`, or choose a cheaper GPU. {OFFERED}",
            math.ceil(need),
        )
    ]


def _speed(recipe: Recipe, forecasts: list[Forecast], limit: float) -> list[Problem]:
    timed = _timed(recipe, forecasts, "samples_per_second")
    if isinstance(timed, Problem):
        return [timed]
    slowest = min(timed, key=lambda each: each.time.samples_a_second)
    pace, stage = slowest.time.samples_a_second, slowest.forecast.stage
    if pace >= limit:
        return []
    # Downwards, so that what is written holds.
    digits = 2 - math.floor(math.log10(pace))
    holds = math.floor(pace * 10**digits) / 10**digits
    operations = slowest.time.flops / slowest.forecast.workload.micro_batch_size
    peak = slowest.forecast.formulas.rate(slowest.gpu) * stage.machines.world_size
    return [
        _problem(
            recipe,
            "samples_per_second",
            f"Stage `{stage.name}` trains about {units.speed(pace)} samples a second, and {limit:g} are stated.",
            f"A sample takes {operations / 1e12:.3g} × 10^12 operations; {limit:g} a second are {operations * limit / 1e12:,.3g} × 10^12, "
            f"and {stage.machines.world_size} × {slowest.gpu.title} can at most do "
            f"{peak / 1e12:,.0f} × 10^12. Write `samples_per_second: {holds:g}`.",
            holds,
        )
    ]
