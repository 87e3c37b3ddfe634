"""Gates: whether a stage's evaluation lets the next stage start. Everything unclear closes a gate.

A stage's folder has its evaluation and a person's override of its gate; each names its subject."""

import datetime
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from runner import parts
from runner.data import packaged_models
from runner.parts.contract import StageHooks
from runner.parts.evaluate import seal
from runner.parts.evaluate.metrics import HOLDS, METRICS, bounds, in_words
from runner.plan import Evaluation, Gate, Plan
from runner.run.launch import environment, follow
from runner.run.run_folder import StageFolder, model_hash
from runner.tools.files import Record, content_hash, read_json, sha256, write_json
from runner.tools.problem import Stop, Tell, shortened
from runner.tools.run_files import (
    BEST_IMAGES,
    EVALUATION,
    EVALUATION_TASK,
    HELD_OUT,
    LOG,
    MEASURED,
    PROMOTION,
)
from runner.tools.text import GENERAL_TEXT, macros
from runner.trainer.records import versions


@dataclass(frozen=True)
class Subject:
    """The subject of an evaluation. An empty field matches nothing."""

    run: str = ""  # the run folder's id
    stage: str = ""  # its name
    # Hashes:
    inputs: str = ""  # of what the stage was made from
    model: str = ""  # of the whole model
    rows: str = ""  # of the held-out rows
    code: str = ""  # of the code that measures
    settings: str = ""  # of the evaluation


@dataclass(frozen=True)
class Found(Record):
    """The result of one evaluation process. Metrics are numbers, unless somebody edited them."""

    FILE = MEASURED
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the stage's model
    before: Mapping[str, Any] = field(default_factory=dict)  # metrics of the original model
    missing: Mapping[str, str] = field(default_factory=dict)  # reasons by metric
    counts: Mapping[str, int] = field(default_factory=dict)  # of rows and tokens
    # For images, how often each class was predicted as each class.
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement(Found, Subject):
    """An evaluation and its subject."""

    FILE = EVALUATION
    checkpoint: str = ""  # the model's folder
    seed: int = 0  # of samples of rows
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task(Evaluation):
    """The task of one evaluation process."""

    model: str  # its folder
    base: str  # the original model; empty for none
    revision: str | None  # of the original model
    trust_remote_code: bool
    turn_end: str | None  # the token that ends an answer
    stage_dir: str  # the stage's folder, which gets the result
    # Of the stage `before`; None if they are not valid any more.
    metrics_before: Mapping[str, Any] | None


@dataclass(frozen=True)
class GateVerdict(Record):
    """One line of the table."""

    metric: str = ""
    threshold: str = ""
    got: str = ""  # the measured value
    holds: bool = False
    why: str = ""  # the reason if it does not hold

    @property
    def said(self) -> str:
        if self.holds:
            return "holds"
        return f"missed: {self.why}"

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> Self:
        return super().of({"threshold": facts.get("wanted"), **facts})  # the name in older records


@dataclass(frozen=True)
class Promotion(Record):
    """A person's override of a stage's gate."""

    FILE = PROMOTION
    by: str = ""  # the person's name
    reason: str = ""
    at: str = ""  # when (ISO 8601, UTC)
    missed: tuple[GateVerdict, ...] = ()  # the overruled verdicts
    # Its subject:
    run: str = ""
    stage: str = ""
    inputs: str = ""
    model: str = ""
    gates: tuple[str, ...] = ()  # all of the stage's

    @property
    def lines(self) -> list[str]:
        """Who overruled the gate, when and why, and what it had missed."""
        missed = []
        for verdict in self.missed:
            missed.append(f"{verdict.metric} {verdict.got} (required {verdict.threshold})")
        return [
            f"PROMOTED against its gate by {self.by} at {self.at}: {self.reason}",
            f"  missed: {'; '.join(missed)}",
        ]


NOTHING = "nothing"  # what a verdict shows instead of a value that was not measured
_OVERRIDDEN = ("run", "stage", "inputs", "model")  # the part of a subject that an override names


def judge(
    gates: Sequence[Gate], record: Measurement | str, subject: Subject | None
) -> list[GateVerdict]:
    """One verdict for each gate, and one if there is none, because a stage without a gate proves
    nothing. record: an evaluation, or why there is none; subject: of the run folder now, None for
    nothing."""
    usable = _about(subject, record)
    if isinstance(usable, str):
        usable = Measurement(missing={gate.metric: usable for gate in gates})
    none = GateVerdict(
        "(no gate)", "at least one gate", "none", False, "a stage without a gate proves nothing"
    )
    return [verdict_on(gate, usable) for gate in gates] or [none]


