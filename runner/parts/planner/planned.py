"""Planned: a recipe with its plan and its needs, for `plan` and for the trial of offers; and the planner's answers to
the core: these needs as problems, as sizes, and as predictions for a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.check.validate import TOO_LARGE
from runner.parts.planner import calibration, constants, forecast, limits, processor, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast, named
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.storage import Preparation
from runner.parts.planner.workload import TABLES
from runner.plan import Plan, Prediction
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.scenarios import translate
from runner.tools.problem import Problem

# Bytes; a larger file makes enough steps, and is not opened.
SMALL = 1_000_000


@dataclass(frozen=True)
class ClusterTotals:
    """Time and cost of the stages with a known time. gpu_hours: of the stages that train. cost: None without a price.
    without: the names of the stages that train and have no known time."""

    total_seconds: float
    range_seconds: tuple[float, float]
    gpu_hours: float
    cost: float | None
    without: Sequence[str]


@dataclass(frozen=True)
class Planned:
    """A recipe with plan and forecasts. price: of one GPU hour, if given; rows: as given if they cannot be counted."""

    recipe: Recipe
    plan: Plan
    forecasts: list[Forecast]
    price: float | None = None
    rows: int | None = None

    @classmethod
    def of(cls, recipe: Recipe, price: float | None = None, rows: int | None = None) -> Planned:
        """Raises UnknownArchitecture for a model without formulas, and Stop if the recipe makes no plan."""
        plan = translate(recipe, place(recipe))
        return cls(recipe, plan, forecast.of(recipe, plan, price, rows), price, rows)

    @cached_property
    def sized(self) -> Plan:
        """The plan with the sizes of its claims, which depend only on what is the same on every machine."""
        return storage.sized(self.plan, forecast.of(self.recipe, self.plan, look=False))

    @cached_property
    def problems(self) -> list[Problem]:
        """Stages that do not fit, limits that do not hold, claims and machines that are too small. The errors are those
        of `check`; the others are notes."""
        stored = storage.problems(self.recipe.document, self.plan, self.forecasts)
        return [*self._too_large(fits=False), *limits.broken(self.recipe, self.forecasts), *stored]

    def _too_large(self, fits: bool) -> list[Problem]:
        verdicts = (forecast.too_large(self.recipe, stage) for stage in self.forecasts if stage.fits is fits)
        return list(filter(None, verdicts))

    @cached_property
    def notes(self) -> list[Problem]:
        """Notes on settings that are valid but hardly intended."""
        return [
            *self._too_large(fits=True),
            *limits.beyond_card(self.recipe, self.forecasts),
            *forecast.notes(self.recipe, self.forecasts),
            *limits.late(self.recipe, self.forecasts, self.preparations),
            *limits.too_few_steps(self.recipe, self.forecasts),
        ]

    @cached_property
    def preparations(self) -> list[Preparation]:
        return storage.preparations(self.recipe, self.plan)

    @cached_property
    def together(self) -> ClusterTotals:
        times: list[Duration | Preparation] = [each.time for each in self.forecasts if each.time]
        times += self.preparations
        costs = [forecast.cost for forecast in self.forecasts if forecast.cost is not None]
        return ClusterTotals(
            total_seconds=sum(time.total_seconds for time in times),
            range_seconds=(sum(time.range_seconds[0] for time in times), sum(time.range_seconds[1] for time in times)),
            gpu_hours=sum(forecast.gpu_hours or 0 for forecast in self.forecasts),
            cost=sum(costs) if costs else None,
            without=[forecast.stage.name for forecast in self.forecasts if not forecast.time],
        )

    @property
    def seconds(self) -> float | None:
        """Of all stages; None if the time of one that trains is unknown."""
        return None if self.together.without or not self.forecasts else self.together.total_seconds


# What the core asks of a forecast (`Forecasting` in scenarios/contract.py).


def problems(recipe: Recipe, plan: Plan, allowed: Collection[str]) -> list[Problem]:
    """An error where a stage never fits its GPU; and notes on stages that may not fit, claims and pods that are too
    small, a learning rate that never stops rising, a deadline that comes too early."""
    try:
        forecasts = forecast.of(recipe, plan, look=False)
        # Files are opened only where their rows decide, because `check` counts its milliseconds.
        roomy = all(stage.full.fits is not False for stage in forecasts)
        known = forecasts if roomy else forecast.of(recipe, plan)
        notes = [forecast.too_large(recipe, stage, TOO_LARGE in allowed) for stage in known]
    except UnknownArchitecture:
        return []  # `plan` reports it
    notes += [*storage.problems(recipe.document, plan, forecasts), *limits.beyond_card(recipe, forecasts)]
    notes += forecast.notes(recipe, forecasts)
    notes += limits.ended_by_deadline(recipe, forecasts, storage.preparations(recipe, plan))
    return [note for note in (*notes, *_few(recipe, plan)) if note]


def _few(recipe: Recipe, plan: Plan) -> list[Problem]:
    """Notes on stages that make too few steps of a small local file, with settings that were tried and make more."""
    files = [recipe.folder / name for where, name in recipe.local_files() if where[-1] == "path"]
    if not files or not all(file.is_file() and file.stat().st_size < SMALL for file in files):
        return []
    forecasts = forecast.of(recipe, plan)
    if not limits.too_short(forecasts):
        return []
    # Imported here, because only a recipe with too few steps needs the search.
    from runner.parts.planner import recipe_offers

    tried = recipe_offers.more_steps(Planned(recipe, plan, forecasts))
    return list(limits.too_few_steps(recipe, forecasts, tried))


def _known(recipe: Recipe, plan: Plan, look: bool = True) -> list[Forecast]:
    """The forecasts; none for an architecture without formulas, which `plan` reports."""
    try:
        return forecast.of(recipe, plan, look=look)
    except UnknownArchitecture:
        return []


def sized(recipe: Recipe, plan: Plan) -> Plan:
    """The plan with estimated sizes of claims, memory, and the time that its pods get to end."""
    return storage.sized(plan, _known(recipe, plan, look=False))


def written(recipe: Recipe, plan: Plan) -> dict[str, int]:
    """The bytes that the plan writes to each claim, by its name; empty if the model has no formulas."""
    forecasts = _known(recipe, plan, look=False)
    return storage.needs(plan, forecasts) if forecasts else {}


def on_processor(recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
    """The predictions for this machine's own processor, by its measured pace and by what earlier runs on it took."""
    processor.measure()
    with constants.taking(calibration.learned()):
        return predictions(recipe, plan)


def predictions(recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
    """The predictions for each stage that trains; empty if the model has no formulas."""
    with constants.taking({stage.machines.gpu: constants.ASSUMED for stage in plan.stages}):
        alone = [named(TABLES["prediction_alone"], one) for one in _known(recipe, plan)]
    return tuple(map(_prediction, _known(recipe, plan), alone))


def _prediction(made: Forecast, alone: Mapping[str, float | None]) -> Prediction:
    """alone: the figures by formulas alone."""
    least, most = made.time.range_seconds if made.time else (None, None)
    memory_least, memory_most = made.memory_range
    return Prediction(
        **named(TABLES["prediction"], made),
        **alone,
        gpu=made.gpu.title if made.gpu else made.stage.machines.gpu,
        seconds_least=least,
        seconds_most=most,
        memory_least=memory_least,
        memory_most=memory_most,
    )
