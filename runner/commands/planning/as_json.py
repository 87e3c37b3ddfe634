"""A plan as JSON, for tools. No figure is made here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runner.estimate import storage
from runner.estimate.forecast import Forecast, basis
from runner.plan import Plan
from runner.problem import Problem


def whole(
    plan: Plan,
    forecasts: list[Forecast],
    nodes: list[int],
    traced: dict[str, Any],
    problems: list[Problem],
    notes: list[Problem],
) -> dict[str, Any]:
    """The plan for tools: bytes, seconds and counts."""
    return {
        "name": plan.name,
        "basis": basis(forecasts, nodes),
        "claims_gib": {claim["name"]: plan.claim_gib(claim["name"]) for claim in plan.site.get("claims") or ()},
        "claims_bytes": storage.needs(plan, forecasts),
        "stages": [_stage_json(plan, forecast, nodes, traced.get(forecast.stage.name)) for forecast in forecasts],
        "without_formulas": [
            stage.name for stage in plan.stages if stage.name not in {f.stage.name for f in forecasts}
        ],
        "all_stages": _together(forecasts),
        "before_training_bytes": [asdict(entry) for entry in storage.before_training(plan)],
        "problems": [problem.as_json() for problem in problems],
        "notes": [note.as_json() for note in notes],
    }


def _together(forecasts: list[Forecast]) -> dict[str, Any]:
    """Time and cost of the stages whose time can be told, and the names of the others."""
    told = [forecast for forecast in forecasts if forecast.time]
    priced = [forecast.cost for forecast in told]
    return {
        "total_seconds": sum(forecast.time.total_seconds for forecast in told),
        "range_seconds": [sum(forecast.time.range_seconds[end] for forecast in told) for end in (0, 1)],
        "gpu_hours": sum(forecast.gpu_hours for forecast in told),
        "cost": None if not told or None in priced else sum(priced),
        "without": [forecast.stage.name for forecast in forecasts if not forecast.time],
    }


def _stage_json(plan: Plan, forecast: Forecast, nodes: list[int], traced: Any) -> dict[str, Any]:
    work, memory, time = forecast.workload, forecast.memory, forecast.time
    return {
        "stage": forecast.stage.name,
        "model": forecast.formulas.name(work),
        "parameters": forecast.counts.total,
        "trainable_parameters": forecast.counts.trainable,
        "adapter_parameters": forecast.counts.adapter,
        "gpu": forecast.stage.machines.gpu,
        "gpus": forecast.stage.machines.world_size,
        "gpu_memory_bytes": {"total": memory.total, "usable": forecast.usable, "moment": memory.moment}
        | {"parts": memory.parts(), "evaluation": memory.evaluation},
        "fits": forecast.fits,
        "largest_micro_batch": forecast.largest_micro_batch if forecast.usable else None,
        "host_memory_bytes": storage.host(forecast),
        "disk_bytes": [asdict(entry) for entry in storage.disk(forecast, plan)],
        "effective_batch_size": work.effective_batch_size,
        "learning_rate": work.learning_rate,
        "warmup_steps": forecast.warmup_steps,
        "warmup_share": forecast.warmup_steps / forecast.steps if forecast.steps else None,
        "rows": {
            "training": work.rows,
            "evaluation": work.evaluation_rows,
            "tokens": forecast.rows.tokens,
            "source": forecast.rows.source,
        },
        "time": time
        and asdict(time)
        | {"total_seconds": time.total_seconds, "range_seconds": time.range_seconds}
        | {"samples_a_second": time.samples_a_second, "tokens_a_second": time.tokens_a_second},
        "gpu_hours": forecast.gpu_hours,
        "cost": forecast.cost,
        "machines": [_machines_json(forecast.on(count)) for count in nodes],
        "exact": traced.as_json() if traced else None,
    }


def _machines_json(forecast: Forecast) -> dict[str, Any]:
    time = forecast.time
    return {
        "nodes": forecast.stage.machines.nodes,
        "gpus": forecast.stage.machines.world_size,
        "effective_batch_size": forecast.workload.effective_batch_size,
        "step_seconds": time and time.step_seconds,
        "waiting_seconds": time and time.waiting_seconds,
        "total_seconds": time and time.total_seconds,
        "samples_a_second": time and time.samples_a_second,
    }
