"""Facts: the content of a run folder as frozen records. Nothing is measured here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.catalog import troubles
from runner.data.report import REPORT_FILE
from runner.parts.evaluate import gates
from runner.plan import Plan, Prediction
from runner.recipe import units
from runner.run.launch import end_of
from runner.run.run_folder import RunFolder, RunRecord
from runner.run.run_manifest import RunManifest, plan_of
from runner.run.stage_folder import StageFolder, StageRecord
from runner.scenarios.shared.rehearsal import REAL
from runner.tools import packaged
from runner.tools.files import read_json, read_record
from runner.tools.run_files import ANSWERS, HISTORY, PROOF, REPORT, STOPPED
from runner.trainer.records import Proof, Summary

LOG_LINES, ROW_TOKENS = 60, 2_000
NUMBER = int | float
Point = tuple[float, float]

FIGURES = packaged.toml(__file__, "figures.toml")


@dataclass(frozen=True)
class Series:
    """A line of a chart: points of (step, value)."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Curve:
    """The content of a chart over the steps. unit: of the values, empty for none."""

    title: str
    unit: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class StageFacts:
    """One stage of a run. steps, epochs: of its history; answers: `question`, `before` and `after`; measurement: empty
    if nothing was measured. weights: their hash. stopped: the reason of training that stopped itself;
    meaning, said, log: the trouble in the log of an unfinished stage, its line, and the log's end."""

    name: str
    trains: bool
    state: StageRecord
    weights: str
    summary: Summary
    steps: tuple[Mapping[str, Any], ...]
    epochs: tuple[Mapping[str, Any], ...]
    foreseen: Prediction
    answers: tuple[Mapping[str, str], ...]
    proof: Proof
    verdicts: tuple[gates.GateVerdict, ...]
    measurement: gates.Measurement
    promotion: gates.Promotion | None
    stopped: str
    meaning: str
    said: str
    log: tuple[str, ...]

    @property
    def status(self) -> str:
        return "not finished" if self.state.status == "begun" else self.state.status

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        made = (Curve(one["title"], one["unit"], tuple(self._series(one["lines"]))) for one in FIGURES["curves"])
        whole = [curve for curve in made if curve.series]
        # Beside tokens a second, rows a second show nothing new.
        tokens = any(curve.title == "Tokens a second" for curve in whole)
        return tuple(curve for curve in whole if not (tokens and curve.title == "Rows a second"))

    def _series(self, lines: Sequence[tuple[str, str, str]]) -> Iterator[Series]:
        for name, where, key in lines:
            entries = self.steps if where == "steps" else self.epochs
            both = (entry for entry in entries if _number(entry.get("step")) and _number(entry.get(key)))
            kept = tuple((float(entry["step"]), float(entry[key])) for entry in both)
            if len(kept) > 1:
                yield Series(name, kept)

    @property
    def peak_gib(self) -> float | None:
        """The most memory that tensors held on the first GPU, GiB; None without a GPU."""
        known = [entry["gpu_memory_gib"] for entry in self.steps if _number(entry.get("gpu_memory_gib"))]
        return max(known, default=None)

    @property
    def last_step(self) -> int:
        return self.summary.steps or max((entry["step"] for entry in self.steps), default=0)

    @property
    def steps_made(self) -> int:
        """The steps of this stage alone; the count of a stage that continues another one begins with that one's."""
        before = self.epochs[0].get("step", 0) if self.epochs else 0
        return max(0, self.last_step - before)

    @property
    def open(self) -> bool:
        return self.promotion is not None or gates.passed(self.verdicts)

    @property
    def accuracy_before(self) -> float | None:
        """The share of images that were classified correctly before the first step; None if unknown."""
        return self.epochs[0].get("accuracy") if self.epochs else None

    @property
    def improved(self) -> bool | None:
        """Whether the stage improved its model on held-out data; None if unknown."""
        told = self.summary
        for before, after in (
            (told.first_preference_accuracy, told.last_preference_accuracy),
            (told.first_reward, told.best_reward),
            (self.accuracy_before, told.best_accuracy),
            # A lower loss is better.
            (told.best_validation_loss, told.first_validation_loss),
        ):
            if before is not None and after is not None:
                return after > before
        return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class DataFacts:
    """The use of the rows. record: `report.json`, whose fields depend on the kind of data; text: the same as text."""

    record: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def source(self) -> str:
        """The name of the rows' file or data set; empty if unknown."""
        return str(self.record.get("source") or "").rstrip("/").rpartition("/")[2]

    @property
    def bins(self) -> tuple[tuple[int, int, int], ...]:
        """The fewest tokens, the most tokens and the number of rows of each bin."""
        told = self.record.get("length_bins")
        return tuple((first, last, rows) for first, last, rows in (told if isinstance(told, list) else ()))

    @property
    def dropped(self) -> Mapping[str, int]:
        return self.record.get("dropped") or self.record.get("skipped") or {}

    @property
    def findings(self) -> list[tuple[Any, ...]]:
        """Problems of rows: kind, count, effect and remedy."""
        known = _entries(self.record.get("findings"), kind=str, count=int, said=str, remedy=str)
        return [(one["kind"], one["count"], one["said"], one["remedy"]) for one in known]


