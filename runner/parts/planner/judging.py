"""The planner's answers to the core: the needs of a recipe as problems, as sizes, and as predictions for a run."""

from collections.abc import Collection

from runner.check.validate import TOO_LARGE
from runner.parts.planner import calibration, constants, forecast, limits, processor, storage
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.parameters import UnknownArchitecture
from runner.plan import Plan, Prediction
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem


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
    notes += forecast.ended_by_deadline(recipe, forecasts, storage.preparations(recipe, plan))
    return [note for note in (*notes, *_few(recipe, plan)) if note]


# Bytes; a larger file makes enough steps, and is not opened.
SMALL = 1_000_000


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
    from runner.parts.planner.planned import Planned

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
    made = _known(recipe, plan)
    with constants.taking({stage.machines.gpu: constants.ASSUMED for stage in plan.stages}):
        return tuple(map(_prediction, made, _known(recipe, plan)))


def _prediction(made: Forecast, alone: Forecast) -> Prediction:
    """alone: the same forecast by formulas alone."""
    time, memory = made.time, made.memory
    least, most = time.range_seconds if time else (None, None)
    return Prediction(
        stage=made.stage.name,
        gpu=made.gpu.title if made.gpu else made.stage.machines.gpu,
        gpus=made.stage.machines.world_size,
        steps=made.steps,
        seconds=time.total_seconds if time else None,
        seconds_least=least,
        seconds_most=most,
        memory=memory.total,
        memory_least=made.memory_range[0],
        memory_most=made.memory_range[1],
        tensors=memory.tensors,
        usable=made.usable,
        label=made.stage.machines.gpu,
        step_seconds=alone.time.step_seconds if alone.time else None,
        waiting_seconds=alone.time.waiting_seconds if alone.time else None,
    )
