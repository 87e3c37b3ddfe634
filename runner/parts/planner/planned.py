"""Planned: a recipe with its plan and what that needs, as `plan` shows it and as offers try it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.parts.planner import cluster_totals as together
from runner.parts.planner import forecast, limits, storage
from runner.parts.planner.cluster_totals import Hardware
from runner.parts.planner.forecast import Forecast
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.scenarios import translate
from runner.tools.problem import Problem


@dataclass(frozen=True)
class Together:
    """Time and cost of the stages whose time can be told, and the names of the others. cost: None where no price is named."""

    total_seconds: float
    range_seconds: tuple[float, float]
    gpu_hours: float
    cost: float | None
    without: Sequence[str]

    @classmethod
    def of(cls, forecasts: Iterable[Forecast]) -> Together:
        forecasts = list(forecasts)
        told = [forecast.time for forecast in forecasts if forecast.time]
        costs = [forecast.cost for forecast in forecasts if forecast.cost is not None]
        return cls(
            total_seconds=sum(time.total_seconds for time in told),
            range_seconds=(sum(time.range_seconds[0] for time in told), sum(time.range_seconds[1] for time in told)),
            gpu_hours=sum(forecast.gpu_hours or 0 for forecast in forecasts),
            cost=sum(costs) if costs else None,
            without=[forecast.stage.name for forecast in forecasts if not forecast.time],
        )


@dataclass(frozen=True)
class Planned:
    """A recipe, the plan that it makes, and a forecast for each stage that there are formulas for. price: of one GPU hour, as
    given beside the recipe; rows: as given where nobody can count them."""

    recipe: Recipe
    plan: Plan
    forecasts: list[Forecast]
    price: float | None = None
    rows: int | None = None

    @classmethod
    def of(cls, recipe: Recipe, price: float | None = None, rows: int | None = None) -> Planned:
        """Raises UnknownArchitecture where there are no formulas for a model, and Stop where the recipe makes no plan."""
        plan = translate(recipe, place(recipe))
        return cls(recipe, plan, forecast.of(recipe, plan, price, rows), price, rows)

    @cached_property
    def sized(self) -> Plan:
        """The plan with the sizes of its claims: they are asked for by what is known everywhere, and judged by what is
        known here."""
        return storage.sized(self.plan, forecast.of(self.recipe, self.plan, look=False))

    @cached_property
    def problems(self) -> list[Problem]:
        """What keeps the recipe from doing what it says: stages that do not fit, limits that do not hold, claims and machines
        that are too small."""
        large = [problem for stage in self.forecasts if (problem := forecast.too_large(self.recipe, stage))]
        stored = storage.problems(self.recipe.document, self.plan, self.forecasts)
        return [*large, *limits.broken(self.recipe, self.forecasts), *stored]

    @cached_property
    def notes(self) -> list[Problem]:
        """What holds and is hardly meant."""
        return [
            *forecast.notes(self.recipe, self.forecasts),
            *forecast.late(self.recipe, self.forecasts),
            *limits.too_few_steps(self.recipe, self.forecasts),
        ]

    @cached_property
    def together(self) -> Together:
        return Together.of(self.forecasts)

    @cached_property
    def hardware(self) -> Hardware | None:
        return together.hardware(self.recipe, self.forecasts)

    @property
    def seconds(self) -> float | None:
        """Of all stages; None where that of one cannot be told."""
        return None if self.together.without or not self.forecasts else self.together.total_seconds
