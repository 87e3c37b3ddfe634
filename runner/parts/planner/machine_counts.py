"""A recipe on other counts of machines, by formulas alone: how long it takes there, and whether
fewer are clearly faster."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runner.parts.planner.forecast import Forecast
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, counted

# How many times as long a run must take as on fewer machines. A time is likely to be between half
# and twice what is planned, mostly because the network is assumed, so below this either count may
# be the faster one.
CLEARLY = 2.0


def with_machines(forecast: Forecast, count: int) -> Forecast:
    """The stage on this number of machines, with the same rows a step if possible, and the same
    rows in all; one GPU shares nothing."""
    machines = forecast.stage.machines
    before = forecast.workload
    if count == machines.nodes:
        return forecast
    machines = replace(machines, nodes=count, uneven=())
    sharding = before.sharding
    if machines.world_size > 1:
        sharding = "ddp" if sharding == "none" else sharding
    elif not before.offload:
        sharding = "none"
    accumulation = max(
        1, round(before.accumulation * before.machines.world_size / machines.world_size)
    )
    rescaled = forecast.changed(machines=machines, sharding=sharding, accumulation=accumulation)
    if before.max_steps:
        rows = before.max_steps * before.effective_batch_size
        rescaled = rescaled.changed(
            max_steps=max(1, math.ceil(rows / rescaled.workload.effective_batch_size))
        )
    return replace(rescaled, stage=replace(forecast.stage, machines=machines))


@dataclass(frozen=True)
class TrainingTime:
    """nodes: a count of machines. seconds: of all stages that train, on that many."""

    nodes: int
    seconds: float


def fewer(nodes: int) -> list[int]:
    """The counts of machines below this one that are tried, the fewest first: 1, 2, 4 and so on."""
    return [2**power for power in range((nodes - 1).bit_length())]


def fastest_of_fewer(forecasts: Sequence[Forecast]) -> TrainingTime | None:
    """The count of fewer machines on which all stages fit and train fastest; None if there is none,
    or its time is unknown."""
    if forecasts:
        machines = forecasts[0].stage.machines
    else:
        machines = None
    if machines is None or machines.uneven:
        return None
    times = []
    for nodes in fewer(machines.nodes):
        stages = [with_machines(forecast, nodes) for forecast in forecasts]
        seconds = training_seconds(stages)
        if seconds is not None and all(stage.fits for stage in stages):
            times.append(TrainingTime(nodes, seconds))
    return min(times, key=lambda time: time.seconds, default=None)


def training_seconds(forecasts: Sequence[Forecast]) -> float | None:
    """Of all stages; None if that of one is unknown."""
    times = [forecast.time for forecast in forecasts]
    if None in times:
        return None
    return sum(time.total_seconds for time in times if time)


def waiting_seconds(forecasts: Sequence[Forecast]) -> float:
    """Seconds of all stages that GPUs wait for each other."""
    return sum(
        forecast.time.steps * forecast.time.waiting_seconds
        for forecast in forecasts
        if forecast.time
    )


def slower_than_fewer(recipe: Recipe, forecasts: Sequence[Forecast]) -> Iterator[Problem]:
    """A note where fewer machines train clearly faster."""
    if not forecasts or forecasts[0].stage.machines.nodes == 1:
        return
    planned = training_seconds(forecasts)
    # Fewer machines save only what they wait for each other; most recipes end here, because `check`
    # counts its milliseconds.
    most_waiting = 1 - 1 / CLEARLY
    if planned is None or waiting_seconds(forecasts) < planned * most_waiting:
        return
    best = fastest_of_fewer(forecasts)
    if best is None or planned < CLEARLY * best.seconds:
        return
    nodes = forecasts[0].stage.machines.nodes
    network = forecasts[0].workload.network
    usual = units.duration(planned)
    faster = units.duration(best.seconds)
    count = counted(best.nodes, "machine")
    if "openshift" in recipe.settings:
        section = "openshift"
    else:
        section = "nodes"
    if network.source:
        hint = f" If the machines have a faster network than assumed ({network.title}), write its speed under `{section}.network`."
    else:
        hint = ""
    yield recipe.note(
        "machines.nodes",
        f"Training takes about {usual} on {nodes} machines, which mostly wait for each other, but {faster} on {count}.",
        f"Write `nodes: {best.nodes}`; `recipe plan` shows the lines that change with it.{hint}",
        check="slower-than-fewer",
    )
