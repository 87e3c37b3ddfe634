"""Gates: whether what a stage has measured lets the next one start, by what is on record. Whatever is not plainly good is a no.

Beside a stage's results lie its evaluation, and a person's override of its gate, each with what it is about.
"""

from __future__ import annotations

import datetime
import math
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.files import read_json, sha256, write_json
from runner.names import content_hash
from runner.plan import Evaluation, Gate, Plan
from runner.problem import Stop
from runner.runs.launch import environment, follow
from runner.runs.stage_folder import StageFolder, weights_of
from runner.training.run_files import EVALUATION, EVALUATION_TASK, PROMOTION

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


def subject(folder: StageFolder, look: bool = False) -> Subject | None:
    """What an evaluation of this stage must be about; None where the stage is not finished.

    look: whether the weights themselves are hashed, which takes minutes where nobody has just done so; else what is on
    record of them counts.
    """
    run = folder.run.id
    if not folder.finished or not folder.weights or not run:
        return None
    return Subject(
        run=run,
        stage=folder.stage.name,
        inputs=content_hash(folder.state.get("inputs"), 32),
        weights=weights_of(folder.model) if look else folder.weights,
        settings=_settings(folder.stage.evaluation),
    )


def _settings(evaluation: Evaluation | None) -> str:
    """How the stage is measured, the sample task's content included; where its files lie changes no measurement."""
    if evaluation is None:
        return content_hash(None, 32)
    task = evaluation.sample_task
    content = sha256(Path(task)) if task and Path(task).is_file() else None
    return content_hash(asdict(evaluation) | {"text_blocks": "", "base": None, "sample_task": content}, 32)


def record(folder: StageFolder) -> Any:
    return read_json(folder.path / EVALUATION)


def verdicts(folder: StageFolder, look: bool = False) -> list[Verdict]:
    """The verdicts on what is recorded now; with nothing recorded, every one of them is a no. look: as for `subject`."""
    return judge(folder.stage.gates, record(folder), subject(folder, look))


def is_current(folder: StageFolder) -> bool:
    """Whether what is recorded is about what lies in the run folder."""
    known, about = record(folder), subject(folder)
    return (
        about is not None
        and isinstance(known, Mapping)
        and isinstance(known.get("metrics"), Mapping)
        and all(known.get(part) == value for part, value in asdict(about).items())
    )


def measure(folder: StageFolder, checkpoint: Path | None = None) -> dict[str, Any]:
    """Evaluates a stage in a process of its own and records the result; another checkpoint than the stage's result is
    recorded as what it is, and opens no gate.

    Raises Stop where the stage has no result, or measuring fails.
    """
    stage, about = folder.stage, subject(folder)
    if about is None and checkpoint is None:
        raise Stop(f"The stage `{stage.name}` has no finished result to measure.", "Run it first.")
    if stage.evaluation is None:
        raise Stop(f"The stage `{stage.name}` has no gates, so nothing is measured after it.")
    model = checkpoint or folder.model
    out = folder.path / ".measured.json"
    task = asdict(stage.evaluation) | {
        "model": str(model),
        "stage_dir": str(folder.path),
        "checkpoint_step": _checkpoint_step(checkpoint),
        "out": str(out),
        "before": _metrics_before(folder, stage.evaluation),
    }
    file = folder.path / EVALUATION_TASK
    write_json(file, task)
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "runner.runs.evaluate", str(file)]
    # One process measures, on one GPU.
    env = environment(replace(stage, machines=stage.machines.one_gpu), folder.place)
    follow(command, env, folder.path, lambda event: None, f"Measuring `{stage.name}`")
    measured = read_json(out)
    if not isinstance(measured, dict):
        raise Stop(f"Measuring `{stage.name}` ended without a result.", f"The whole log: {folder.path}/train.log")
    result = {
        "run": folder.run.id,
        "stage": stage.name,
        "inputs": about.inputs if about else "",
        "weights": weights_of(model),
        "settings": _settings(stage.evaluation),
        "checkpoint": str(model),
        **measured,
    }
    write_json(folder.path / EVALUATION, result)
    out.unlink(missing_ok=True)
    return result


