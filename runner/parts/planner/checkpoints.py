"""Checkpoints: how many a run writes, and when the first; by its evaluations, its own steps, or the clock (`trainer.checkpoint_interval`)."""

import math
from dataclasses import dataclass

from runner.parts.planner.workload import Run
from runner.trainer import records


@dataclass(frozen=True)
class Checkpoints:
    """count: over the whole run; within: of them between two of the engine's own. first: seconds of training until the first
    one; between: from one to the next; writing: that one takes."""

    count: int
    within: int
    first: float
    between: float
    writing: float

    @property
    def seconds(self) -> float:
        """What all of them take."""
        return self.count * self.writing


def times(every: int, run: Run, steps: int) -> int:
    """How often something comes in a run of so many steps, every so many of them or, where that is 0, each epoch; the end is one."""
    return math.ceil(steps / every) if every else max(1, math.ceil(run.epochs))


def written(run: Run, steps: int, step_seconds: float, writing: float) -> Checkpoints:
    """Those of a run of so many steps, with `writing` seconds each: the engine's, with evaluations, and the runner's between
    them."""
    training = steps * step_seconds
    ends = times(run.engine_save_steps, run, steps)
    interval = training / ends
    if run.save_steps:
        first = between = run.save_steps * step_seconds
    else:
        first, between = records.LEAST_SECONDS, records.seconds_between(writing)
    # What falls together is one.
    within = max(0, math.ceil(interval / between - 1e-9) - 1)
    return Checkpoints(ends * (1 + within), within, min(first, interval), min(between, interval), writing)
