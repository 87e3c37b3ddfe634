"""Facts: the content of a run folder, as its page shows it. Nothing is measured here."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from runner.catalog import troubles
from runner.data.report import REPORT_FILE
from runner.parts.evaluate import gates
from runner.plan import Plan, Prediction
from runner.recipe import units
from runner.recipe.reading import read
from runner.recipe.recipe import REAL
from runner.run.launch import end_of
from runner.run.run_folder import RunFolder, StageFolder, find
from runner.run.run_manifest import RunManifest, plan_of
from runner.tools import packaged
from runner.tools.files import read_json, read_record
from runner.tools.run_files import ANSWERS, HISTORY, PROOF, REPORT, STOPPED
from runner.trainer.records import Proof, Summary

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
    """One stage of a run. steps, epochs: of its history; answers: `question`, `before` and `after`;
    measurement: empty if nothing was measured. weights: their hash. stopped: the reason of training
    that stopped itself; meaning, said, log: the trouble in the log of an unfinished stage, its
    line, and the log's end.

    peak_gib: the most memory that tensors held on the first GPU, GiB; None without a GPU.
    steps_made: the steps of this stage alone; the count of a stage that continues another one
    begins with that one's. accuracy_before: the share of images that were classified correctly
    before the first step. measure_improved: whether the stage improved its model on held-out data.
    graded: the counts of right answers. All are None if unknown."""

    def __init__(self, folder: StageFolder, foreseen: Prediction) -> None:
        stage = folder.stage
        path = folder.path
        self.foreseen = foreseen
        self.name = stage.name
        self.trains = stage.trains
        self.state = folder.state
        self.weights = folder.model_hash()
        if self.state.status == "begun":
            self.status = "not finished"
        else:
            self.status = self.state.status
        self.summary = told = Summary.read(path) if self.trains else Summary()
        if self.trains:
            history = read_record(path / HISTORY)
        else:
            history = {}
        self.steps = tuple(_entries(history.get("steps"), step=NUMBER, loss=NUMBER))
        self.epochs = tuple(_entries(history.get("epochs"), step=NUMBER, epoch=NUMBER))
        memory = [
            entry["gpu_memory_gib"] for entry in self.steps if _number(entry.get("gpu_memory_gib"))
        ]
        self.peak_gib: float | None = max(memory, default=None)
        self.last_step: int = told.steps or max((entry["step"] for entry in self.steps), default=0)
        first = self.epochs[0] if self.epochs else {}
        self.steps_made = max(0, self.last_step - first.get("step", 0))
        accuracy = first.get("accuracy")
        self.accuracy_before: float | None
        if _number(accuracy):
            self.accuracy_before = accuracy
        else:
            self.accuracy_before = None
        pairs = (
            (told.first_preference_accuracy, told.last_preference_accuracy),
            (told.first_reward, told.best_reward),
            (self.accuracy_before, told.best_accuracy),
            # A lower loss is better.
            (told.best_validation_loss, told.first_validation_loss),
        )
        known = (
            after > before for before, after in pairs if before is not None and after is not None
        )
        self.measure_improved = next(known, None)
        self.graded = told.answers
        if self.trains:
            answers = read_json(path / ANSWERS)
        else:
            answers = None
        self.answers = tuple(_entries(answers, question=str, before=str, after=str))
        if self.trains and (path / PROOF).is_file():
            self.proof = Proof.read(path)
        else:
            self.proof = Proof()
        record = gates.record(folder)
        if isinstance(record, gates.Measurement):
            self.measurement = record
        else:
            self.measurement = gates.Measurement()
        if stage.gates:
            self.verdicts = tuple(_verdicts(folder, record))
        else:
            self.verdicts = ()
        if stage.gates:
            self.promotion = gates.promotion(folder)
        else:
            self.promotion = None
        self.open = self.promotion is not None or gates.passed(self.verdicts)
        self.stopped = str(read_record(path / STOPPED).get("message") or "")
        # Each of several machines has its own log.
        if self.state.status == "begun":
            logs = sorted(path.glob("train*.log"))
        else:
            logs = []
        tails = [end_of(log) for log in logs]
        if foreseen.memory:
            need = units.gib(foreseen.memory)
        else:
            need = ""
        world = str(stage.machines.world_size)
        diagnosis = troubles.diagnose(tails, plan=troubles.planned(need), world_size=world)
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
        made = list[Curve]()
        for one in FIGURES["curves"]:
            lines = dict[str, tuple[Point, ...]]()
            for name, where, key in one["lines"]:
                if where == "steps":
                    entries = self.steps
                else:
                    entries = self.epochs
                both = (
                    entry
                    for entry in entries
                    if _number(entry.get("step")) and _number(entry.get(key))
                )
                points = tuple((float(entry["step"]), float(entry[key])) for entry in both)
                if len(points) > 1:
                    lines[name] = points
            # Beside tokens a second, rows a second show nothing new.
            known = any(curve.title == "Tokens a second" for curve in made)
            if lines and not (known and one["title"] == "Rows a second"):
                made.append(Curve(one["title"], one["unit"], lines))
        return tuple(made)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _verdicts(folder: StageFolder, known: gates.Measurement | str) -> list[gates.GateVerdict]:
    """The gates' verdicts. A sample task that is missing on this machine closes no gate: its result
    still counts."""
    about = gates.subject(folder)
    if folder.stage.evaluation:
        task = folder.stage.evaluation.sample_task
    else:
        task = None
    if about and isinstance(known, gates.Measurement) and task and not Path(task).is_file():
        about = replace(about, settings=known.settings)
    return gates.judge(folder.stage.gates, known, about)


class DataFacts:
    """The use of the rows. record: `report.json`, whose fields depend on the kind of data; text:
    the same as text. source: the name of the rows' file or data set, empty if unknown; bins: the
    fewest tokens, the most tokens and the number of rows of each; findings: problems of rows: kind,
    count, effect and remedy."""

    def __init__(self, record: Mapping[str, Any], text: str = "") -> None:
        self.record = record
        self.text = text
        self.source = str(record.get("source") or "").rstrip("/").rpartition("/")[2]
        told = record.get("length_bins")
        self.bins = tuple(
            (first, last, rows) for first, last, rows in (told if isinstance(told, list) else ())
        )
        self.dropped: Mapping[str, int] = record.get("dropped") or record.get("skipped") or {}
        known = _entries(record.get("findings"), kind=str, count=int, said=str, remedy=str)
        self.findings = [(one["kind"], one["count"], one["said"], one["remedy"]) for one in known]


class RunFacts:
    """A run. shown: its folder for people; data: by part, "" if there is only one; counts: the
    plan's facts. real_model: the model that a rehearsal trained instead of a tiny twin, empty for
    none; trained: the stages that train something and have begun to; failed: the stage where an
    unfinished run ended; reason: why it was stopped, as reported then or recorded by its stage,
    empty if neither exists; improved: whether every stage improved its model, None if unknown;
    substitutions: name, value before and after, and reason of replaced settings."""

    def __init__(self, run: RunFolder, plan: Plan | None = None) -> None:
        """plan: by default that on record. Raises Stop if there is none."""
        plan = plan or plan_of(run)
        self.planned = RunManifest.read(run.path)
        self.shown = str(run.shown)
        self.name = plan.name
        self.state = run.state
        self.counts = plan.facts
        foreseen = {one.stage: one for one in self.planned.foreseen}
        folders = (StageFolder(plan, stage) for stage in plan.stages)
        # A stage that was not fetched may be finished.
        found = (one for one in folders if self.state.origin != "cluster" or one.state)
        self.stages = tuple(
            StageFacts(one, foreseen.get(one.stage.name, Prediction())) for one in found
        )
        # The prepared data: one folder, or one for each part of a pipeline.
        home = Path(plan.place.data_dir)
        try:
            text = (home / REPORT).read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = ""
        there = bool(text) or (home / REPORT_FILE).is_file()
        if there:
            self.data = {"": DataFacts(read_record(home / REPORT_FILE), text)}
        else:
            self.data = {}
        self.data |= {
            file.parent.name: DataFacts(read_record(file))
            for file in sorted(home.glob(f"*/{REPORT_FILE}"))
        }
        self.kind, self.rehearsal = self.state.kind or "run", self.state.kind == "rehearsal"
        real = (
            Path(_text(made.after)).name for made in self.state.substitutions if made.by == REAL
        )
        self.real_model = next(real, "")
        if run.is_of_twin:
            # A twin writes fragments, which say nothing of the recipe.
            for stage in self.stages:
                stage.graded = None
        self.trained = tuple(
            stage for stage in self.stages if stage.trains and (stage.summary or stage.steps)
        )
        self.gated = tuple(stage for stage in self.stages if stage.verdicts)
        ended = self.state.status == "finished" and not self.state.fault
        begun = [stage for stage in self.stages if stage.state.status == "begun"]
        closed = [
            stage for stage in self.gated if stage.state.status == "finished" and not stage.open
        ]
        if ended:
            self.failed = None
        else:
            self.failed = next(iter(begun + closed), None)
        if self.failed:
            recorded = self.failed.stopped or self.failed.meaning
        else:
            recorded = ""
        self.reason = self.state.fault or recorded
        known = [
            stage.improved for stage in self.trained if stage.summary and stage.improved is not None
        ]
        self.improved = all(known) if known else None
        own = f"{self.state.folder}/"
        self.substitutions = tuple(
            (
                made.setting,
                _text(made.before),
                _text(made.after).removeprefix(own),
                made.why or made.by,
            )
            for made in self.state.substitutions
        )
        self.changes = tuple(
            (made.setting, _text(made.before), _text(made.after), made.by)
            for made in self.state.changes
        )


def run_of(named: str) -> RunFolder:
    """The run of a folder, or the latest of a recipe. Raises Stop if there is none."""
    if Path(named).is_file():
        return find(str(read(named).data.get("name", named)), None)
    return find("", named)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _entries(value: Any, **kinds: Any) -> Iterator[Mapping[str, Any]]:
    """The entries of a list that have these fields with these types; other tools may write such
    files too."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and all(
            isinstance(entry.get(name), kind) for name, kind in kinds.items()
        ):
            yield entry