@dataclass(frozen=True)
class RunFacts:
    """A run. shown: its folder for people; data: by part, "" if there is only one; counts: the plan's facts."""

    shown: str
    name: str
    state: RunRecord
    planned: RunManifest
    stages: tuple[StageFacts, ...]
    data: Mapping[str, DataFacts]
    counts: Mapping[str, Any]

    @property
    def rehearsal(self) -> bool:
        return self.state.kind == "rehearsal"

    @property
    def real_model(self) -> str:
        """The model that a rehearsal trained instead of a tiny twin; empty for none."""
        return next((Path(_text(made.after)).name for made in self.state.substitutions if made.by == REAL), "")

    @property
    def kind(self) -> str:
        return self.state.kind or "run"

    @property
    def trained(self) -> tuple[StageFacts, ...]:
        """The stages that train something and have begun to."""
        return tuple(stage for stage in self.stages if stage.trains and (stage.summary or stage.steps))

    @property
    def gated(self) -> tuple[StageFacts, ...]:
        return tuple(stage for stage in self.stages if stage.verdicts)

    @property
    def failed(self) -> StageFacts | None:
        """The stage where an unfinished run ended; None for a finished run."""
        if self.state.status == "finished" and not self.state.fault:
            return None
        begun = [stage for stage in self.stages if stage.state.status == "begun"]
        closed = [stage for stage in self.gated if stage.state.status == "finished" and not stage.open]
        return next(iter(begun + closed), None)

    @property
    def reason(self) -> str:
        """Why it was stopped, as reported then or recorded by its stage; empty if neither exists."""
        recorded = self.failed.stopped or self.failed.meaning if self.failed else ""
        return self.state.fault or recorded

    @property
    def improved(self) -> bool | None:
        """Whether every stage improved its model; None if unknown."""
        known = [stage.improved for stage in self.trained if stage.summary and stage.improved is not None]
        return all(known) if known else None

    @property
    def substitutions(self) -> tuple[tuple[str, str, str, str], ...]:
        """The replaced settings: name, value before and after, and reason."""
        home = f"{self.state.folder}/"
        return tuple(
            (made.setting, _text(made.before), _text(made.after).removeprefix(home), made.why or made.by)
            for made in self.state.substitutions
        )

    @property
    def changes(self) -> tuple[tuple[str, str, str, str], ...]:
        return tuple((made.setting, _text(made.before), _text(made.after), made.by) for made in self.state.changes)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def of(run: RunFolder, plan: Plan | None = None) -> RunFacts:
    """The facts of a run folder. plan: by default that on record. Raises Stop if there is none."""
    plan, planned = plan or plan_of(run), RunManifest.read(run.path)
    foreseen = {one.stage: one for one in planned.foreseen}
    folders = [StageFolder(plan, stage) for stage in plan.stages]
    if run.state.origin == "cluster":
        # A stage that was not fetched may be finished.
        folders = [folder for folder in folders if folder.state]
    # The prepared data: one folder, or one for each part of a pipeline.
    home = Path(plan.place.data_dir)
    try:
        text = (home / REPORT).read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    there = bool(text) or (home / REPORT_FILE).is_file()
    data = {"": DataFacts(read_record(home / REPORT_FILE), text)} if there else {}
    data |= {file.parent.name: DataFacts(read_record(file)) for file in sorted(home.glob(f"*/{REPORT_FILE}"))}
    return RunFacts(
        shown=str(run.shown),
        name=plan.name,
        state=run.state,
        planned=planned,
        stages=tuple(_stage(folder, foreseen) for folder in folders),
        data=data,
        counts=plan.facts,
    )


def _stage(folder: StageFolder, foreseen: Mapping[str, Prediction]) -> StageFacts:
    known, trains, state = gates.record(folder), folder.stage.trains, folder.state
    history = read_record(folder.path / HISTORY) if trains else {}
    answers = read_json(folder.path / ANSWERS) if trains else None
    # Each of several machines has its own log.
    logs = sorted(folder.path.glob("train*.log")) if state.status == "begun" else []
    tail = "\n".join(map(end_of, logs))
    planned = foreseen.get(folder.stage.name, Prediction())
    need = units.gib(planned.memory) if planned.memory else ""
    world = str(folder.stage.machines.world_size)
    trouble = troubles.find(tail, troubles.LOG, plan=troubles.planned(need), world_size=world)
    return StageFacts(
        name=folder.stage.name,
        trains=trains,
        state=state,
        weights=folder.model_hash(),
        summary=Summary.read(folder.path) if trains else Summary(),
        steps=tuple(_entries(history.get("steps"), step=NUMBER, loss=NUMBER)),
        epochs=tuple(_entries(history.get("epochs"), step=NUMBER, epoch=NUMBER)),
        foreseen=planned,
        answers=tuple(_entries(answers, question=str, before=str, after=str)),
        proof=Proof.read(folder.path) if trains and (folder.path / PROOF).is_file() else Proof(),
        verdicts=_verdicts(folder) if folder.stage.gates else (),
        measurement=known if isinstance(known, gates.Measurement) else gates.Measurement(),
        promotion=gates.promotion(folder) if folder.stage.gates else None,
        stopped=str(read_record(folder.path / STOPPED).get("message") or ""),
        meaning=str(trouble or ""),
        said=trouble.line if trouble else troubles.last_error(tail),
        log=tuple(tail.splitlines()[-LOG_LINES:]),
    )


def _verdicts(folder: StageFolder) -> tuple[gates.GateVerdict, ...]:
    """The gates' verdicts. A sample task that is missing on this machine closes no gate: its result still counts."""
    known, about = gates.record(folder), gates.subject(folder)
    task = folder.stage.evaluation.sample_task if folder.stage.evaluation else None
    if about and isinstance(known, gates.Measurement) and task and not Path(task).is_file():
        about = replace(about, settings=known.settings)
    return tuple(gates.judge(folder.stage.gates, known, about))


def _entries(value: Any, **kinds: Any) -> Iterator[Mapping[str, Any]]:
    """The entries of a list that have these fields with these types; other tools may write such files too."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items()):
            yield entry
