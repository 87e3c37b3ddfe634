"""Runs a plan's stages on this machine: in order, each after the gates before it, continuing after
any stop."""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from runner import parts
from runner.data import packaged_models
from runner.data.prepared import PreparedRows
from runner.data.tokenizers import forget_older
from runner.plan import Plan, Stage
from runner.recipe import units
from runner.run.launch import Progress, launch
from runner.run.run_folder import (
    FRESH,
    StageFolder,
    check_weights,
    differences,
    inputs,
    stamps,
)
from runner.tools import packaged
from runner.tools.child_process import Event
from runner.tools.files import read_record
from runner.tools.problem import Interrupted, Stop, Tell, listed
from runner.tools.run_files import COMPLETE, LOG, PAGE, PLANNED, REPORT, STOPPED, SUMMARY
from runner.trainer.records import Summary, elapsed_seconds

Watch = Callable[[], AbstractContextManager[Progress]]
OUT_OF_TIME = "out of time"
_WORDS = packaged.toml(__file__, "words.toml")
DECISIONS = _WORDS["decisions"]
MORE_TIME = _WORDS["more-time"]


class Selection(NamedTuple):
    """`--stage`, `--from` and `--until`, by stage name; all None means every stage."""

    stage: str | None = None
    first: str | None = None
    last: str | None = None

    def of(self, plan: Plan) -> list[Stage]:
        """The selected stages, in order. Raises Stop (exit 2) for an unknown name, or an empty
        selection."""
        if self.stage is not None and (self.first is not None or self.last is not None):
            raise Stop(
                "`--stage` selects one stage, so it excludes `--from` and `--until`.", code=2
            )
        if self.stage is None:
            first_name = self.first
            last = self.last
        else:
            first_name = self.stage
            last = self.stage
        start = plan.stages.index(plan.stages[0] if first_name is None else plan.stage(first_name))
        end = plan.stages.index(plan.stages[-1] if last is None else plan.stage(last))
        if start > end:
            raise Stop(f"`--from {self.first}` comes after `--until {self.last}`.", code=2)
        return list(plan.stages[start : end + 1])


class Decision(NamedTuple):
    """What happens to a stage: `keep`, `begin`, `go on` or `again`; why: one line for each
    reason."""

    stage: Stage
    action: str
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.stage.name}: {DECISIONS[self.action]}" + (
            f" ({'; '.join(self.why)})" if self.why else ""
        )


def decide(plan: Plan, stages: Iterable[Stage]) -> list[Decision]:
    """A Decision for each stage. A stage runs again if one that it reads does, unless the parts
    that it reads stay."""
    repeated: set[str] = {
        stage.name for stage in plan.stages if not StageFolder(plan, stage).finished
    }
    decisions = []
    for stage in stages:
        folder = StageFolder(plan, stage)
        repeated_inputs = []
        decision = decision_on(folder)
        for name in (name for name in stage.reads if name in repeated):
            before = folder.other(name)
            # Of a stage with parts, those that are read may stay as they are.
            if not before.stage.parts or decision_on(before, stage.reads[name]).action != "keep":
                repeated_inputs.append(name)
        if decision.action in ("keep", "go on") and repeated_inputs:
            decision = Decision(
                stage, "again", (f"{listed(repeated_inputs)} before it runs again",)
            )
        if decision.action != "keep":
            repeated.add(stage.name)
        decisions.append(decision)
    return decisions


def decision_on(folder: StageFolder, read: tuple[str, ...] = ()) -> Decision:
    """What happens to a stage, by its record. read: the beginnings of the outputs that count; all
    without one."""
    stage = folder.stage
    if not folder.state:
        return Decision(stage, "begin")
    changed = _changed(folder, read)
    if changed:
        return Decision(
            stage,
            "again",
            (*changed[:4], *([f"and {len(changed) - 4} more"] if len(changed) > 4 else [])),
        )
    if not folder.finished:
        return Decision(stage, "go on")
    wrong = folder.changed_outputs(read)
    if wrong:
        if len(wrong) > 1:
            more = f" and {len(wrong) - 1} more"
        else:
            more = ""
        return Decision(stage, "again", (f"{wrong[0]}{more} has changed since it was made",))
    return Decision(stage, "keep")


def is_done(plan: Plan) -> bool:
    """Whether every stage is finished and up to date."""
    return all(decision.action == "keep" for decision in decide(plan, plan.stages))


def _stale(folder: StageFolder) -> Iterator[tuple[str, list[str]]]:
    """The stages upstream whose settings or inputs have changed since, each with the differences;
    the first one first."""
    for name, read in folder.stage.reads.items():
        yield from _stale(folder.other(name))
        changed = _changed(folder.other(name), read)
        if changed:
            yield name, changed


