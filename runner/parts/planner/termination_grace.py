"""Grace: the seconds that a pod gets between the cluster's wish to end it and its end, for a checkpoint that costs no step."""

import math
from dataclasses import replace

from runner.parts.planner.forecast import Forecast
from runner.plan import Plan

# Leaving the loop and the group, and closing what is written.
LEAVING = 30
# For a step and an evaluation that are under way, where nobody knows how many rows there are.
UNKNOWN = 600
# However much longer than planned either may take.
TIMES = 2


def seconds(plan: Plan, forecast: Forecast) -> int | None:
    """The step that is under way, an evaluation that follows it, and the checkpoint at the speed of its claim, in whole minutes;
    None where the run writes to no claim."""
    if plan.claim_of(plan.place_of(forecast.stage).run_dir) is None:
        return None
    saving: float = forecast.formulas.written(forecast.stage)["checkpoint"] / (forecast.workload.disk_mb_s * 1e6)
    return 60 * math.ceil((LEAVING + _under_way(forecast) + saving) / 60)


def _under_way(forecast: Forecast) -> float:
    if (time := forecast.time) is None:
        return UNKNOWN
    return TIMES * (time.step_seconds + time.evaluation_seconds / max(1, time.evaluations))


def given(plan: Plan, forecasts: list[Forecast]) -> Plan:
    """The plan with the grace of each stage that is forecast."""
    by_name = {forecast.stage.name: seconds(plan, forecast) for forecast in forecasts}
    stages = (replace(stage, grace_seconds=by_name.get(stage.name)) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))
