"""A plan for tools: bytes, seconds and counts, under the names of its JSON. No figure is made here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from runner.parts.planner import forecast, limits, storage
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.memory import Memory, Moment
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.scaling import StageOnMachines, rows
from runner.parts.planner.trace import Traced

# Moments of the backward pass that are told, of one for each layer.
MOST_MOMENTS = 12
# What lies on a GPU at a moment of a step.
PARTS = ("weights", "optimizer", "gradients", "activations", "loss", "other", "reserve")


@dataclass(frozen=True)
class MomentParts:
    """Bytes of a GPU at a moment of a step: forward, loss, backward, step. other: buffers, weights gathered for a while,
    and what is on its way. reserve: CUDA context and allocator slack."""

    moment: str
    weights: int
    optimizer: int
    gradients: int
    activations: int
    loss: int
    other: int
    reserve: int

    @classmethod
    def of(cls, memory: Memory, moment: Moment) -> MomentParts:
        state, slack = memory.state, memory.slack / max(memory.tensors, 1)
        return cls(
            moment=moment.name,
            weights=state.weights,
            optimizer=state.optimizer,
            gradients=moment.gradients,
            activations=moment.activations,
            loss=moment.logits,
            other=moment.base - state.weights - state.optimizer + moment.temporary,
            reserve=round(moment.size * slack) + memory.context,
        )

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in PARTS)


def step(memory: Memory) -> list[MomentParts]:
    """The moments of a step, from its beginning; of a long backward pass some, evenly apart, and the one that takes most."""
    backward = [moment for moment in memory.moments if moment.name == "backward"]
    most = max(backward, key=lambda moment: moment.size, default=None)
    every = -(-len(backward) // MOST_MOMENTS) or 1
    kept = [moment for n, moment in enumerate(backward) if n % every == 0 or moment in (most, backward[-1])]
    whole = [moment for moment in memory.moments if moment.name != "backward" or moment in kept]
    # A step begins with what is held and no activations yet.
    start = whole[0]._replace(name="forward", activations=0, logits=0, temporary=0)
    return [MomentParts.of(memory, moment) for moment in (start, *whole)]


def as_json(planned: Planned, offers: Iterable[Offer], nodes: list[int], traced: Mapping[str, Traced]) -> str:
    """The plan of a recipe. nodes: other counts of machines; traced: the exact trace of stages, by name."""
    plan, forecasts = planned.sized, planned.forecasts
    trained = [each.stage.name for each in forecasts]
    whole: dict[str, object] = {
        "name": plan.name,
        "basis": forecast.basis(forecasts, nodes),
        # What each claim is asked for with, and what will be written to it.
        "claims_gib": {claim["name"]: plan.claim_gib(claim["name"]) for claim in plan.site.get("claims") or ()},
        "claims_bytes": storage.needs(plan, forecasts),
        "stages": [_stage(planned, each, nodes, traced.get(each.stage.name)) for each in forecasts],
        # Stages that train nothing.
        "without_formulas": [stage.name for stage in plan.stages if stage.name not in trained],
        "all_stages": planned.together,
        "all_machines": planned.hardware,
        "before_training_bytes": list(storage.before_training(plan)),
        "problems": [problem.as_json() for problem in planned.problems],
        "notes": [note.as_json() for note in planned.notes],
        "offers": [_offer(offer) for offer in offers],
        "on_machines": rows(forecasts, nodes),
    }
    return dumped(whole)


def dumped(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=asdict)


def _stage(planned: Planned, stage: Forecast, nodes: list[int], traced: Traced | None) -> dict[str, object]:
    """What one stage needs; None for what cannot be told."""
    work, memory, rows = stage.workload, stage.memory, stage.rows
    return {
        "stage": stage.stage.name,
        "model": stage.formulas.name,
        "parameters": stage.counts.total,
        "trainable_parameters": stage.counts.trainable,
        "adapter_parameters": stage.counts.adapter,
        "gpu": stage.stage.machines.gpu,
        "gpus": stage.stage.machines.world_size,
        # Of each GPU.
        "gpu_memory_bytes": {
            "total": memory.total,
            # Between which that lies in nine of ten cases, and what that rests on.
            "range": stage.memory_range,
            "published": str(stage.memory_spread),
            # What nvidia-smi will show.
            "shown": memory.shown,
            # None where nobody knows the card.
            "usable": stage.usable,
            # The recipe's own, None where it states none.
            "limit": limits.gpu_memory(planned.recipe),
            # When most is taken.
            "moment": memory.moment,
            "parts": memory.parts(),
            # Of tensors, and of all.
            "evaluation": memory.evaluation,
            "in_evaluation": memory.in_evaluation,
            "step": step(memory),
        },
        "fits": stage.fits,
        "largest_micro_batch": stage.largest_micro_batch,
        "host_memory_bytes": storage.host(stage),
        "disk_bytes": storage.disk(stage, planned.sized),
        "effective_batch_size": work.effective_batch_size,
        "effective_batch_tokens": getattr(work, "batch_tokens", None),
        "learning_rate": work.learning_rate,
        "warmup_steps": stage.warmup_steps,
        "warmup_share": stage.warmup_steps / stage.steps if stage.steps else None,
        # tokens: of a mean one. source: who says so.
        "rows": {
            "training": work.rows,
            "evaluation": work.evaluation_rows,
            "tokens": rows.tokens,
            "source": rows.source,
        },
        "time": stage.time.as_json() if stage.time else None,
        "time_published": stage.time_source,
        "gpu_hours": stage.gpu_hours,
        "cost": stage.cost,
        "machines": [StageOnMachines.of(stage, count) for count in nodes],
        "exact": traced,
    }


def _offer(offer: Offer) -> dict[str, object]:
    """A change that holds: the lines to write, what all stages take then, and what is learned less or otherwise, in words."""
    return {
        "lines": offer.lines,
        # None where they cannot be told.
        "total_seconds": offer.after.seconds,
        "gpu_hours": offer.after.together.gpu_hours,
        # None too where the price is of another card.
        "cost": offer.cost,
        "gpu_memory_bytes": offer.gpu_memory,
        "loses": offer.loses,
    }