def _changed(folder: StageFolder, read: tuple[str, ...]) -> list[str]:
    """How a stage's inputs differ from those on record; of its parts only those count that are
    read."""
    settings: set[str] = set()
    for text in read:
        settings.update(folder.stage.parts.get(text.split("/")[0], ()))
    recorded = folder.state.inputs
    now = inputs(folder.plan, folder.stage)
    if settings:
        recorded, now = (
            {name: of[name] for name in of if name.split(".")[0] in settings}
            for of in (recorded, now)
        )
    return differences(recorded, now)


def carry_out(
    plan: Plan,
    stages: list[Stage],
    tell: Tell,
    watch: Watch,
    made_with: Mapping[str, object] | None = None,
    keep: Callable[[], None] = lambda: None,
) -> list[Summary]:
    """Runs the chosen stages and reports their results; returns the summary of each finished stage
    of the plan. made_with: the record of the run's changes, written if a stage runs. keep: writes
    the plan to the folder, once its content belongs to the plan. Raises Stop if a stage fails, an
    earlier stage is missing, or a gate is closed."""
    run = StageFolder(plan, plan.stages[0]).run
    packaged_models.make_ready(stages, tell)  # first, because the content of a stage's files counts
    decisions = decide(plan, stages)
    done = all(decision.action == "keep" for decision in decisions)
    if len(stages) > 1:
        started = ["Stages to run", *(f"  {decision}" for decision in decisions)]
        for line in (
            [f"This {run.kind} is already done. `--fresh` repeats it."] if done else started
        ):
            tell(line)
    keep_what_took_training(plan, decisions, FRESH)
    run.mark("running", fault="", **({} if done or made_with is None else made_with))
    if not done:
        (run.path / PAGE).unlink(missing_ok=True)  # it shows the previous content of this folder
    keep()
    try:
        for stage in stages:
            _carry_out(StageFolder(plan, stage), tell, watch)
    except BaseException as error:
        run.mark("stopped", fault=error.text if isinstance(error, Stop) else "")
        raise
    run.mark("finished" if is_done(plan) else "stopped")
    return summaries(plan)


def _carry_out(folder: StageFolder, tell: Tell, watch: Watch) -> None:
    """Runs one stage. Raises Stop as `require_earlier`."""
    require_earlier(folder, tell)
    decision = decision_on(folder)
    if decision.action == "keep":
        tell(f"{folder.stage.name}: done already")
    else:
        begin(folder, decision, tell)
        _launch(folder, watch)
        for line in finish(folder):
            tell(f"  {line}")
    # A stage that reached its time limit can continue later, and is measured then. Random weights
    # never are.
    if folder.finished and folder.run.kind != "measurement":
        judge(folder, tell)


def require_earlier(folder: StageFolder, tell: Tell) -> None:
    """Raises Stop if a stage before this one is unfinished or outdated, or a gate before it is
    closed."""
    stage = folder.stage
    for name in stage.reads:
        if not folder.other(name).finished:
            raise Stop(
                f"The stage `{stage.name}` builds on `{name}`, which is not finished.",
                f"Run it first: `--from {name}`, or leave out `--stage` and `--from`.",
            )
    outdated = (
        (name, f"was made from other inputs than now: {'; '.join(reasons[:4])}")
        for name, reasons in _stale(folder)
    )
    wrong = ((name, folder.other(name).changed_outputs(read)) for name, read in stage.reads.items())
    kept = (
        (name, f"has changed since it was made (`{files[0]}`)") for name, files in wrong if files
    )
    for name, complaint in itertools.chain(outdated, kept):
        raise Stop(
            f"The stage `{stage.name}` builds on `{name}`, and `{name}` {complaint}.",
            f"`--from {name}` runs it again; so does the command without `--stage` and `--from`.",
        )
    guard(folder, tell)


def begin(folder: StageFolder, decision: Decision, tell: Tell) -> None:
    """Prepares the stage's folder: clears results of other inputs and records its inputs. In
    folders where people keep runs, the caller has called `keep_what_took_training`. Raises Stop if
    the recipe's time for training is used up."""
    plan = folder.plan
    stage = folder.stage
    has_results = bool(folder.state) or folder.has_trained
    starts_over = has_results and decision.action in ("again", "begin")
    _require_time(folder, starts_over)
    if starts_over:
        tell(str(decision))
        # A GPU that is missing for a day changes inputs too, and must not cost weeks of training. A
        # rehearsal is quickly repeated, and a claim is not planned to have room for two.
        if folder.run.kind == "run" and not folder.place.on_cluster and folder.has_trained:
            kept = _moved_aside(folder.path)
            tell(
                f"{stage.name}: the old result has moved to {kept}; delete it when you no longer need it"
            )
        folder.clear()
    action = "starting"
    if decision.action == "go on":
        action = "continuing"
    log = ""
    if not folder.place.on_cluster:
        log = f"; log in {folder.path / LOG}"
    tell(f"{stage.name}: {action}{log}")
    forget_older(stage.config)
    # The stamps come first, so that a file that changes in between is read again later.
    stage_stamps = stamps(plan, stage)
    folder.mark(
        "begun",
        inputs=inputs(plan, stage),
        stamps=stage_stamps,
        keys=dict(stage.keys),
        outputs=None,
    )
    for name in (SUMMARY, STOPPED):
        (folder.path / name).unlink(missing_ok=True)


