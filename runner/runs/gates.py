"""Gates: whether what a stage has measured lets the next one start, by what is on record. Whatever is not plainly good is a no.

Beside a stage's results lie its evaluation, and a person's override of its gate, each with what it is about.
"""

from __future__ import annotations

import datetime
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from runner.files import Record, read_json, sha256, write_json
from runner.names import content_hash
from runner.plan import Evaluation, Gate, Plan
from runner.problem import Stop
from runner.run_files import EVALUATION, EVALUATION_TASK, LOG, MEASURED, PROMOTION
from runner.runs.launch import environment, follow
from runner.runs.stage_folder import StageFolder, weights_of

_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Subject:
    """What an evaluation must be about to count.

    run: the run folder's own number; stage: its name; inputs: hash of what the stage was made from;
    weights: hash of the weights that it has left; settings: hash of how it is to be evaluated. An empty part never counts.
    """

    run: str = ""
    stage: str = ""
    inputs: str = ""
    weights: str = ""
    settings: str = ""


@dataclass(frozen=True)
class Measurement(Record, Subject):
    """What was measured, and of what.

    checkpoint: the folder of the weights. metrics: numbers, unless a hand wrote them. missing: why others were not measured.
    """

    FILE = EVALUATION
    checkpoint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task(Evaluation):
    """How and what one process measures.

    model: the folder of the weights; checkpoint_step: their step, None for the stage's result; stage_dir: the stage's folder.
    out: the file for `metrics` and what is `missing`. metrics_before: of the stage `before`, None where none still holds.
    """

    model: str
    stage_dir: str
    checkpoint_step: int | None
    out: str
    metrics_before: Mapping[str, Any] | None


@dataclass(frozen=True)
class Verdict(Record):
    """One line of the table: metric, the threshold, what was got, whether it holds, and if not, why."""

    metric: str = ""
    threshold: str = ""
    got: str = ""
    holds: bool = False
    why: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        # Older records call it so.
        return super().of({"threshold": facts.get("wanted"), **facts})


@dataclass(frozen=True)
class Promotion(Record):
    """A person's override of a stage's gate.

    by, reason, at: who, why, and when (ISO 8601, UTC); missed: the verdicts that it overruled; gates: all that were asked for.
    run, stage, inputs, weights: what it is about, as of a Subject.
    """

    FILE = PROMOTION
    by: str = ""
    reason: str = ""
    at: str = ""
    missed: tuple[Verdict, ...] = ()
    run: str = ""
    stage: str = ""
    inputs: str = ""
    weights: str = ""
    gates: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Who overruled the gate, when, why, and what it had missed."""
        missed = [f"{verdict.metric} {verdict.got} (wanted {verdict.threshold})" for verdict in self.missed]
        return [
            f"PROMOTED against its gate by {self.by} at {self.at}: {self.reason}",
            f"  it had missed: {'; '.join(missed)}",
        ]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        known = super().of(facts)
        whole = all(verdict.metric and verdict.threshold and verdict.got for verdict in known.missed)
        return known if whole else replace(known, missed=())


_STALE = {
    "run": "measured in another run",
    "stage": "measured for another stage",
    "inputs": "measured before the stage's inputs changed",
    "weights": "measured on another checkpoint",
    "settings": "measured before the evaluation's settings changed",
}


def judge(gates: Iterable[Gate], record: Measurement | str, subject: Subject | None) -> list[Verdict]:
    """A Verdict a gate; never empty, because no gate at all is a no.

    record: what was measured, or why that is nothing. subject: what lies in the run folder now, None for nothing.
    """
    gates = list(gates)
    if not gates:
        return [Verdict("(no gate)", "at least one gate", "none", False, "a stage without a gate proves nothing")]
    usable = _about(subject, record)
    if isinstance(usable, str):
        return [Verdict(gate.metric, _threshold(gate), "nothing", False, usable) for gate in gates]
    return [_verdict(gate, usable.metrics, usable.missing) for gate in gates]


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Whether there are verdicts and all of them hold."""
    verdicts = list(verdicts)
    return bool(verdicts) and all(verdict.holds for verdict in verdicts)


def _about(subject: Subject | None, record: Measurement | str) -> Measurement | str:
    """What was measured, where it is about the subject; else why it counts for nothing."""
    if subject is None:
        return "the stage has no finished result"
    if isinstance(record, str):
        return record
    for part, reason in _STALE.items():
        if getattr(record, part) != getattr(subject, part) or not getattr(subject, part):
            return reason
    return record


def _verdict(gate: Gate, metrics: Mapping[str, Any], missing: Mapping[str, str]) -> Verdict:
    threshold = _threshold(gate)
    if gate.metric not in metrics or metrics[gate.metric] is None:
        return Verdict(gate.metric, threshold, "nothing", False, str(missing.get(gate.metric, "it was not measured")))
    value = metrics[gate.metric]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Verdict(gate.metric, threshold, shown(value), False, "it is not a number")
    if not _finite(value):
        return Verdict(gate.metric, threshold, shown(value), False, "it is not a finite number")
    if not math.isfinite(gate.threshold) or gate.comparison not in _HOLDS:
        return Verdict(gate.metric, threshold, shown(value), False, "the gate itself cannot be read")
    holds = bool(_HOLDS[gate.comparison](value, gate.threshold))
    return Verdict(gate.metric, threshold, shown(value), holds, "" if holds else "it misses the threshold")


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _threshold(gate: Gate) -> str:
    return f"{gate.comparison} {gate.threshold:g}"


