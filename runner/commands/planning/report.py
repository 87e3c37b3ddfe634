"""A plan for tools: bytes, seconds and counts. The names of the fields are those of its JSON; no figure is made here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.estimate import storage
from runner.estimate.forecast import Forecast, basis
from runner.estimate.storage import Disk
from runner.estimate.together import Hardware
from runner.plan import Plan
from runner.problem import Problem
from runner.trace import Traced


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of each GPU. total: what the run needs; range: between which that lies in nine of ten cases; published: what that
    rests on; shown: what nvidia-smi will show. usable: None where nobody knows the card. moment: when most is taken.
    evaluation: of tensors."""

    total: int
    range: tuple[int, int]
    published: str
    shown: int
    usable: int | None
    moment: str
    parts: Mapping[str, int]
    evaluation: int


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows, and tokens of a mean one, None where nobody knows; source: who says so."""

    training: int | None
    evaluation: int | None
    tokens: float | None
    source: str


@dataclass(frozen=True)
class OnMachines:
    """A stage on so many machines; seconds are None where they cannot be told."""

    nodes: int
    gpus: int
    effective_batch_size: int
    step_seconds: float | None
    waiting_seconds: float | None
    total_seconds: float | None
    samples_a_second: float | None

    @classmethod
    def of(cls, forecast: Forecast) -> OnMachines:
        time, machines = forecast.time, forecast.stage.machines
        return cls(
            nodes=machines.nodes,
            gpus=machines.world_size,
            effective_batch_size=forecast.workload.effective_batch_size,
            step_seconds=time.step_seconds if time else None,
            waiting_seconds=time.waiting_seconds if time else None,
            total_seconds=time.total_seconds if time else None,
            samples_a_second=time.samples_a_second if time else None,
        )


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
    def of(cls, plan: Plan, forecast: Forecast, nodes: Iterable[int], traced: Traced | None) -> StagePlan:
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
                moment=memory.moment,
                parts=memory.parts(),
                evaluation=memory.evaluation,
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
            machines=[OnMachines.of(forecast.on(count)) for count in nodes],
            exact=traced,
        )


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
class PlanReport:
    """The plan of a recipe. claims_gib: what each claim is asked for with; claims_bytes: what will be written to it.
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

    @classmethod
    def of(
        cls,
        plan: Plan,
        forecasts: list[Forecast],
        hardware: Hardware | None,
        nodes: list[int],
        traced: Mapping[str, Traced],
        problems: Iterable[Problem],
        notes: Iterable[Problem],
    ) -> PlanReport:
        planned = {forecast.stage.name for forecast in forecasts}
        return cls(
            name=plan.name,
            basis=basis(forecasts, nodes),
            claims_gib={claim["name"]: plan.claim_gib(claim["name"]) for claim in plan.site.get("claims") or ()},
            claims_bytes=storage.needs(plan, forecasts),
            stages=[StagePlan.of(plan, each, nodes, traced.get(each.stage.name)) for each in forecasts],
            without_formulas=[stage.name for stage in plan.stages if stage.name not in planned],
            all_stages=Together.of(forecasts),
            all_machines=hardware,
            before_training_bytes=list(storage.before_training(plan)),
            problems=[problem.as_json() for problem in problems],
            notes=[note.as_json() for note in notes],
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)
