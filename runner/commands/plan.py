"""`recipe plan`: what a recipe will need, before it costs anything."""

from __future__ import annotations

import math

import click
from rich.console import Console

from runner.check.validate import load
from runner.commands.options import open_recipe, print_notes, recipe_path, say, set_option
from runner.commands.planning import text
from runner.commands.planning.by_trace import BASIS, TracedStage, as_json
from runner.commands.planning.report import PlanReport
from runner.estimate import forecast, limits, storage
from runner.estimate.forecast import Forecast
from runner.estimate.parameters import UnknownArchitecture
from runner.estimate.workload import Workload
from runner.plan import Plan
from runner.problem import Stop
from runner.recipe import overrides as changing
from runner.recipe.recipe import Recipe
from runner.scenarios import translate
from runner.targets import place
from runner.trace import any_architecture, trace


@click.command()
@recipe_path
@set_option
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", help="How to print the plan.")
@click.option("--exact", is_flag=True, help="Build the real model and count every byte of two steps on fake tensors.")
@click.option("--price", type=click.FloatRange(min=0), help="What one GPU costs an hour, in any currency.")
@click.option("--machines", "counts", metavar="N,N…", help="Compare these counts of machines, e.g. 1,2,4.")
@click.option("--rows", type=click.IntRange(min=1), help="How many rows there are, where nobody has counted them.")
def plan(
    path: str,
    sets: tuple[str, ...],
    style: str,
    exact: bool,
    price: float | None,
    counts: str | None,
    rows: int | None,
) -> int:
    """Say what every stage of a recipe will need, whether it fits, and what would make it fit."""
    if price is not None and not math.isfinite(price):
        raise Stop(f"`--price {price}` is no price.", "For example: --price 2.50", code=2)
    recipe = _open(path, sets, style)
    planned = translate(recipe, place(recipe))
    try:
        forecasts = forecast.of(recipe, planned, price, rows)
        # Claims are asked for by what is known everywhere, and judged by what is known here.
        planned = storage.sized(planned, forecast.of(recipe, planned, look=False))
        large = [problem for stage in forecasts if (problem := forecast.too_large(recipe, stage))]
        problems = large + limits.broken(recipe, forecasts)
    except UnknownArchitecture as error:
        if not exact:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None
        return _by_trace_alone(recipe, planned, forecast.of(recipe, planned, price, rows, any_architecture=True), style)
    problems += storage.problems(recipe.document, planned, forecasts)
    notes = [*forecast.notes(recipe, forecasts), *forecast.late(recipe, forecasts)]
    nodes = _counts(counts)
    # Operations are shown by JSON alone.
    traced = {stage.stage.name: trace(stage.workload, style == "json") for stage in forecasts} if exact else {}
    if style == "json":
        say(PlanReport.of(planned, forecasts, nodes, traced, problems, notes).as_json())
        return 1 if problems else 0
    text.show(planned, forecasts, nodes, traced)
    for problem in (*problems, *notes):
        say(f"\n{problem}")
    return 1 if problems else 0


def _by_trace_alone(recipe: Recipe, planned: Plan, forecasts: list[Forecast], style: str) -> int:
    """Shows what traces say of models that there are no formulas for; 1 where one does not fit its GPU."""
    stages = []
    for stage in forecasts:
        if isinstance(work := stage.workload, Workload):
            stages.append(TracedStage.of(stage, work, any_architecture(work, recipe.base_folder)))
            if style == "text":
                Console(width=120).print(stages[-1].table())
    told = {stage.stage for stage in stages}
    if style == "text":
        say(BASIS)
    else:
        say(as_json(recipe.name, stages, [stage.name for stage in planned.stages if stage.name not in told]))
    return int(any(stage.fits is False for stage in stages))


def _open(path: str, sets: tuple[str, ...], style: str) -> Recipe:
    if style == "text":
        return open_recipe(path, sets)[0]
    # JSON has standard output for itself.
    recipe, _, notes = load(path, changing.from_options(sets))
    print_notes(notes)
    return recipe


def _counts(text: str | None) -> list[int]:
    try:
        counts = [int(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise Stop(f"`--machines {text}` is no list of counts.", "For example: --machines 1,2,4", code=2)
    return counts