def shown(value: Any) -> str:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and _finite(value)):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """The verdicts as lines of text: metric, wanted, got, verdict."""
    rows = [("metric", "wanted", "got", "verdict")]
    for verdict in verdicts:
        rows.append(
            (verdict.metric, verdict.threshold, verdict.got, "holds" if verdict.holds else f"MISSED: {verdict.why}")
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
    run = folder.run.state.id
    if not folder.finished or not folder.weights or not run:
        return None
    return Subject(
        run=run,
        stage=folder.stage.name,
        inputs=content_hash(folder.state.inputs, 32),
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


def record(folder: StageFolder) -> Measurement | str:
    """What was measured, of whatever, or why that is nothing."""
    facts = read_json(folder.path / EVALUATION)
    if facts is None:
        return "nothing was measured, or the record is unreadable"
    if not isinstance(facts, dict) or not isinstance(facts.get("metrics"), dict):
        return "the record is not one of an evaluation"
    return Measurement.of(facts)


def verdicts(folder: StageFolder, look: bool = False) -> list[Verdict]:
    """The verdicts on what is recorded now; with nothing recorded, every one of them is a no. look: as for `subject`."""
    return judge(folder.stage.gates, record(folder), subject(folder, look))


def current(folder: StageFolder) -> Measurement | None:
    """What is recorded, where it is about what lies in the run folder."""
    known = _about(subject(folder), record(folder))
    return None if isinstance(known, str) else known


def measure(folder: StageFolder, checkpoint: Path | None = None) -> Measurement:
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
    out = folder.path / MEASURED
    task = Task(
        **asdict(stage.evaluation),
        model=str(model),
        stage_dir=str(folder.path),
        checkpoint_step=_checkpoint_step(checkpoint),
        out=str(out),
        metrics_before=_metrics_before(folder, stage.evaluation),
    )
    file = folder.path / EVALUATION_TASK
    write_json(file, asdict(task))
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "runner.runs.evaluate", str(file)]
    # One process measures, on one GPU.
    env = environment(replace(stage, machines=stage.machines.one_gpu), folder.place)
    follow(command, env, folder.path, lambda event: None, f"Measuring `{stage.name}`")
    measured = read_json(out)
    if not isinstance(measured, dict):
        raise Stop(f"Measuring `{stage.name}` ended without a result.", f"The whole log: {folder.path / LOG}")
    result = Measurement(
        run=folder.run.state.id,
        stage=stage.name,
        inputs=about.inputs if about else "",
        weights=weights_of(model),
        settings=_settings(stage.evaluation),
        checkpoint=str(model),
        metrics=measured["metrics"],
        missing=measured["missing"],
    )
    result.write(folder.path)
    out.unlink(missing_ok=True)
    return result


def _checkpoint_step(checkpoint: Path | None) -> int | None:
    number = checkpoint.name.removeprefix("checkpoint-") if checkpoint else ""
    return int(number) if number.isdigit() else None


def _metrics_before(folder: StageFolder, evaluation: Evaluation) -> Mapping[str, Any] | None:
    """What the gated stage before this one has measured, where that still holds."""
    known = current(folder.other(evaluation.before)) if evaluation.before is not None else None
    return known.metrics if known else None


def promote(folder: StageFolder, by: str, reason: str) -> Promotion:
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
    override = Promotion(
        by=by,
        reason=reason,
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        missed=tuple(verdict for verdict in judged if not verdict.holds),
        run=about.run,
        stage=about.stage,
        inputs=about.inputs,
        weights=about.weights,
        gates=tuple(map(str, stage.gates)),
    )
    override.write(folder.path)
    return override


def promotion(folder: StageFolder, look: bool = False) -> Promotion | None:
    """The override on record, where it is about what lies there now, the gates are those that it overruled, and it says
    who, when, why and against which figures. look: as for `subject`."""
    known, about = Promotion.read(folder.path), subject(folder, look)
    if about is None or not about.weights:
        return None
    same = all(getattr(known, part) == getattr(about, part) for part in ("run", "stage", "inputs", "weights"))
    named = all(isinstance(word, str) and word.strip() for word in (known.by, known.reason, known.at))
    whole = same and named and known.missed and known.gates
    return known if whole and known.gates == tuple(map(str, folder.stage.gates)) else None


def promotions(plan: Plan) -> Iterator[str]:
    """Lines about every override in force; they belong in every report."""
    for stage in plan.stages:
        if stage.gates and (override := promotion(StageFolder(plan, stage))):
            yield from (f"{stage.name}: {line}" if not line.startswith(" ") else line for line in override.lines)


def opened(folder: StageFolder, look: bool = False) -> tuple[bool, list[str]]:
    """Whether the gate after a stage is open, by what is on record or by a person's override, which is told. look: as for
    `subject`."""
    if passed(verdicts(folder, look)):
        return True, []
    override = promotion(folder, look)
    return override is not None, override.lines if override else []


def closed(folder: StageFolder, consequence: str, where: str = "") -> str:
    """What a closed gate says. where: the option of `recipe promote` that names where the run lives."""
    missed = "\n".join(
        f"  {verdict.metric}: wanted {verdict.threshold}, got {verdict.got}: {verdict.why}"
        for verdict in verdicts(folder)
        if not verdict.holds
    )
    name = folder.stage.name
    return (
        f"The gate after `{name}` is closed, and {consequence}. It missed:\n{missed}\n"
        f"Look at the stage's log and curves. A person may overrule: "
        f"recipe promote RECIPE {name}{where} --by NAME --reason TEXT"
    )
