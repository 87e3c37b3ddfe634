"""More machines on paper: what the time of a run consists of, and what limits it. All times are
seconds.

Every count of machines trains on the same rows. Accumulation shrinks first, so that a step keeps
its rows; below one micro batch a step has more rows, and there are fewer steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.machine_counts import with_machines
from runner.parts.planner.workload import Workload

# Seconds of one GPU, of any kind, between two failures that end a run: 419 failures in 54 days on
# 16,384 H100 (Llama 3, arXiv 2407.21783, section 3.3.4).
BETWEEN_FAILURES = 54 * 86400 * 16_384 / 419
# Seconds from a failure to the next step, without reading: noticing it, another machine, starting.
# Assumed; Llama 3's 466 interruptions cost at most a tenth of 54 days, 17 minutes each, including
# repeated work.
RESTART = 600.0
BYTES_A_TOKEN = 13  # of a row as Arrow keeps it: number, label and mask (4 + 8 + 1)
# The parts of the time. computing: micro batches, optimizer and evaluation; communication: waiting
# for other GPUs; saving: checkpoints; reading: models and rows that all machines read from one
# claim, and starting; restarts: the cost of failures, infinite if none is survived.
LIMITS = ("computing", "communication", "saving", "reading", "restarts")


@dataclass(frozen=True)
class StageOnMachines:
    """A stage on a number of machines, there: its forecast on them; unknown seconds are None.
    parts: all seconds by LIMITS; restarts are None if the run would never end. failures: the likely
    count; save_seconds: between two checkpoints of the recipe; best_save_seconds: the cheapest
    interval (Young 1974, CACM 17: the root of 2 × saving × time between failures)."""

    there: Forecast
    total_seconds: float | None = None
    parts: Mapping[str, float | None] | None = None
    failures: float | None = None
    save_seconds: float | None = None
    best_save_seconds: float | None = None
    too_few_rows: bool = False
    cost: float | None = None

    @classmethod
    def of(cls, forecast: Forecast, count: int) -> Self:
        rescaled = with_machines(forecast, count)
        time = rescaled.time
        work = rescaled.workload
        gpus = rescaled.stage.machines.world_size
        if not time:
            return cls(rescaled)
        between = BETWEEN_FAILURES / gpus  # seconds between two failures
        communication = time.steps * time.waiting_seconds
        computing = time.training_seconds - communication + time.evaluation_seconds
        alone = computing + communication
        saving = time.checkpoints.seconds
        writing = rescaled.written()["checkpoint"] / (work.disk_mb_s * 1e6)
        start = time.overhead_seconds - saving
        interval = alone / time.checkpoints.count
        parts = {
            "computing": computing,
            "communication": communication,
            "saving": saving,
            "reading": start + max(0.0, _rows_seconds(rescaled, time) - communication - computing),
            "restarts": daly(alone, writing, interval, RESTART + start + writing, between)
            - alone
            - saving,
        }
        if math.isfinite(finite_total := sum(parts.values())):
            total = finite_total
        else:
            total = None
        return cls(
            rescaled,
            total_seconds=total,
            parts={name: part if math.isfinite(part) else None for name, part in parts.items()},
            failures=None if total is None else total / between,
            save_seconds=interval,
            best_save_seconds=math.sqrt(2 * writing * between),
            too_few_rows=bool(work.rows and not work.max_steps and time.rows_a_step > work.rows),
            cost=None
            if forecast.price is None or total is None
            else total / 3600 * gpus * forecast.price,
        )


def _rows_seconds(forecast: Forecast, time: Duration) -> float:
    """Seconds in which all machines together read rows from one claim; 0 with disks of their own.
    Plain text is blocks of numbers of two or four bytes; rows are as Arrow stores them; every
    machine reads all images into its memory."""
    work = forecast.workload
    if not work.shared_disk:
        return 0.0
    speed = work.disk_mb_s * 1e6
    if not isinstance(work, Workload):
        return work.machines.nodes * forecast.written().get("prepared data", 0) / speed
    if work.model.vocab_size <= 2**16:
        blocks = 2
    else:
        blocks = 4
    return time.tokens * (blocks if work.packing and not work.several else BYTES_A_TOKEN) / speed


# A stretch of this many times the time between two failures succeeds once in 150 tries.
HARDLY = 5.0


def daly(work: float, saving: float, interval: float, again: float, between: float) -> float:
    """Seconds that `work` seconds of training take with a checkpoint after each `interval` of them,
    each taking `saving`. Failures come at random, `between` apart; each costs `again` and the work
    since the last checkpoint (Daly 2006, Future Generation Computer Systems 22, equation 13).
    Infinite where hardly any stretch would finish."""
    if not work:
        return 0.0
    stretch = (interval + saving) / between
    if stretch + again / between > HARDLY:
        return math.inf
    return between * math.exp(again / between) * math.expm1(stretch) * work / interval


@dataclass(frozen=True)
class RunOnMachines:
    """All stages of a recipe on a number of machines. speed_up: over the first count of known time;
    efficiency: of the ideal speed-up. limit: what takes most time, in words. save_seconds,
    best_save_seconds: of the longest stage."""

    nodes: int
    gpus: int
    total_seconds: float | None
    speed_up: float | None
    efficiency: float | None
    gpu_hours: float | None
    cost: float | None
    parts: Mapping[str, float]
    limit: str
    save_seconds: float
    best_save_seconds: float


def rows(forecasts: Sequence[Forecast], counts: Iterable[int]) -> list[RunOnMachines]:
    """One entry for each count of machines; empty if the time of a stage is unknown."""
    compared: list[RunOnMachines] = []
    for count in counts:
        stages = [StageOnMachines.of(forecast, count) for forecast in forecasts]
        if not stages or any(stage.parts is None for stage in stages):
            return []
        compared.append(_row(stages, compared))
    return compared


def _row(stages: Sequence[StageOnMachines], smaller: Sequence[RunOnMachines]) -> RunOnMachines:
    """All stages on one count of machines. smaller: the counts before it."""
    machines = stages[0].there.stage.machines
    times = [stage.total_seconds for stage in stages]
    if None in times:
        total = None
    else:
        total = sum(time or 0.0 for time in times)
    parts = {}
    for name in LIMITS:
        parts[name] = sum((stage.parts or {}).get(name) or 0.0 for stage in stages)
    timed = [(row.nodes, row.total_seconds) for row in smaller if row.total_seconds]
    base_nodes, base = next(iter(timed), (machines.nodes, total))
    speed_up = base / total if base and total else None
    longest = max(stages, key=lambda stage: stage.total_seconds or math.inf)
    costs = [stage.cost for stage in stages if stage.cost is not None]
    return RunOnMachines(
        nodes=machines.nodes,
        gpus=machines.world_size,
        total_seconds=total,
        speed_up=speed_up,
        efficiency=speed_up * base_nodes / machines.nodes if speed_up else None,
        gpu_hours=total / 3600 * machines.world_size if total is not None else None,
        cost=sum(costs) if costs and total is not None else None,
        parts=parts,
        limit=_limit(stages, longest, parts, total),
        save_seconds=longest.save_seconds or 0.0,
        best_save_seconds=longest.best_save_seconds or 0.0,
    )


def _limit(
    stages: Sequence[StageOnMachines],
    longest: StageOnMachines,
    parts: Mapping[str, float],
    total: float | None,
) -> str:
    """What stops the run, else what takes most of its time, in words."""
    if any(stage.there.fits is False for stage in stages):
        return "GPU memory"
    if total is None:
        return "restarts"
    if longest.too_few_rows:
        return "too few rows"
    most = max(parts, key=lambda part: parts[part])
    return f"{most} {parts[most] / total:.0%}"