def passed(verdicts: Sequence[GateVerdict]) -> bool:
    return bool(verdicts) and all(verdict.holds for verdict in verdicts)


def _about(subject: Subject | None, record: Measurement | str) -> Measurement | str:
    """The evaluation if it is of the subject; else why it does not count."""
    if subject is None:
        return "the stage has no finished result"
    if isinstance(record, str):
        return record
    reason: str
    for part, reason in METRICS["stale"].items():
        current = getattr(subject, part)
        if not current or getattr(record, part) != current:
            return reason
    return record


def verdict_on(gate: Gate, measured: Found) -> GateVerdict:
    value = measured.metrics.get(gate.metric)
    got = shown(value)
    reason = ""
    lowest, highest = bounds(gate.metric)
    if value is None:
        got = NOTHING
        reason = str(measured.missing.get(gate.metric, "it was not measured"))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        reason = "it is not a number"
    elif not _finite(value):
        reason = "it is not a finite number"
    elif not lowest <= value <= highest:
        reason = f"this value is impossible; the metric is {in_words(gate.metric)}"
    elif not math.isfinite(gate.threshold) or gate.comparison not in HOLDS:
        reason = "the gate itself cannot be read"
    elif not HOLDS[gate.comparison](value, gate.threshold):
        reason = "it misses the threshold"
    return GateVerdict(
        gate.metric,
        f"{gate.comparison} {gate.threshold:g}",
        got,
        value is not None and not reason,
        reason,
    )


def _finite(value: int | float) -> bool:
    return abs(value) <= sys.float_info.max  # not even a whole number may be larger


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool) and _finite(value):
        return f"{value:.6g}"
    return shortened(str(value), 40)


def table(verdicts: Iterable[GateVerdict]) -> list[str]:
    """The verdicts as lines of text."""
    rows = [("metric", "required", "measured", "verdict")]
    for verdict in verdicts:
        sentence = "holds" if verdict.holds else f"MISSED: {verdict.why}"
        rows.append((verdict.metric, verdict.threshold, verdict.got, sentence))
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns[:3]]
    lines: list[str] = []
    for *cells, sentence in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([*padded, sentence]).rstrip())
    return lines


def subject(folder: StageFolder, look: bool = False) -> Subject | None:
    """The subject of a valid evaluation of this stage; None if the stage is not finished. look:
    whether to hash the model, which takes minutes, instead of using the recorded hash."""
    run = folder.run.state.id
    model = folder.model_hash(look)
    if not folder.finished or not folder.model_hash() or not run:
        return None
    return Subject(
        run=run,
        stage=folder.stage.name,
        inputs=content_hash(folder.state.inputs, 32),
        model=model,
        rows=_rows(folder),
        code=_code(),
        settings=_settings(folder.stage.evaluation),
    )


def _rows(folder: StageFolder) -> str:
    """A hash of the held-out rows, of training or of the data, even without any, because some
    metrics need none."""
    evaluation = folder.stage.evaluation
    if evaluation and evaluation.rows:
        files = [Path(evaluation.rows) / f"{side}.parquet" for side in ("test", "validation")]
    else:
        files = [folder.path / HELD_OUT]
    hashes = []
    for file in files:
        hashes.append(sha256(file) if file.is_file() else None)
    return content_hash(hashes, 32)


@cache
def _code() -> str:
    """A hash of the code that measures, with the general text."""
    files = [Path(__file__).with_name(name) for name in ("evaluate.py", "sample-task.yaml")]
    files.append(GENERAL_TEXT)
    for module in parts.table("measures").values():
        spec = find_spec(module)
        if spec:
            files.append(Path(str(spec.origin)))
    return content_hash([sha256(file) for file in files], 32)


def _settings(evaluation: Evaluation | None) -> str:
    """A hash of how the stage is measured, with the content of the sample task. Folders have no
    influence."""
    if evaluation is None:
        return content_hash(None, 32)
    task = evaluation.sample_task
    if task and Path(task).is_file():
        content = sha256(Path(task))
    else:
        content = None
    return content_hash(
        asdict(evaluation) | {"text_blocks": "", "rows": "", "sample_task": content}, 32
    )