def _checkpoint_step(checkpoint: Path | None) -> int | None:
    number = checkpoint.name.removeprefix("checkpoint-") if checkpoint else ""
    return int(number) if number.isdigit() else None


def _metrics_before(folder: StageFolder, evaluation: Evaluation) -> dict[str, Any] | None:
    """What the gated stage before this one has measured, where that still holds."""
    if evaluation.before is None or not is_current(before := folder.other(evaluation.before)):
        return None
    return dict(record(before)["metrics"])


def promote(folder: StageFolder, by: str, reason: str) -> dict[str, Any]:
    """Records a person's override: the stage goes on in spite of its gate.

    Raises Stop where there is nothing to overrule: no finished result, or a gate that is open.
    """
    stage, about, judged = folder.stage, subject(folder, look=True), verdicts(folder, look=True)
    if not stage.gates:
        raise Stop(f"The stage `{stage.name}` has no gate to overrule.")
    if about is None or about.weights != folder.weights:
        raise Stop(f"The stage `{stage.name}` has no finished result that could be promoted.", "Run it first.")
    if passed(judged):
        raise Stop(f"The gate after `{stage.name}` is open; there is nothing to overrule.")
    override = {
        "by": by,
        "reason": reason,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "missed": [asdict(verdict) for verdict in judged if not verdict.holds],
        "run": about.run,
        "stage": about.stage,
        "inputs": about.inputs,
        "weights": about.weights,
        "gates": [str(gate) for gate in stage.gates],
    }
    write_json(folder.path / PROMOTION, override)
    return override


def promotion(folder: StageFolder, look: bool = False) -> dict[str, Any] | None:
    """The override on record, where it is about what lies there now, the gates are those that it overruled, and it says
    who, when, why and against which figures. look: as for `subject`."""
    known, about = read_json(folder.path / PROMOTION), subject(folder, look)
    if not isinstance(known, dict) or about is None:
        return None
    same = all(known.get(part) == getattr(about, part) for part in ("run", "stage", "inputs", "weights"))
    named = all(isinstance(known.get(part), str) and known[part].strip() for part in ("by", "reason", "at"))
    whole = same and named and _tells_what_was_missed(known.get("missed"))
    return known if whole and known.get("gates") == [str(gate) for gate in folder.stage.gates] else None


def _tells_what_was_missed(missed: Any) -> bool:
    return (
        isinstance(missed, list)
        and bool(missed)
        and all(isinstance(entry, dict) and {"metric", "wanted", "got"} <= entry.keys() for entry in missed)
    )


def promotion_lines(override: Mapping[str, Any]) -> list[str]:
    """Who overruled the gate, when, why, and what it had missed."""
    missed = [f"{entry['metric']} {entry['got']} (wanted {entry['wanted']})" for entry in override["missed"]]
    return [
        f"PROMOTED against its gate by {override['by']} at {override['at']}: {override['reason']}",
        f"  it had missed: {'; '.join(missed)}",
    ]


def promotions(plan: Plan) -> list[str]:
    """Lines about every override in force; they belong in every report."""
    lines = []
    for stage in plan.stages:
        if stage.gates and (override := promotion(StageFolder(plan, stage))):
            lines += [
                f"{stage.name}: {line}" if not line.startswith(" ") else line for line in promotion_lines(override)
            ]
    return lines


def opened(folder: StageFolder, look: bool = False) -> tuple[bool, list[str]]:
    """Whether the gate after a stage is open, by what is on record or by a person's override, which is told. look: as for
    `subject`."""
    if passed(verdicts(folder, look)):
        return True, []
    override = promotion(folder, look)
    return override is not None, promotion_lines(override) if override else []


def closed(folder: StageFolder, consequence: str, where: str = "") -> str:
    """What a closed gate says. where: the option of `recipe promote` that names where the run lives."""
    missed = "\n".join(
        f"  {verdict.metric}: wanted {verdict.wanted}, got {verdict.got}: {verdict.why}"
        for verdict in verdicts(folder)
        if not verdict.holds
    )
    name = folder.stage.name
    return (
        f"The gate after `{name}` is closed, and {consequence}. It missed:\n{missed}\n"
        f"Look at the stage's log and curves. A person may overrule: "
        f"recipe promote RECIPE {name}{where} --by NAME --reason TEXT"
    )
