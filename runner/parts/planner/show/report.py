"""A plan for tools: bytes, seconds and counts. The names of the fields are those of its JSON; no figure is made here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.parts.planner import storage
from runner.parts.planner.cluster_totals import Hardware
from runner.parts.planner.forecast import Forecast, basis
from runner.parts.planner.memory import Memory, Moment
from runner.parts.planner.planned import Planned, Together
from runner.parts.planner.recipe_offers import Offer
from runner.parts.planner.scaling import OnMachines, Row, rows
from runner.parts.planner.storage import Disk
from runner.parts.planner.trace import Traced
from runner.plan import Plan
from runner.recipe import units

# Moments of the backward pass that are told, of one for each layer.
MOST_MOMENTS = 12


@dataclass(frozen=True)
class MomentReport:
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
    def of(cls, memory: Memory, moment: Moment) -> MomentReport:
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


PARTS = ("weights", "optimizer", "gradients", "activations", "loss", "other", "reserve")


def step(memory: Memory) -> list[MomentReport]:
    """The moments of a step; of a long backward pass some, evenly apart, and the one that takes most."""
    backward = [moment for moment in memory.moments if moment.name == "backward"]
    most = max(backward, key=lambda moment: moment.size, default=None)
    every = -(-len(backward) // MOST_MOMENTS) or 1
    kept = [moment for n, moment in enumerate(backward) if n % every == 0 or moment in (most, backward[-1])]
    whole = [moment for moment in memory.moments if moment.name != "backward" or moment in kept]
    # A step begins with what is held and no activations yet.
    start = whole[0]._replace(name="forward", activations=0, logits=0, temporary=0)
    return [MomentReport.of(memory, moment) for moment in (start, *whole)]


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of each GPU. total: what the run needs; range: between which that lies in nine of ten cases; published: what that
    rests on; shown: what nvidia-smi will show. usable: None where nobody knows the card. limit: the recipe's own, None where it
    states none. moment: when most is taken.
    evaluation: of tensors, in_evaluation: of all. step: the moments of a step in order, from its beginning."""

    total: int
    range: tuple[int, int]
    published: str
    shown: int
    usable: int | None
    limit: int | None
    moment: str
    parts: Mapping[str, int]
    evaluation: int
    in_evaluation: int
    step: Sequence[MomentReport]


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows, and tokens of a mean one, None where nobody knows; source: who says so."""

    training: int | None
    evaluation: int | None
    tokens: float | None
    source: str


@dataclass(frozen=True)
class StagePlan:
    """What one stage needs; None for what cannot be told."""

    stage: str
    model: str
    parameters: int
    trainable_parameters: int
    adapter_parameters: int
    gpu: str
    gpus: int
    gpu_memory_bytes: GpuMemory
    fits: bool | None
    largest_micro_batch: int | None
    host_memory_bytes: Mapping[str, int]
    disk_bytes: Sequence[Disk]
    effective_batch_size: int
    effective_batch_tokens: int | None
    learning_rate: float
    warmup_steps: int
    warmup_share: float | None
    rows: RowCounts
    time: Mapping[str, Any] | None
    time_published: str
    gpu_hours: float | None
    cost: float | None
    machines: Sequence[OnMachines]
    exact: Traced | None

    @classmethod
    def of(
        cls, plan: Plan, forecast: Forecast, nodes: Iterable[int], traced: Traced | None, limit: int | None
    ) -> StagePlan:
        work, memory, rows = forecast.workload, forecast.memory, forecast.rows
        return cls(
            stage=forecast.stage.name,
            model=forecast.formulas.name,
            parameters=forecast.counts.total,
            trainable_parameters=forecast.counts.trainable,
            adapter_parameters=forecast.counts.adapter,
            gpu=forecast.stage.machines.gpu,
            gpus=forecast.stage.machines.world_size,
            gpu_memory_bytes=GpuMemory(
                total=memory.total,
                range=forecast.memory_range,
                published=str(forecast.memory_spread),
                shown=memory.shown,
                usable=forecast.usable,
                limit=limit,
                moment=memory.moment,
                parts=memory.parts(),
                evaluation=memory.evaluation,
                in_evaluation=memory.in_evaluation,
                step=step(memory),
            ),
            fits=forecast.fits,
            largest_micro_batch=forecast.largest_micro_batch,
            host_memory_bytes=storage.host(forecast),
            disk_bytes=storage.disk(forecast, plan),
            effective_batch_size=work.effective_batch_size,
            effective_batch_tokens=getattr(work, "batch_tokens", None),
            learning_rate=work.learning_rate,
            warmup_steps=forecast.warmup_steps,
            warmup_share=forecast.warmup_steps / forecast.steps if forecast.steps else None,
            rows=RowCounts(work.rows, work.evaluation_rows, rows.tokens, rows.source),
            time=forecast.time.as_json() if forecast.time else None,
            time_published=forecast.time_source,
            gpu_hours=forecast.gpu_hours,
            cost=forecast.cost,
            machines=[OnMachines.of(forecast, count) for count in nodes],
            exact=traced,
        )


@dataclass(frozen=True)
class OfferReport:
    """A change that holds: the lines to write, what all stages take then, and what is learned less or otherwise, in words.
    seconds: None where they cannot be told; cost: None too where the price is of another card."""

    lines: Sequence[str]
    total_seconds: float | None
    gpu_hours: float
    cost: float | None
    gpu_memory_bytes: int
    loses: Sequence[str]

    @classmethod
    def of(cls, offer: Offer) -> OfferReport:
        after = offer.after
        memory = max(forecast.memory.total for forecast in after.forecasts)
        return cls(offer.lines, after.seconds, after.together.gpu_hours, offer.cost, memory, offer.loses)


@dataclass(frozen=True)
class PlanReport:
    """The plan of a recipe. on_machines: all of it on other counts of machines. claims_gib: what each claim is asked for with; claims_bytes: what will be written to it.
    without_formulas: stages that train nothing."""

    name: str
    basis: str
    claims_gib: Mapping[str, int]
    claims_bytes: Mapping[str, int]
    stages: Sequence[StagePlan]
    without_formulas: Sequence[str]
    all_stages: Together
    all_machines: Hardware | None
    before_training_bytes: Sequence[Disk]
    problems: Sequence[Mapping[str, str | int]]
    notes: Sequence[Mapping[str, str | int]]
    offers: Sequence[OfferReport]
    on_machines: Sequence[Row]

    @classmethod
    def of(
        cls, planned: Planned, offers: Iterable[Offer], nodes: list[int], traced: Mapping[str, Traced]
    ) -> PlanReport:
        plan, forecasts = planned.sized, planned.forecasts
        reckoned = {forecast.stage.name for forecast in forecasts}
        stated = (planned.recipe.settings.get("limits") or {}).get("gpu_memory")
        limit = round(units.size(stated)) if stated else None
        return cls(
            name=plan.name,
            basis=basis(forecasts, nodes),
            claims_gib={claim["name"]: plan.claim_gib(claim["name"]) for claim in plan.site.get("claims") or ()},
            claims_bytes=storage.needs(plan, forecasts),
            stages=[StagePlan.of(plan, each, nodes, traced.get(each.stage.name), limit) for each in forecasts],
            without_formulas=[stage.name for stage in plan.stages if stage.name not in reckoned],
            all_stages=planned.together,
            all_machines=planned.hardware,
            before_training_bytes=list(storage.before_training(plan)),
            problems=[problem.as_json() for problem in planned.problems],
            notes=[note.as_json() for note in planned.notes],
            offers=[OfferReport.of(offer) for offer in offers],
            on_machines=rows(forecasts, nodes),
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)