def record(folder: StageFolder) -> Measurement | str:
    """The recorded evaluation of any subject, or why there is none."""
    facts = read_json(folder.path / EVALUATION)
    if facts is None:
        return "no evaluation was recorded, or the record is unreadable"
    if not isinstance(facts, dict) or not isinstance(facts.get("metrics"), dict):
        return "the record is not that of an evaluation"
    return seal.broken(facts) or Measurement.of(facts)


def verdicts(folder: StageFolder, look: bool = False) -> list[GateVerdict]:
    """The verdicts on the recorded evaluation. look: as for `subject`."""
    return judge(folder.stage.gates, record(folder), subject(folder, look))


def current(folder: StageFolder) -> Measurement | None:
    """The recorded evaluation, if it is of the run folder's current content."""
    measured = _about(subject(folder), record(folder))
    if isinstance(measured, str):
        return None
    return measured


def measure(folder: StageFolder, checkpoint: Path | None = None) -> Measurement:
    """Evaluates a stage in a process of its own and records the result. An evaluation of another
    checkpoint opens no gate. Raises Stop if the stage has no result, or the evaluation fails."""
    make_key = not folder.place.on_cluster
    seal.key(make_key)  # may raise Stop, and the evaluation takes an hour
    stage = folder.stage
    current_subject = subject(folder)
    if current_subject is None and checkpoint is None:
        raise Stop(f"The stage `{stage.name}` has no finished result to measure.", "Run it first.")
    if stage.evaluation is None:
        raise Stop(f"The stage `{stage.name}` trains nothing, so there is nothing to measure.")
    packaged_models.make_ready([stage])
    model = checkpoint or next(iter(folder.path.glob(BEST_IMAGES)), folder.model)
    demo = stage.config["recipe_runner"].get("demo", {})
    metrics_before = None
    if stage.evaluation.before is not None:
        # The valid evaluation of the gated stage before this one.
        before = current(folder.other(stage.evaluation.before))
        if before:
            metrics_before = before.metrics
    evaluation = asdict(stage.evaluation)
    evaluation["rows"] = str(stage.evaluation.rows or folder.path / HELD_OUT)
    task = Task(
        **evaluation,
        model=str(model),
        base=demo.get("base_model", ""),
        revision=demo.get("revision"),
        trust_remote_code=demo.get("trust_remote_code", False),
        turn_end=demo.get("turn_end"),
        stage_dir=str(folder.path),
        metrics_before=metrics_before,
    )
    file = folder.path / EVALUATION_TASK
    out = folder.path / MEASURED
    write_json(file, asdict(task))
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "runner.parts.evaluate.evaluate", str(file)]
    # One process, on one GPU.
    env = environment(replace(stage, machines=stage.machines.one_gpu), folder.place)
    follow(command, env, folder.path, lambda event: None, f"Measuring `{stage.name}`")
    measured = Found.read(folder.path)
    if not measured:
        raise Stop(
            f"The evaluation of `{stage.name}` ended without a result.",
            f"The whole log: {folder.path / LOG}",
        )
    # A folder with a model, or a file with an image model, as `StageFolder.model_hash` reads it.
    if model.is_dir():
        files = sorted(file for file in model.rglob("*") if file.is_file())
        sums = {str(file.relative_to(model)): sha256(file) for file in files}
    else:
        sums = {model.name: sha256(model)}
    if current_subject is None:
        current_subject = Subject(
            run=folder.run.state.id, stage=stage.name, settings=_settings(stage.evaluation)
        )
    measured_subject = replace(
        current_subject, model=model_hash(sums), rows=_rows(folder), code=_code()
    )
    result = Measurement(
        **vars(measured_subject),
        **vars(measured),
        checkpoint=str(model),
        seed=stage.evaluation.seed,
        versions=versions(),
    )
    write_json(folder.path / EVALUATION, seal.sealed(asdict(result), make_key))
    out.unlink(missing_ok=True)
    return result


def promote(folder: StageFolder, person: str, reason: str) -> Promotion:
    """Records a person's override of a gate. Raises Stop if there is no finished result, or the
    gate is open."""
    stage = folder.stage
    current_subject = subject(folder, look=True)
    judged = verdicts(folder, look=True)
    if not stage.gates:
        raise Stop(
            f"The stage `{stage.name}` has no gate to overrule.",
            "Write a requirement under `gates` first.",
        )
    if current_subject is None or current_subject.model != folder.model_hash():
        raise Stop(f"The stage `{stage.name}` has no finished result to promote.", "Run it first.")
    if passed(judged):
        raise Stop(f"The gate after `{stage.name}` is open, so there is nothing to overrule.")
    override = Promotion(
        by=person,
        reason=reason,
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        missed=tuple(verdict for verdict in judged if not verdict.holds),
        gates=tuple(map(str, stage.gates)),
        **{part: getattr(current_subject, part) for part in _OVERRIDDEN},
    )
    override.write(folder.path)
    return override