def _require_time(folder: StageFolder, starts_over: bool) -> None:
    """Raises Stop if the recipe's time for training is used up."""
    plan = folder.plan
    stage = folder.stage
    limit = stage.config.get("recipe_runner", {}).get("time_limit_seconds")
    if not limit:
        return
    # As in training itself, the time of later stages does not count, nor the own time of a stage
    # that starts over.
    counted_stages = list(plan.stages[: plan.stages.index(stage)])
    if not starts_over:
        counted_stages.append(stage)
    used = elapsed_seconds({plan.place_of(counted).run_dir for counted in counted_stages})
    if used < limit:
        return
    raise Stop(
        f"The time limit of {units.duration(limit)} is used up, so `{stage.name}` does not start. Training has taken {units.duration(used)} so far.",
        MORE_TIME[folder.run.kind].format(point="here"),
    )


def _moved_aside(path: Path) -> Path:
    """The new path of a folder: its name with `.before`, and a number if that exists."""
    new_path = path.with_name(f"{path.name}.before")
    number = 1
    while new_path.exists():
        number += 1
        new_path = path.with_name(f"{path.name}.before-{number}")
    return path.rename(new_path)


def keep_what_took_training(plan: Plan, decisions: list[Decision], remedy: str) -> None:
    """Raises Stop if a stage would replace trained results, its own or those of a stage that reads
    from it, in a folder that cannot be moved aside. This does not apply to pods, whose keys
    separate checkpoints, or to short rehearsals."""
    if plan.place.on_cluster or StageFolder(plan, plan.stages[0]).run.kind == "rehearsal":
        return
    for decision in decisions:
        if decision.action not in ("again", "begin"):
            continue
        readers = [stage for stage in plan.stages if decision.stage.name in stage.reads]
        for stage in (decision.stage, *readers):
            folder = StageFolder(plan, stage)
            if not stage.folder and folder.has_trained:
                raise Stop(
                    f"`{folder.path}` contains a {folder.run.kind} of this recipe from before it changed ({_reasons_of(decisions)}).",
                    remedy,
                )


def _reasons_of(decisions: list[Decision]) -> str:
    """Why stages run again, as one text."""
    reasons = []
    for decision in decisions:
        if decision.why:
            reasons.append(f"{decision.stage.name}: {', '.join(decision.why)}")
    return "; ".join(reasons) or "its inputs are not on record"


def _launch(folder: StageFolder, watch: Watch) -> None:
    """Runs the stage's engine. ^C becomes a message about where it ended, and where the same
    command continues."""
    name = folder.stage.name
    progress_seen = {"step": 0, "steps": 0}

    def note(event: Event) -> None:
        progress_seen.update((name, event[name]) for name in progress_seen if event.get(name))
        progress(event)

    try:
        with watch() as progress:
            launch(folder.stage, folder.place, note)
    except KeyboardInterrupt:
        step = progress_seen["step"]
        steps = progress_seen["steps"]
        if not steps:
            raise Interrupted(
                f"Interrupted during `{name}`. The same command continues it."
            ) from None
        # An engine saves at its end if it has time.
        complete_marks = Path(folder.place.checkpoints_dir).glob(f"checkpoint-*/{COMPLETE}")
        saved = max(
            (int(file.parent.name.rpartition("-")[2]) for file in complete_marks), default=0
        )
        begins = f"the last saved step, or starts `{name}` again"
        if saved:
            if saved >= step > 0:
                begins = "there"
            else:
                begins = f"step {saved:,}, the last saved one"
        reached = f"step {max(step, saved):,} of {steps:,}"
        raise Interrupted(
            f"Interrupted at {reached}. The same command continues from {begins}."
        ) from None
    except Stop as stop:
        if not folder.stage.trains:
            raise
        raise Stop(f"The stage `{name}` has failed. {stop.text}") from None


