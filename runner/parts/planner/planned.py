"""Planned: a recipe with its plan and its needs, for `plan` and for the trial of offers; the
recipe's limits, each judged at its line, and stages with too few steps to learn from."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import NamedTuple, Self

from runner.catalog.hardware import GIB
from runner.parts.planner import forecast, machine_counts, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import OFFERED, Forecast, said, stated
from runner.parts.planner.memory import usable
from runner.parts.planner.storage import Preparation
from runner.parts.planner.workload import TABLES
from runner.plan import Plan
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.scenarios import place, translate
from runner.tools.problem import Problem, plural

# Bytes; a larger file makes enough steps, and is not opened.
SMALL = 1_000_000
# With fewer steps than TOO_FEW a model learns little, whatever its warmup; ENOUGH is plenty for few
# rows.
TOO_FEW, ENOUGH = 12, 100
# With fewer than this, a warmup that is stated as a share has to last one step at least.
FEW = ENOUGH // 2
MORE_STEPS_OFFERED = f"`recipe plan` suggests settings that make about {ENOUGH}."
NO_REMEDIES: Mapping[str, str] = MappingProxyType({})


class TimedStage(NamedTuple):
    """A stage whose time is known."""

    forecast: Forecast
    time: Duration


@dataclass(frozen=True)
class ClusterTotals:
    """Time and cost of the stages with a known time. gpu_hours: of the stages that train. cost:
    None without a price. without: the names of the stages that train and have no known time."""

    total_seconds: float
    range_seconds: tuple[float, float]
    gpu_hours: float
    cost: float | None
    without: Sequence[str]


@dataclass(frozen=True)
class Planned:
    """A recipe with plan and forecasts. price: of one GPU hour, if given; rows: as given if they
    cannot be counted."""

    recipe: Recipe
    plan: Plan
    forecasts: list[Forecast]
    price: float | None = None
    rows: int | None = None

    @classmethod
    def of(cls, recipe: Recipe, price: float | None = None, rows: int | None = None) -> Self:
        """Raises UnknownArchitecture for a model without formulas, and Stop if the recipe makes no
        plan."""
        plan = translate(recipe, place(recipe))
        return cls(recipe, plan, forecast.of(recipe, plan, price, rows), price, rows)

    @cached_property
    def sized(self) -> Plan:
        """The plan with the sizes of its claims, which depend only on what is the same on every
        machine."""
        return storage.sized(self.plan, forecast.of(self.recipe, self.plan, look=False))

    @cached_property
    def problems(self) -> list[Problem]:
        """Stages that do not fit, limits that do not hold, claims and machines that are too small.
        The errors are those of `check`; the others are notes."""
        stored = storage.problems(self.recipe.document, self.plan, self.forecasts)
        return [*self._too_large(fits=False), *broken(self.recipe, self.forecasts), *stored]

    def _too_large(self, fits: bool) -> list[Problem]:
        problems = []
        for stage in self.forecasts:
            if stage.fits is fits:
                problems.append(forecast.too_large(self.recipe, stage))
        return list(filter(None, problems))

    @cached_property
    def notes(self) -> list[Problem]:
        """Notes on settings that are valid but hardly intended."""
        return [
            *self._too_large(fits=True),
            *beyond_card(self.recipe, self.forecasts),
            *forecast.notes(self.recipe, self.forecasts),
            *late(self.recipe, self.forecasts, self.preparations),
            *too_few_steps(self.recipe, self.forecasts),
            *machine_counts.slower_than_fewer(self.recipe, self.forecasts),
        ]

    @cached_property
    def preparations(self) -> list[Preparation]:
        return storage.preparations(self.recipe, self.plan)

    @property
    def fits(self) -> bool | None:
        """Whether every stage fits its card; None if none is too large, but the memory of one is
        unknown."""
        verdicts = [stage.fits for stage in self.forecasts]
        if False in verdicts:
            return False
        if None in verdicts:
            return None
        return True

    @cached_property
    def together(self) -> ClusterTotals:
        times: list[Duration | Preparation] = [stage.time for stage in self.forecasts if stage.time]
        times += self.preparations
        costs = [forecast.cost for forecast in self.forecasts if forecast.cost is not None]
        shortest = sum(time.range_seconds[0] for time in times)
        longest = sum(time.range_seconds[1] for time in times)
        return ClusterTotals(
            total_seconds=sum(time.total_seconds for time in times),
            range_seconds=(shortest, longest),
            gpu_hours=sum(forecast.gpu_hours or 0 for forecast in self.forecasts),
            cost=sum(costs) if costs else None,
            without=[forecast.stage.name for forecast in self.forecasts if not forecast.time],
        )

    @property
    def seconds(self) -> float | None:
        """Of all stages; None if the time of one that trains is unknown."""
        if self.together.without or not self.forecasts:
            return None
        return self.together.total_seconds


# The limits, and too few steps.


def gpu_memory(recipe: Recipe) -> int | None:
    """The recipe's limit for each GPU in bytes; None if it has none."""
    limit = stated(recipe).get("gpu_memory")
    if limit:
        return round(units.size(limit))
    return None