def promotion(folder: StageFolder, look: bool = False) -> Promotion | None:
    """The recorded override, if it is complete and its subject and gates are current. look: as for
    `subject`."""
    override = Promotion.read(folder.path)
    current_subject = subject(folder, look)
    if current_subject is None or not current_subject.model:
        return None
    of_subject = all(
        getattr(override, part) == getattr(current_subject, part) for part in _OVERRIDDEN
    )
    has_author = all(text.strip() for text in (override.by, override.reason, override.at))
    has_verdicts = override.missed and all(
        verdict.metric and verdict.threshold and verdict.got for verdict in override.missed
    )
    stage_gates = tuple(map(str, folder.stage.gates))
    of_these_gates = override.gates and override.gates == stage_gates
    if of_subject and has_author and has_verdicts and of_these_gates:
        return override
    return None


def opened(folder: StageFolder, look: bool = False) -> tuple[bool, list[str]]:
    """Whether the gate after a stage is open, and the lines of an override. look: as for
    `subject`."""
    if passed(verdicts(folder, look)):
        return True, []
    override = promotion(folder, look)
    if override:
        return (True, override.lines)
    return (False, [])


def described(folder: StageFolder, look: bool = False) -> tuple[bool, list[str]]:
    """Whether the gate after a stage is open, with its verdicts, an override and a sentence. look:
    as for `subject`."""
    is_open, override = opened(folder, look)
    state = "open" if is_open else "closed"
    sentence = f"The gate after `{folder.stage.name}` is {state}."
    return is_open, [*table(verdicts(folder, look)), *override, sentence]


def closed(folder: StageFolder, consequence: str, where: str = "") -> str:
    """The message of a closed gate. where: the option of `recipe promote` that names the run's
    place."""
    template = macros(Path(__file__).with_name("evaluation.jinja"), nothing=NOTHING)
    return str(template.closed(folder.stage.name, verdicts(folder), consequence, where)).rstrip(
        "\n"
    )


class GateHooks(StageHooks):
    """Evaluates a stage with gates, and starts no stage behind a closed one."""

    def before_stage(self, folder: StageFolder, tell: Tell, where: str) -> None:
        """Raises Stop for the first closed gate before a stage."""
        for stage in folder.plan.guards(folder.stage):
            guard = StageFolder(folder.plan, stage)
            is_open, lines = opened(guard)
            for line in lines:
                tell(line)
            if not is_open:
                raise Stop(closed(guard, f"`{folder.stage.name}` does not start", where))

    def after_stage(self, folder: StageFolder, tell: Tell) -> None:
        """Evaluates the stage unless its evaluation is current. Raises Stop if its gate is
        closed."""
        stage = folder.stage
        if not stage.gates:
            return
        if not current(folder):
            tell(f"{stage.name}: measuring")
            measure(folder)
        tell(f"{stage.name}: gate")
        is_open, lines = described(folder)
        for line in lines[:-1]:
            tell(f"  {line}")
        if not is_open:
            if any(stage.name in later.reads for later in folder.plan.stages):
                raise Stop(closed(folder, "later stages do not start"))
            raise Stop(closed(folder, "its model does not count as good"))

    def report_lines(self, plan: Plan) -> Iterator[str]:
        """Lines about every valid override; every report shows them."""
        for stage in plan.stages:
            if not stage.gates:
                continue
            override = promotion(StageFolder(plan, stage))
            if not override:
                continue
            for line in override.lines:
                if line.startswith(" "):
                    yield line
                else:
                    yield f"{stage.name}: {line}"


def gate_in_pod(folder: StageFolder, tell: Tell) -> tuple[bool, list[str]]:
    """Whether the gate after the stage is open, and why. After a closed gate the stage is measured
    again, because the user has sent it again. Raises Stop if the stage has no result."""
    if not (current(folder) and opened(folder)[0]):
        tell(f"{folder.stage.name}: measuring")
        measure(folder)
    is_open, lines = described(folder)
    for line in lines:
        tell(line)
    return is_open, lines
