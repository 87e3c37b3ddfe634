"""The planner's answers to the core (`Forecasting` in parts/contract.py): a recipe's needs as
problems, as sizes, and as predictions for a run."""

from collections.abc import Collection
from dataclasses import replace

from runner.catalog import UnknownArchitecture
from runner.check.validate import TOO_LARGE
from runner.parts.planner import constants, forecast, machine_counts, storage
from runner.parts.planner.planned import (
    SMALL,
    Planned,
    beyond_card,
    ended_by_deadline,
    too_few_steps,
    too_short,
)
from runner.parts.planner.workload import TABLES
from runner.plan import Plan, Prediction
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem


def problems(recipe: Recipe, plan: Plan, allowed: Collection[str]) -> list[Problem]:
    """An error where a stage never fits its GPU; and notes on stages that may not fit, claims and
    pods that are too small, a learning rate that never stops rising, a deadline that comes too
    early, and too few steps."""
    try:
        forecasts = forecast.of(recipe, plan, look=False)
        # Files are opened only where their rows decide, because `check` counts its milliseconds.
        roomy = all(stage.full.fits is not False for stage in forecasts)
        if roomy:
            judged = forecasts
        else:
            judged = forecast.of(recipe, plan)
        notes = [forecast.too_large(recipe, stage, TOO_LARGE in allowed) for stage in judged]
    except UnknownArchitecture:
        return []  # `plan` reports it
    notes += [*storage.problems(recipe.document, plan, forecasts), *beyond_card(recipe, forecasts)]
    notes += forecast.notes(recipe, forecasts)
    notes += ended_by_deadline(recipe, forecasts, storage.preparations(recipe, plan))
    notes += machine_counts.slower_than_fewer(recipe, forecasts)
    # Of local files only small ones are counted; those of the catalog's data sets are known.
    files = []
    for setting, name in recipe.local_files():
        if setting[-1] == "path":
            files.append(recipe.folder / name)
    counted = forecasts
    if files and all(file.is_file() and file.stat().st_size < SMALL for file in files):
        if roomy:
            counted = forecast.of(recipe, plan)
        else:
            counted = judged
    if too_short(counted):
        # Imported here, because only a recipe with too few steps needs the search.
        from runner.parts.planner import recipe_offers

        remedies = recipe_offers.more_steps(Planned(recipe, plan, counted))
        notes += too_few_steps(recipe, counted, remedies)
    return [note for note in notes if note]


def _known(recipe: Recipe, plan: Plan, look: bool = True) -> list[forecast.Forecast]:
    """The forecasts; none for an architecture without formulas, which `plan` reports."""
    try:
        return forecast.of(recipe, plan, look=look)
    except UnknownArchitecture:
        return []


def sized(recipe: Recipe, plan: Plan) -> Plan:
    """The plan with estimated sizes of claims, memory, and the time that its pods get to end."""
    return storage.sized(plan, _known(recipe, plan, look=False))


def written(recipe: Recipe, plan: Plan) -> dict[str, int]:
    """The bytes that the plan writes to each claim, by its name; empty if the model has no
    formulas."""
    forecasts = _known(recipe, plan, look=False)
    if forecasts:
        return storage.needs(plan, forecasts)
    return {}


def on_processor(recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
    """The predictions for this machine's own processor, by its measured pace and by what earlier
    runs on it took."""
    # Imported here, because a check measures nothing.
    from runner.parts.planner import calibration, processor

    processor.measure()
    with constants.taking(calibration.learned()):
        return predictions(recipe, plan)


def predictions(recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
    """The predictions for each stage that trains; empty if the model has no formulas."""
    forecasts = _known(recipe, plan)
    with constants.taking({stage.machines.gpu: constants.ASSUMED for stage in plan.stages}):
        # By the formulas alone; a copy computes its figures again.
        alone = [
            forecast.named(TABLES["prediction_alone"], replace(stage_forecast))
            for stage_forecast in forecasts
        ]
    predicted = []
    for stage_forecast, figures in zip(forecasts, alone, strict=True):
        if stage_forecast.gpu:
            gpu = stage_forecast.gpu.title
        else:
            gpu = stage_forecast.stage.machines.gpu
        predicted.append(
            Prediction(**forecast.named(TABLES["prediction"], stage_forecast), **figures, gpu=gpu)
        )
    return tuple(predicted)