def beyond_card(recipe: Recipe, forecasts: list[Forecast]) -> Iterator[Problem]:
    """A note where the limit of memory is more than any of the cards has."""
    limit = gpu_memory(recipe)
    cards = [forecast.gpu for forecast in forecasts if forecast.gpu]
    most_memory = max((card.memory_gib for card in cards), default=0) * GIB
    if cards and limit and limit > most_memory:
        card = max(cards, key=lambda card: card.usable_gib)
        limited = stated(recipe)["gpu_memory"]
        card_memory = units.both(usable(card))
        most = usable(card) // 10**9
        message = (
            f"The limit is {limited}, but {card.title} has {card_memory}. It has no effect.",
            f"Write `gpu_memory: {most} GB` or less, delete the line, or name the card that is meant.",
        )
        yield recipe.note("limits.gpu_memory", *message, check="beyond-card")


def broken(recipe: Recipe, forecasts: list[Forecast]) -> list[Problem]:
    """A note for each limit of the recipe that does not hold, by estimate."""
    problems: list[Problem] = []
    limits = {}
    for name, limit in stated(recipe).items():
        if limit and name in (*_BY_MEMORY, *_BY_TIME):
            limits[name] = limit
    if not forecasts:
        reason = f"there are no formulas for the scenario `{recipe.scenario}`"
        remedies = {"time": "Training obeys a time limit anyway, but no plan can predict it."}
        for setting in limits:
            remedy = remedies.get(setting, "Delete it.")
            problems.append(_unknown(recipe, setting, reason, remedy))
        return problems
    for name, judge_memory in _BY_MEMORY.items():
        if name in limits:
            problems += judge_memory(recipe, forecasts, limits[name])
    timed = [TimedStage(stage, stage.time) for stage in forecasts if stage.gpu and stage.time]
    unknown = _why_untimed(forecasts)
    for name, judge_time in _BY_TIME.items():
        if name not in limits:
            continue
        if unknown is not None:
            remedy = "Fix that, or delete the limit."
            problems.append(_unknown(recipe, name, unknown, remedy))
        else:
            problems += judge_time(recipe, timed, limits[name])
    return problems


def _why_untimed(forecasts: list[Forecast]) -> str | None:
    """Why the time of a stage is unknown; None if all are known."""
    for stage in forecasts:
        if not stage.gpu:
            return f"the GPU `{stage.stage.machines.gpu}` is not in the catalog"
        if not stage.time:
            return stage.rows.source
    return None


def _unknown(recipe: Recipe, setting: str, reason: str, hint: str) -> Problem:
    return recipe.note(f"limits.{setting}", f"This limit cannot be checked: {reason}.", hint)


def _memory(recipe: Recipe, forecasts: list[Forecast], limit: str) -> Iterator[Problem]:
    need = max(forecast.memory.total for forecast in forecasts)
    holds = f"{math.ceil(need / units.GB)} GB"
    for stage in forecasts:
        if stage.memory.total > units.size(limit):
            message = said("over_memory", forecast=stage, limit=limit, holds=holds)
            yield recipe.note("limits.gpu_memory", *message, mending=holds)


def _parts(
    recipe: Recipe, forecasts: list[Forecast], limits: Mapping[str, str]
) -> Iterator[Problem]:
    for stage, (part, text) in product(forecasts, limits.items()):
        # Gradients count in full, even where the peak comes before all of them exist.
        sizes = stage.memory.parts() | {"gradients": stage.memory.state.gradients}
        adapter = 4 * stage.counts.adapter
        if part == "adapter":
            need = adapter
        else:
            need = sum(sizes[name] for name in TABLES["limits"][part])
        if part == "weights" and "adapter" in limits:
            need -= adapter
        if need > units.size(text):
            tenths = math.ceil(need / 10**8)
            holds = f"{tenths / 10:g} GB"
            message = (
                f"`{part}` needs {units.both(need)} in stage `{stage.stage.name}`, but the limit is {text}.",
                f"Write `{part}: {holds}`, or change the settings behind it. `recipe plan --details` shows every part.",
            )
            yield recipe.note(f"limits.gpu_memory_parts.{part}", *message, mending=holds)


def _time(recipe: Recipe, timed: list[TimedStage], limit: str) -> Iterator[Problem]:
    need = sum(time.total_seconds for _, time in timed)
    if need > units.seconds(limit):
        longest, time = max(timed, key=lambda stage: stage.time.total_seconds)
        likely_most = sum(time.range_seconds[1] for _, time in timed)
        holds = units.at_least(likely_most)
        message = said(
            "over_limit", need=need, longest=longest, time=time, limit=limit, holds=holds
        )
        yield recipe.note("limits.time", *message, mending=holds)


