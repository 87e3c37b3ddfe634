"""Limits: when a training has no more to gain or no more time left, and how often it saves. Without PyTorch, because the plan
and a job's status ask too."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.files import Record
from runner.tools.run_files import TIME_LIMIT

# What evaluations call what is judged, and whether more of it is better: the validation loss, and of images the accuracy, by
# which their best model is kept.
LOSS, ACCURACY = "loss", "accuracy"


def fruitless(values: Iterable[float], least: float, measure: str = LOSS) -> int:
    """Evaluations since the last one that was better by more than `least` than the best that counted before it. values: of all
    evaluations in their order, the one before the first step too."""
    sign, best, waited = (1 if measure == ACCURACY else -1), None, 0
    for value in values:
        if best is None or sign * (value - best) > least:
            best, waited = value, 0
        else:
            waited += 1
    return waited


@dataclass(frozen=True)
class EarlyStop(Record):
    """That training has ended early. patience: evaluations without improvement; step: the last one, of so many `steps`; kept: the
    step of the model that is kept, the best one."""

    patience: int = 0
    step: int = 0
    steps: int = 0
    kept: int = 0

    @property
    def told(self) -> str:
        evaluations = "the last evaluation" if self.patience == 1 else f"the last {self.patience} evaluations"
        return (
            f"ended early, after step {self.step:,} of {self.steps:,}: {evaluations} brought no improvement; the best model, of "
            f"step {self.kept:,}, is kept"
        )


# What the training process says where it ends so, with the fields of an EarlyStop.
EVENT = "early_stop"


def early_stop(
    evaluations: Iterable[Mapping[str, Any]], patience: int, least: float, measure: str, step: int, steps: int
) -> EarlyStop | None:
    """What ended a run of so many steps after `step`; None where it came to its end. evaluations: each with `step` and the
    measure."""
    seen = [(entry["step"], entry[measure]) for entry in evaluations if entry.get(measure) is not None]
    if step >= steps or fruitless((value for _, value in seen), least, measure) < patience:
        return None
    trained = [(value if measure == LOSS else -value, at) for at, value in seen if at]
    return EarlyStop(patience, step, steps, min(trained)[1])


@dataclass(frozen=True)
class TimeUsed(Record):
    """What a stage has used of the recipe's time for training, restarts among it, and whether that has ended it."""

    FILE = TIME_LIMIT
    limit_seconds: float = 0.0
    used_seconds: float = 0.0
    reached: bool = False


def elapsed_seconds(run_dirs: Iterable[str | Path]) -> float:
    """Seconds of training in these folders together, restarts among them; a folder without a note counts as none."""
    return sum(TimeUsed.read(Path(folder)).used_seconds for folder in run_dirs)


# The first checkpoint comes after so long, when nobody has yet seen how long one takes; and none comes sooner after another.
LEAST_SECONDS = 300.0
# Between two interruptions, by whatever cause; assumed. Of 16,384 GPUs one was lost every three hours (Llama 3, arXiv
# 2407.21783, section 3.3.4), of one machine that makes months; but shared clusters take machines back.
INTERRUPTED_SECONDS = 86400.0


def seconds_between(writing: float) -> float:
    """Seconds of training after which another checkpoint is due, where one takes `writing` seconds: what writing costs and what
    an interruption loses are least together at √(2 · writing · time between interruptions) (Young 1974,
    doi.org/10.1145/361147.361115)."""
    return max(LEAST_SECONDS, math.sqrt(2 * writing * INTERRUPTED_SECONDS))
