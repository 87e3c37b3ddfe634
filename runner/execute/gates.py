"""Gates: whether what a stage has measured lets the next one start. Whatever is not plainly good is a no."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.plan import Gate

_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Subject:
    """What an evaluation must be about to count.

    run: the run folder's own number; stage: its name; inputs: hash of what the stage was made from;
    weights: hash of the weights that it has left; settings: hash of how it is to be evaluated.
    """

    run: str
    stage: str
    inputs: str
    weights: str
    settings: str


@dataclass(frozen=True)
class Verdict:
    """One line of the table: metric, what was wanted, what was got, whether it holds, and if not, why."""

    metric: str
    wanted: str
    got: str
    holds: bool
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"metric": self.metric, "wanted": self.wanted, "got": self.got, "holds": self.holds, "why": self.why}


_STALE = {
    "run": "measured in another run",
    "stage": "measured for another stage",
    "inputs": "measured before the stage's inputs changed",
    "weights": "measured on another checkpoint",
    "settings": "measured before the evaluation's settings changed",
}


def judge(gates: Iterable[Gate], record: Any, subject: Subject | None) -> list[Verdict]:
    """A Verdict a gate; never empty, because no gate at all is a no.

    record: what `evaluation.json` holds, in any state. subject: what lies in the run folder now, None for nothing.
    """
    gates = list(gates)
    if not gates:
        return [Verdict("(no gate)", "at least one gate", "none", False, "a stage without a gate proves nothing")]
    if reason := _unusable(record, subject):
        return [Verdict(gate.metric, _wanted(gate), "nothing", False, reason) for gate in gates]
    return [_one(gate, record["metrics"], record.get("missing")) for gate in gates]


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Whether there are verdicts and all of them hold."""
    verdicts = list(verdicts)
    return bool(verdicts) and all(verdict.holds for verdict in verdicts)


def _unusable(record: Any, subject: Subject | None) -> str:
    if subject is None:
        return "the stage has no finished result"
    if record is None:
        return "nothing was measured, or the record is unreadable"
    if not isinstance(record, Mapping) or not isinstance(record.get("metrics"), Mapping):
        return "the record is not one of an evaluation"
    for part, reason in _STALE.items():
        if record.get(part) != getattr(subject, part) or not getattr(subject, part):
            return reason
    return ""


def _one(gate: Gate, metrics: Mapping[str, Any], missing: Any) -> Verdict:
    wanted = _wanted(gate)
    if gate.metric not in metrics or metrics[gate.metric] is None:
        reasons = missing if isinstance(missing, Mapping) else {}
        return Verdict(gate.metric, wanted, "nothing", False, str(reasons.get(gate.metric, "it was not measured")))
    value = metrics[gate.metric]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Verdict(gate.metric, wanted, _shown(value), False, "it is not a number")
    if not _finite(value):
        return Verdict(gate.metric, wanted, _shown(value), False, "it is not a finite number")
    if not math.isfinite(gate.threshold) or gate.comparison not in _HOLDS:
        return Verdict(gate.metric, wanted, _shown(value), False, "the gate itself cannot be read")
    holds = bool(_HOLDS[gate.comparison](value, gate.threshold))
    return Verdict(gate.metric, wanted, _shown(value), holds, "" if holds else "it misses the threshold")


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _wanted(gate: Gate) -> str:
    return f"{gate.comparison} {gate.threshold:g}"


def _shown(value: Any) -> str:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and _finite(value)):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """The verdicts as lines of text: metric, wanted, got, verdict."""
    rows = [("metric", "wanted", "got", "verdict")]
    for verdict in verdicts:
        rows.append(
            (verdict.metric, verdict.wanted, verdict.got, "holds" if verdict.holds else f"MISSED: {verdict.why}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
        for row in rows
    ]
