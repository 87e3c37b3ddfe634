"""The limits of a recipe, judged against the plan, each at its line; and stages with too few steps to learn from."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from runner.catalog import Gpu
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import OFFERED, Forecast, said, section, stated
from runner.parts.planner.memory import usable
from runner.parts.planner.storage import Preparation
from runner.parts.planner.workload import TABLES
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, worded

Timed = tuple[Forecast, Gpu, Duration]

# Below TOO_FEW the usual share of warmup is less than one step; ENOUGH is plenty for few rows.
TOO_FEW, ENOUGH = 12, 100
MORE_STEPS_OFFERED = f"`recipe plan` suggests settings that make about {ENOUGH}."


def gpu_memory(recipe: Recipe) -> int | None:
    """The recipe's limit for each GPU in bytes; None if it has none."""
    limit = stated(recipe).get("gpu_memory")
    return round(units.size(limit)) if limit else None


def beyond_card(recipe: Recipe, forecasts: list[Forecast]) -> Iterator[Problem]:
    """A note where the limit of memory is more than any of the cards has."""
    limit, cards = gpu_memory(recipe), [forecast.gpu for forecast in forecasts if forecast.gpu]
    if limit and cards and limit > max(card.memory_gib for card in cards) * 2**30:
        card, limited = max(cards, key=lambda card: card.usable_gib), stated(recipe)["gpu_memory"]
        there, most = units.both(usable(card)), usable(card) // 10**9
        message = worded("planner.beyond-card", limit=limited, card=card, there=there, most=most)
        yield recipe.note("limits.gpu_memory", *message)


def broken(recipe: Recipe, forecasts: list[Forecast]) -> list[Problem]:
    """A note for each limit of the recipe that does not hold, by estimate."""
    limits = stated(recipe)
    if not forecasts:
        why = f"there are no formulas for the scenario `{recipe.scenario}`"
        kept = {"time": "Training obeys a time limit anyway, but no plan can predict it."}
        judged = [name for name, limit in limits.items() if limit and name in (*_BY_MEMORY, *_BY_TIME)]
        return [_unknown(recipe, setting, why, kept.get(setting, "Delete it.")) for setting in judged]
    by_memory = {name: judge for name, judge in _BY_MEMORY.items() if limits.get(name)}
    by_time = {name: judge for name, judge in _BY_TIME.items() if limits.get(name) is not None}
    problems = [note for name, judge in by_memory.items() for note in judge(recipe, forecasts, limits[name])]
    if untimed := next((each for each in forecasts if not (each.gpu and each.time)), None):
        unknown = f"the GPU `{untimed.stage.machines.gpu}` is not in the catalog"
        why = untimed.rows.source if untimed.gpu else unknown
        return problems + [_unknown(recipe, name, why, "Fix that, or delete the limit.") for name in by_time]
    timed = [(each, each.gpu, each.time) for each in forecasts if each.gpu and each.time]
    return problems + [note for name, judge in by_time.items() for note in judge(recipe, timed, limits[name])]


def _unknown(recipe: Recipe, setting: str, why: str, hint: str) -> Problem:
    return recipe.note(f"limits.{setting}", f"This limit cannot be checked: {why}.", hint)


def _memory(recipe: Recipe, forecasts: list[Forecast], limit: str) -> Iterator[Problem]:
    holds = f"{-(-max(forecast.memory.total for forecast in forecasts) // 10**9):.0f} GB"
    for forecast in forecasts:
        if forecast.memory.total > units.size(limit):
            message = said("over_memory", forecast=forecast, limit=limit, holds=holds)
            yield recipe.note("limits.gpu_memory", *message, mending=holds)


def _parts(recipe: Recipe, forecasts: list[Forecast], limits: Mapping[str, str]) -> Iterator[Problem]:
    for forecast, (part, text) in product(forecasts, limits.items()):
        # Gradients count in full, even where the peak comes before all of them exist.
        sizes = forecast.memory.parts() | {"gradients": forecast.memory.state.gradients}
        adapter = 4 * forecast.counts.adapter
        need = adapter if part == "adapter" else sum(sizes[name] for name in TABLES["limits"][part])
        if part == "weights" and "adapter" in limits:
            need -= adapter
        if need > units.size(text):
            holds, asks = f"{math.ceil(need / 10**8) / 10:g} GB", f"`{part}` needs {units.both(need)}"
            message = worded("planner.over-part", asks=asks, forecast=forecast, limit=text, part=part, holds=holds)
            yield recipe.note(f"limits.gpu_memory_parts.{part}", *message, mending=holds)


