"""Facts: the content of a run folder, as its page shows it. Nothing is measured here."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from runner.catalog import troubles
from runner.check.validate import load
from runner.data.report import REPORT_FILE
from runner.parts.evaluate import gates
from runner.plan import Plan, Prediction
from runner.recipe import units
from runner.recipe.reading import read
from runner.recipe.recipe import REAL
from runner.run.launch import end_of
from runner.run.progress import find_run
from runner.run.run_folder import RunFolder, RunRecord, StageFolder, StageRecord, find
from runner.run.run_manifest import RunManifest, plan_of
from runner.tools import packaged
from runner.tools.files import read_json, read_record
from runner.tools.problem import Stop
from runner.tools.run_files import ANSWERS, HISTORY, PROOF, REPORT, STOPPED
from runner.trainer.records import GradedAnswers, Proof, Summary

LOG_LINES, ROW_TOKENS = 60, 2_000
NUMBER = int | float
Point = tuple[float, float]

FIGURES = packaged.toml(__file__, "figures.toml")


class Curve(NamedTuple):
    """The content of a chart over the steps. unit: of the values, empty for none; lines: by name,
    points of (step, value)."""

    title: str
    unit: str
    lines: Mapping[str, tuple[Point, ...]]


class StageFacts:
    """One stage of a run, as the page shows it. What is unknown is None or empty."""

    name: str
    trains: bool
    state: StageRecord
    status: str  # as the page shows it
    foreseen: Prediction
    weights: str  # their hash
    summary: Summary = Summary()
    steps: tuple[Mapping[str, Any], ...] = ()  # of its history
    epochs: tuple[Mapping[str, Any], ...] = ()  # of its history
    peak_gib: float | None = None  # the most memory that tensors held on the first GPU, GiB
    last_step: int = 0  # a stage that continues another one begins to count with that one's
    steps_made: int = 0  # of this stage alone
    accuracy_before: float | None = None  # share of right images before the first step
    measure_improved: bool | None = None  # whether it improved its model on held-out data
    graded: GradedAnswers | None = None  # the counts of right answers
    answers: tuple[Mapping[str, Any], ...] = ()  # `question`, `before` and `after` of each
    proof: Proof = Proof()
    measurement: gates.Measurement  # empty if nothing was measured
    verdicts: tuple[gates.GateVerdict, ...] = ()
    promotion: gates.Promotion | None = None
    open: bool  # whether its gates let the next stage begin
    stopped: str  # the reason of training that stopped itself
    # Of an unfinished stage, whose logs are searched for a known trouble:
    meaning: str  # the trouble
    said: str  # the line of the log that shows it
    log: tuple[str, ...]  # the end of the log

    def __init__(self, folder: StageFolder, foreseen: Prediction) -> None:
        self.name = folder.stage.name
        self.trains = folder.stage.trains
        self.foreseen = foreseen
        self.state = folder.state
        self.weights = folder.model_hash()
        if self.state.status == "begun":
            self.status = "not finished"
        else:
            self.status = self.state.status
        if self.trains:
            self._read_training(folder.path)
        self._read_gates(folder)
        stopped = read_record(folder.path / STOPPED)
        self.stopped = str(stopped.get("message") or "")
        self._read_logs(folder)

    def _read_training(self, path: Path) -> None:
        self.summary = Summary.read(path)
        history = read_record(path / HISTORY)
        self.steps = tuple(_entries(history.get("steps"), step=NUMBER, loss=NUMBER))
        self.epochs = tuple(_entries(history.get("epochs"), step=NUMBER, epoch=NUMBER))
        memory = []
        for entry in self.steps:
            if _number(entry.get("gpu_memory_gib")):
                memory.append(entry["gpu_memory_gib"])
        self.peak_gib = max(memory, default=None)
        last_on_record = max((entry["step"] for entry in self.steps), default=0)
        self.last_step = self.summary.steps or last_on_record
        before_training = self.epochs[0] if self.epochs else {}
        self.steps_made = max(0, self.last_step - before_training.get("step", 0))
        accuracy = before_training.get("accuracy")
        if _number(accuracy):
            self.accuracy_before = accuracy
        self.measure_improved = _measure_improved(self.summary, self.accuracy_before)
        self.graded = self.summary.answers
        self.answers = tuple(
            _entries(read_json(path / ANSWERS), question=str, before=str, after=str)
        )
        if (path / PROOF).is_file():
            self.proof = Proof.read(path)

    def _read_gates(self, folder: StageFolder) -> None:
        record = gates.record(folder)
        if isinstance(record, gates.Measurement):
            self.measurement = record
        else:
            self.measurement = gates.Measurement()
        if folder.stage.gates:
            self.verdicts = tuple(_verdicts(folder, record))
            self.promotion = gates.promotion(folder)
        self.open = self.promotion is not None or gates.passed(self.verdicts)

    def _read_logs(self, folder: StageFolder) -> None:
        logs: list[Path] = []
        if self.state.status == "begun":
            # Each of several machines has its own log.
            logs = sorted(folder.path.glob("train*.log"))
        tails = [end_of(log) for log in logs]
        planned_memory = units.gib(self.foreseen.memory) if self.foreseen.memory else ""
        diagnosis = troubles.diagnose(
            tails,
            plan=troubles.planned(planned_memory),
            world_size=str(folder.stage.machines.world_size),
        )
        self.meaning = diagnosis.meaning
        self.said = diagnosis.line
        self.log = tuple("\n".join(tails).splitlines()[-LOG_LINES:])

    @property
    def improved(self) -> bool | None:
        """Where answers were graded, they decide, because a loss falls long before an answer is
        right."""
        if self.graded is not None and self.graded.has_learned is not None:
            return self.graded.has_learned
        return self.measure_improved

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        curves = list[Curve]()
        for figure in FIGURES["curves"]:
            # Beside tokens a second, rows a second show nothing new.
            shows_tokens = any(curve.title == "Tokens a second" for curve in curves)
            if figure["title"] == "Rows a second" and shows_tokens:
                continue
            lines = self._lines(figure)
            if lines:
                curves.append(Curve(figure["title"], figure["unit"], lines))
        return tuple(curves)

    def _lines(self, figure: Mapping[str, Any]) -> dict[str, tuple[Point, ...]]:
        """The lines of a curve in `figures.toml` that have at least two points."""
        lines: dict[str, tuple[Point, ...]] = {}
        for name, table, key in figure["lines"]:
            entries = self.steps if table == "steps" else self.epochs
            points: list[Point] = []
            for entry in entries:
                if _number(entry.get("step")) and _number(entry.get(key)):
                    points.append((float(entry["step"]), float(entry[key])))
            if len(points) > 1:
                lines[name] = tuple(points)
        return lines


def _measure_improved(summary: Summary, accuracy_before: float | None) -> bool | None:
    """Whether the first measure of this stage that has both values was better after training."""
    before_and_after = (
        (summary.first_preference_accuracy, summary.last_preference_accuracy),
        (summary.first_reward, summary.best_reward),
        (accuracy_before, summary.best_accuracy),
        # A lower loss is better.
        (summary.best_validation_loss, summary.first_validation_loss),
    )
    for before, after in before_and_after:
        if before is not None and after is not None:
            return after > before
    return None


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _verdicts(folder: StageFolder, record: gates.Measurement | str) -> list[gates.GateVerdict]:
    """The gates' verdicts. A sample task that is missing on this machine closes no gate: its result
    still counts."""
    subject = gates.subject(folder)
    evaluation = folder.stage.evaluation
    task = evaluation.sample_task if evaluation else None
    task_is_missing = task and not Path(task).is_file()
    if subject and isinstance(record, gates.Measurement) and task_is_missing:
        subject = replace(subject, settings=record.settings)
    return gates.judge(folder.stage.gates, record, subject)


class DataFacts:
    """The use of the rows, as the page shows it."""

    record: Mapping[str, Any]  # `report.json`, whose fields depend on the kind of data
    text: str  # the same as text
    source: str  # the name of the rows' file or data set; empty if unknown
    bins: tuple[tuple[int, int, int], ...]  # fewest tokens, most tokens and number of rows of each
    dropped: Mapping[str, int]  # the number of rows that were left out, by reason
    findings: list[tuple[str, int, str, str]]  # problems of rows: kind, count, effect and remedy

    def __init__(self, record: Mapping[str, Any], text: str = "") -> None:
        self.record = record
        self.text = text
        source = str(record.get("source") or "")
        self.source = source.rstrip("/").rpartition("/")[2]
        bins = record.get("length_bins")
        if not isinstance(bins, list):
            bins = []
        self.bins = tuple((fewest, most, rows) for fewest, most, rows in bins)
        self.dropped = record.get("dropped") or record.get("skipped") or {}
        findings = _entries(record.get("findings"), kind=str, count=int, said=str, remedy=str)
        self.findings = [
            (finding["kind"], finding["count"], finding["said"], finding["remedy"])
            for finding in findings
        ]


class RunFacts:
    """A run, as its page shows it."""

    planned: RunManifest
    shown: str  # its folder for people
    name: str
    state: RunRecord
    kind: str
    rehearsal: bool
    counts: Mapping[str, Any]  # the plan's facts
    stages: tuple[StageFacts, ...]
    trained: tuple[StageFacts, ...]  # those that train something and have begun to
    gated: tuple[StageFacts, ...]
    data: dict[str, DataFacts]  # by part; "" if there is only one
    real_model: str  # what a rehearsal trained instead of a tiny twin; empty for none
    failed: StageFacts | None  # where an unfinished run ended
    reason: str  # why it was stopped, as reported then or recorded by its stage; empty for neither
    improved: bool | None  # whether every stage improved its model; None if unknown
    substitutions: tuple[tuple[str, str, str, str], ...]  # setting, before, after and reason
    changes: tuple[tuple[str, str, str, str], ...]  # setting, before, after and by whom

    def __init__(self, run: RunFolder, plan: Plan | None = None) -> None:
        """plan: by default that on record. Raises Stop if there is none."""
        plan = plan or plan_of(run)
        self.planned = RunManifest.read(run.path)
        self.shown = str(run.shown)
        self.name = plan.name
        self.state = run.state
        self.kind = self.state.kind or "run"
        self.rehearsal = self.state.kind == "rehearsal"
        self.counts = plan.facts
        self.stages = _stages_of(plan, self.planned, self.state)
        self.data = _data_in(Path(plan.place.data_dir))
        self.real_model = _real_model(self.state)
        if run.is_of_twin:
            # A twin writes fragments, which say nothing of the recipe.
            for stage in self.stages:
                stage.graded = None
        self.trained = tuple(
            stage for stage in self.stages if stage.trains and (stage.summary or stage.steps)
        )
        self.gated = tuple(stage for stage in self.stages if stage.verdicts)
        self.failed = self._failed_stage()
        recorded = ""
        if self.failed:
            recorded = self.failed.stopped or self.failed.meaning
        self.reason = self.state.fault or recorded
        self.improved = self._every_stage_improved()
        run_folder = f"{self.state.folder}/"
        self.substitutions = tuple(
            (
                override.setting,
                _text(override.before),
                _text(override.after).removeprefix(run_folder),
                override.why or override.by,
            )
            for override in self.state.substitutions
        )
        self.changes = tuple(
            (override.setting, _text(override.before), _text(override.after), override.by)
            for override in self.state.changes
        )

    def _failed_stage(self) -> StageFacts | None:
        """The first stage that did not finish, or else the first whose gates are closed."""
        if self.state.status == "finished" and not self.state.fault:
            return None
        for stage in self.stages:
            if stage.state.status == "begun":
                return stage
        for stage in self.gated:
            if stage.state.status == "finished" and not stage.open:
                return stage
        return None

    def _every_stage_improved(self) -> bool | None:
        verdicts = []
        for stage in self.trained:
            if stage.summary and stage.improved is not None:
                verdicts.append(stage.improved)
        return all(verdicts) if verdicts else None


def _stages_of(plan: Plan, planned: RunManifest, state: RunRecord) -> tuple[StageFacts, ...]:
    """The stages of a run from this machine, or of those that were fetched from a cluster."""
    predictions = {prediction.stage: prediction for prediction in planned.foreseen}
    stages: list[StageFacts] = []
    for stage in plan.stages:
        folder = StageFolder(plan, stage)
        # A stage that was not fetched may be finished.
        if state.origin != "cluster" or folder.state:
            stages.append(StageFacts(folder, predictions.get(stage.name, Prediction())))
    return tuple(stages)


def _data_in(home: Path) -> dict[str, DataFacts]:
    """The prepared data: in one folder, or in one for each part of a pipeline."""
    try:
        text = (home / REPORT).read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    data: dict[str, DataFacts] = {}
    if text or (home / REPORT_FILE).is_file():
        data[""] = DataFacts(read_record(home / REPORT_FILE), text)
    for file in sorted(home.glob(f"*/{REPORT_FILE}")):
        data[file.parent.name] = DataFacts(read_record(file))
    return data


def _real_model(state: RunRecord) -> str:
    for override in state.substitutions:
        if override.by == REAL:
            return Path(_text(override.after)).name
    return ""


def run_of(path: str) -> RunFolder:
    """The run of a folder, or the latest of a recipe, which need not be valid if a run has its
    name. Raises Stop if there is none."""
    if Path(path).is_file():
        try:
            return find(str(read(path).data.get("name", path)), None)
        except Stop:
            return find_run(load(path, look=False)[0], None)
    return find("", path)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _entries(value: object, **types: object) -> Iterator[Mapping[str, Any]]:
    """The entries of a list that have these fields with these types; other tools may write such
    files too."""
    if not isinstance(value, list):
        return
    for entry in value:
        if isinstance(entry, dict) and _has_fields(entry, types):
            yield entry


def _has_fields(entry: Mapping[str, Any], types: Mapping[str, Any]) -> bool:
    return all(isinstance(entry.get(name), field_type) for name, field_type in types.items())