def finish(folder: StageFolder) -> Iterable[str]:
    """Records a stage's complete results; returns lines about them. Raises Stop if some are missing
    or do not load."""
    _require_results(folder)
    if folder.model.is_dir():
        check_weights(folder.model)
    _complete(folder)
    summary = folder.summary
    if summary and summary.time_limit and summary.time_limit.reached:
        return _out_of_time(folder, summary, summary.time_limit.limit_seconds)
    if folder.run.kind == "run":
        shutil.rmtree(folder.place.scratch_dir, ignore_errors=True)
    folder.mark("finished", outputs=folder.outputs())
    report = folder.results / REPORT
    if folder.prepares and report.is_file():
        return report.read_text(encoding="utf-8").splitlines()
    if summary is None:
        return []
    return _result_lines(summary)


def _require_results(folder: StageFolder) -> None:
    """Raises Stop if a training has no model, or one of another recipe."""
    stage = folder.stage
    if not stage.trains:
        return
    summary = folder.summary
    fingerprint = stage.config["recipe_runner"]["fingerprint"]
    if summary and summary.fingerprint == fingerprint and folder.weights_files:
        return
    logs = sorted(folder.path.glob("train*.log"))
    raise Stop(
        f"The stage `{stage.name}` ended without an error and without results.",
        f"The whole log: {logs[0] if logs else folder.path / LOG}",
    )


def _out_of_time(folder: StageFolder, summary: Summary, limit_seconds: float) -> list[str]:
    """Leaves a stage that a time limit has ended unfinished, so that nothing builds on it, and
    returns where its model is. Raises Stop if another stage reads it."""
    name = folder.stage.name
    folder.mark(OUT_OF_TIME)
    if folder.model.is_dir():
        model = folder.model
    else:
        model = folder.weights_files[0]
    message = f"The time limit of {units.duration(limit_seconds)} has ended `{name}` after step {summary.steps:,}. Its current model is in `{model}`."
    remedy = MORE_TIME[folder.run.kind].format(point="this step")
    if any(name in later_stage.reads for later_stage in folder.plan.stages):
        raise Stop(f"{message} Later stages do not start.", remedy)
    return [message, remedy]


def _result_lines(summary: Summary) -> list[str]:
    """What a training's summary says of it, for people."""
    line = f"step {summary.steps:,}"
    if summary.tokens:
        line += f", {summary.tokens:,} tokens"
    line += f", {summary.training_seconds:.0f} s"
    if summary.losses:
        line += f", {summary.losses}"
    if summary.early_stop:
        return [line, summary.early_stop.told]
    return [line]


def _complete(folder: StageFolder) -> None:
    """Completes the summary that training wrote: stage, data sets, forecast, and changes of the
    recipe."""
    summary = folder.summary
    run = folder.run
    name = folder.stage.name
    if summary is None:
        return
    # Missing in pods. Plain JSON, because the image that trains images lacks a library of
    # `run_manifest`.
    foreseen = read_record(run.path / PLANNED).get("foreseen")
    if isinstance(foreseen, list):
        stages = [forecast for forecast in foreseen if isinstance(forecast, Mapping)]
    else:
        stages = []
    replace(
        summary,
        stage=name,
        kind=run.kind,
        changes=run.state.changes,
        substitutions=run.state.substitutions,
        sets=PreparedRows.read(Path(folder.plan.place.data_dir, folder.stage.folder)).sets,
        planned=next((forecast for forecast in stages if forecast.get("stage") == name), None),
    ).write(folder.path)


def guard(folder: StageFolder, tell: Tell, where: str = "") -> None:
    """Raises Stop if a stage must not start. where: the option that names the place of the run."""
    # Without the part that judges gates, every gate is closed, whatever other parts' hooks do.
    if any(folder.plan.guards(folder.stage)):
        parts.require("evaluate")
    for hooks in parts.stage_hooks():
        hooks.before_stage(folder, tell, where)


def judge(folder: StageFolder, tell: Tell) -> None:
    """Raises Stop if no later stage may use a finished stage's results."""
    if folder.stage.gates:
        parts.require("evaluate")
    for hooks in parts.stage_hooks():
        hooks.after_stage(folder, tell)


def send(folder: StageFolder, tell: Tell) -> None:
    """Sends what a stage has left to where the recipe reports to. It never makes a run fail."""
    for hooks in parts.stage_hooks():
        hooks.send_results(folder, tell)


def summaries(plan: Plan) -> list[Summary]:
    """The summary of every stage that was trained completely, or up to the time limit."""
    folders = [StageFolder(plan, stage) for stage in plan.stages if stage.trains]
    done = [folder for folder in folders if folder.state.status in ("finished", OUT_OF_TIME)]
    summaries = []
    for folder in done:
        if folder.summary is not None:
            summaries.append(replace(folder.summary, stage=folder.stage.name))
    return summaries