def _time(recipe: Recipe, timed: list[Timed], limit: str) -> Iterator[Problem]:
    need = sum(time.total_seconds for _, _, time in timed)
    if need > units.seconds(limit):
        longest, _, time = max(timed, key=lambda each: each[2].total_seconds)
        holds = units.at_least(sum(time.range_seconds[1] for _, _, time in timed))
        message = said("over_limit", need=need, longest=longest, time=time, limit=limit, holds=holds)
        yield recipe.note("limits.time", *message, mending=holds)


def _cost(recipe: Recipe, timed: list[Timed], limit: float) -> Iterator[Problem]:
    costs = [cost for forecast, _, _ in timed if (cost := forecast.cost) is not None]
    if len(costs) < len(timed):
        yield _unknown(recipe, "cost", "the price is unknown", "Write `limits.price_per_gpu_hour`, or add `--price`.")
    elif (need := sum(costs)) > limit:
        hours = sum(forecast.gpu_hours or 0 for forecast, _, _ in timed)
        each, most = f"{hours:.1f} GPU hours at {timed[0][0].price:g}", math.ceil(need)
        message = worded("planner.over-cost", need=need, each=each, limit=limit, most=most, offered=OFFERED)
        yield recipe.note("limits.cost", *message, mending=most)


def _speed(recipe: Recipe, timed: list[Timed], limit: float) -> Iterator[Problem]:
    slowest, _, time = min(timed, key=lambda each: each[2].samples_a_second)
    if (pace := time.samples_a_second) < limit:
        # Rounded down, so that the written value holds.
        digits = 2 - math.floor(math.log10(pace))
        holds = math.floor(pace * 10**digits) / 10**digits
        message = said("too_slow", slowest=slowest, time=time, limit=limit, holds=holds)
        yield recipe.note("limits.samples_per_second", *message, mending=holds)


_BY_MEMORY: dict[str, Callable[..., Iterator[Problem]]] = {"gpu_memory": _memory, "gpu_memory_parts": _parts}
_BY_TIME: dict[str, Callable[..., Iterator[Problem]]] = {"time": _time, "cost": _cost, "samples_per_second": _speed}


def late(recipe: Recipe, forecasts: list[Forecast], preparations: Sequence[Preparation] = ()) -> Iterator[Problem]:
    """Notes on what may be stopped before its end: training at the recipe's time limit, a job at its deadline."""
    times, limit = [each.time for each in forecasts if each.time], _time_limit(recipe)
    usual, longest = sum(time.total_seconds for time in times), sum(time.range_seconds[1] for time in times)
    # Above the limit, `broken` reports it.
    if usual <= limit < longest:
        enough = units.at_least(longest)
        stops, most = stated(recipe)["time"], units.duration(longest)
        message = worded("planner.over-time", longest=most, limit=stops, enough=enough)
        yield recipe.note("limits.time", *message, mending=enough)
    yield from ended_by_deadline(recipe, forecasts, preparations)


def _time_limit(recipe: Recipe) -> float:
    limit = stated(recipe).get("time")
    return units.seconds(limit) if limit else math.inf


def ended_by_deadline(recipe: Recipe, forecasts: list[Forecast], before: Sequence[Preparation]) -> Iterator[Problem]:
    """A note on the longest stage whose job the cluster may stop before its end; all jobs have one deadline."""
    hours = (recipe.settings.get("openshift") or {}).get("deadline_hours")
    if hours is None:
        return
    deadline, limit = hours * 3600, _time_limit(recipe)
    late: list[tuple[Duration | Preparation, str]] = [
        (time, forecast.stage.name)
        for forecast in forecasts
        # At its own limit training stops by itself.
        if (time := forecast.time) and min(time.range_seconds[1], limit) > deadline
    ]
    late += [(each, each.stage) for each in before if each.range_seconds[1] > deadline]
    if late:
        longest, name = max(late, key=lambda one: one[0].range_seconds[1])
        enough, trains = math.ceil(longest.range_seconds[1] / 3600 * 1.1), isinstance(longest, Duration)
        words = {"name": name, "longest": longest, "count": len(late), "hours": hours, "enough": enough}
        yield recipe.note("openshift.deadline_hours", *said("over_deadline", trains=trains, **words), mending=enough)


def too_short(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """The stages that make too few steps of the rows that they read."""
    return [each for each in forecasts if each.steps and each.steps < TOO_FEW and not each.workload.max_steps]


def too_few_steps(recipe: Recipe, forecasts: Sequence[Forecast], hint: str = MORE_STEPS_OFFERED) -> Iterator[Problem]:
    """A note for each stage that makes too few steps."""
    for forecast in too_short(forecasts):
        count = f"{forecast.steps} step{'' if forecast.steps == 1 else 's'}"
        message, _ = worded("planner.too-few-steps", forecast=forecast, count=count)
        own = recipe.of_stage(forecast.stage.name)
        yield own.note((section(own, forecast.stage), "epochs"), message, hint)
