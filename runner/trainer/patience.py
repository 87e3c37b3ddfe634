"""Patience: whether training still becomes better, judged by its evaluations so far; and what is said when it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.tools.files import Record

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