def _cost(recipe: Recipe, timed: list[TimedStage], limit: float) -> Iterator[Problem]:
    costs = [stage.forecast.cost for stage in timed]
    if None in costs:
        yield _unknown(
            recipe,
            "cost",
            "the price is unknown",
            "Write `limits.price_per_gpu_hour`, or add `--price`.",
        )
        return
    need = sum(filter(None, costs))
    if need > limit:
        hours = sum(forecast.gpu_hours or 0 for forecast, _ in timed)
        price = timed[0].forecast.price
        most = math.ceil(need)
        message = (
            f"The run costs about {need:.2f} ({hours:.1f} GPU hours at {price:g}), but the limit is {limit:g}.",
            f"Write `cost: {most}`, or choose a cheaper GPU. {OFFERED}",
        )
        yield recipe.note("limits.cost", *message, mending=most)


def _speed(recipe: Recipe, timed: list[TimedStage], limit: float) -> Iterator[Problem]:
    slowest, time = min(timed, key=lambda stage: stage.time.samples_a_second)
    pace = time.samples_a_second
    if pace < limit:
        # Rounded down, so that the written value holds.
        power = 10 ** (2 - math.floor(math.log10(pace)))
        holds = math.floor(pace * power) / power
        message = said("too_slow", slowest=slowest, time=time, limit=limit, holds=holds)
        yield recipe.note("limits.samples_per_second", *message, mending=holds)


_BY_MEMORY: dict[str, Callable[..., Iterator[Problem]]] = {
    "gpu_memory": _memory,
    "gpu_memory_parts": _parts,
}
_BY_TIME: dict[str, Callable[..., Iterator[Problem]]] = {
    "time": _time,
    "cost": _cost,
    "samples_per_second": _speed,
}


def late(
    recipe: Recipe, forecasts: list[Forecast], preparations: Sequence[Preparation] = ()
) -> Iterator[Problem]:
    """Notes on what may be stopped before its end: training at the recipe's time limit, a job at
    its deadline."""
    times = [stage.time for stage in forecasts if stage.time]
    limit = stated(recipe).get("time")
    usual = sum(time.total_seconds for time in times)
    longest = sum(time.range_seconds[1] for time in times)
    # Above the limit, `broken` reports it.
    if limit and usual <= units.seconds(limit) < longest:
        enough = units.at_least(longest)
        message = (
            f"Training may take up to {units.duration(longest)}, but its limit is {limit}. It would end early, with its best model so far.",
            f"Write `time: {enough}`, unless you want that.",
        )
        yield recipe.note("limits.time", *message, mending=enough)
    yield from ended_by_deadline(recipe, forecasts, preparations)


def ended_by_deadline(
    recipe: Recipe, forecasts: list[Forecast], before: Sequence[Preparation]
) -> Iterator[Problem]:
    """A note on the longest stage whose job the cluster may stop before its end; all jobs have one
    deadline."""
    hours = (recipe.settings.get("openshift") or {}).get("deadline_hours")
    if hours is None:
        return
    deadline = hours * 3600
    limit = stated(recipe).get("time")
    # At its own limit training stops by itself.
    if limit:
        most = units.seconds(limit)
    else:
        most = math.inf
    late: list[tuple[Duration | Preparation, str]] = []
    for stage in forecasts:
        time = stage.time
        if time and min(time.range_seconds[1], most) > deadline:
            late.append((time, stage.stage.name))
    for preparation in before:
        if preparation.range_seconds[1] > deadline:
            late.append((preparation, preparation.stage))
    if late:
        longest, name = max(late, key=lambda named_time: named_time[0].range_seconds[1])
        enough = math.ceil(longest.range_seconds[1] / 3600 * 1.1)
        message = said(
            "over_deadline",
            trains=isinstance(longest, Duration),
            name=name,
            longest=longest,
            count=len(late),
            hours=hours,
            enough=enough,
        )
        yield recipe.note(
            "openshift.deadline_hours", *message, mending=enough, check="deadline-too-early"
        )


def too_short(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """The stages that make too few steps of the rows that they read."""
    short_stages = []
    for stage in forecasts:
        if stage.steps and not stage.workload.max_steps and _is_short(stage, stage.steps):
            short_stages.append(stage)
    return short_stages


def _is_short(stage: Forecast, steps: int) -> bool:
    """Whether a stage learns little in its steps: they are very few, or the share of them that
    should be warmup is less than one."""
    loses_its_warmup = stage.workload.warmup_ratio > 0 and stage.warmup_steps == 0
    return steps < TOO_FEW or (steps < FEW and loses_its_warmup)


def too_few_steps(
    recipe: Recipe, forecasts: Sequence[Forecast], remedies: Mapping[str, str] = NO_REMEDIES
) -> Iterator[Problem]:
    """A note for each stage that makes too few steps. remedies: sentences by the stage's name,
    where a change was tried."""
    for stage in too_short(forecasts):
        name = stage.stage.name
        count = stage.steps or 0
        steps = f"{count} {plural('step', count)}"
        rows = stage.workload.effective_batch_size
        message = f"Stage `{name}` makes only {steps} of {rows:,} rows, {stage.warmup_steps} of them as warmup. That is too few to learn much."
        remedy = remedies.get(name, MORE_STEPS_OFFERED)
        stage_recipe = recipe.of_stage(name)
        yield stage_recipe.note(("train", "epochs"), message, remedy, check="too-few-steps")
