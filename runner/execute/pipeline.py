"""A plan of several stages on this machine: in order, each behind the gates before it, going on after any stop."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.execute import gates, recorded
from runner.execute.launch import launch
from runner.execute.order import Decision, Selection, decide, one, stale
from runner.execute.runs import RunFolder
from runner.execute.stages import StageFolder, check_weights, inputs
from runner.execute.training import Tell, Watch
from runner.files import read_json
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.recipe import units
from runner.training.spent import spent


def identify(run: RunFolder) -> str:
    """The run folder's own number, made when it is first asked for; results of another run never count here."""
    if not run.state.get("id"):
        run.mark(run.state.get("status", "running"), id=uuid.uuid4().hex)
    return run.state["id"]


def carry_out(plan: Plan, run: RunFolder, chosen: Selection, tell: Tell, watch: Watch) -> list[dict[str, Any]]:
    """Runs the chosen stages and tells what came out; gives a summary of each stage of the plan that is finished.

    Raises Stop (exit 1) where a stage fails, a stage before is missing, or a gate does not open.
    """
    identify(run)
    stages = chosen.of(plan)
    _tell_tokens(plan, tell)
    tell("What is to be done")
    for decision in decide(plan, stages):
        tell(f"  {decision}")
    run.mark("running")
    try:
        for stage in stages:
            _before(plan, run, stage, tell)
            _stage(plan, run, stage, tell, watch)
    except Stop:
        run.mark("stopped")
        raise
    done = all(one(plan, stage).action == "keep" for stage in plan.stages)
    run.mark("finished" if done else "stopped")
    _tell_trained(plan, tell)
    found = summaries(plan)
    for line in report(plan, run, found):
        tell(line)
    return found


def _before(plan: Plan, run: RunFolder, stage: Stage, tell: Tell) -> None:
    """Raises Stop where a stage that this one builds on is not finished or not as it would be now, or a gate before it is
    closed."""
    for name in stage.reads:
        before = _named(plan, name)
        if not StageFolder(plan, before).finished:
            raise Stop(
                f"The stage `{stage.name}` builds on `{name}`, which is not finished.",
                f"Run it first: `--from {name}`, or leave out `--stage` and `--from`.",
            )
    if found := stale(plan, stage):
        raise _not_as_it_was(stage, found[0].name, f"was made from something else than now: {'; '.join(found[1][:4])}")
    for name, beginnings in stage.reads.items():
        if wrong := StageFolder(plan, _named(plan, name)).changed_outputs(beginnings):
            raise _not_as_it_was(stage, name, f"has left `{wrong[0]}`, which is not as it was left")
    require_open(plan, run, stage, tell)


def _not_as_it_was(stage: Stage, name: str, what: str) -> Stop:
    return Stop(
        f"The stage `{stage.name}` builds on `{name}`, and `{name}` {what}.",
        f"`--from {name}` makes it again, and so does leaving out `--stage` and `--from`.",
    )


def _stage(plan: Plan, run: RunFolder, stage: Stage, tell: Tell, watch: Watch) -> None:
    folder, decision = StageFolder(plan, stage), one(plan, stage)
    if decision.action == "keep":
        tell(f"{stage.name}: done already")
    else:
        begin(plan, run, folder, decision, tell)
        _run(plan, folder, watch)
        for line in finish(plan, folder):
            tell(f"  {line}")
    if stage.gates:
        _gate(plan, run, stage, tell)


def begin(plan: Plan, run: RunFolder, folder: StageFolder, decision: Decision, tell: Tell) -> None:
    """Makes the stage's folder ready: what other inputs have left goes, and what it is made from is on record."""
    stage = folder.stage
    if decision.action == "again":
        tell(f"{decision}")
        # A GPU that is missing for a day changes inputs too, and must not cost weeks of training.
        kept = folder.set_aside() if run.kind == "run" and not plan.place.run_key else None
        if kept:
            tell(f"{stage.name}: what was trained before is moved to {kept}; delete it when nobody needs it")
        folder.clear()
    _time_left(plan, stage)
    tell(f"{stage.name}: {'going on' if decision.action == 'go on' else 'starting'}; log in {folder.path}/train.log")
    folder.mark("running", inputs=inputs(plan, stage), keys=dict(stage.keys), outputs=None)
    (folder.path / "training_summary.json").unlink(missing_ok=True)


def _run(plan: Plan, folder: StageFolder, watch: Watch) -> None:
    stage = folder.stage
    try:
        with watch() as progress:
            launch(stage, plan.place_of(stage), progress)
    except Stop as stop:
        raise Stop(f"The stage `{stage.name}` has failed. {stop.text}") from None


def finish(plan: Plan, folder: StageFolder) -> Iterable[str]:
    """Puts on record what a stage has left, once that is sure to be whole; gives what there is to tell.

    Raises Stop where results are missing, or weights do not load.
    """
    stage = folder.stage
    if stage.engine != "runner" and not isinstance(read_json(folder.path / "training_summary.json"), dict):
        raise Stop(f"The stage `{stage.name}` ended without an error and without its results.")
    if stage.name != "data":
        check_weights(folder.model)
    if early := _ended_early(folder):
        raise early
    shutil.rmtree(plan.place_of(stage).scratch_dir, ignore_errors=True)
    folder.mark("finished", outputs=folder.outputs())
    return _told(folder)


def _time_left(plan: Plan, stage: Stage) -> None:
    """Raises Stop where the stage trains something and the recipe's time for all of training is used up."""
    limit = stage.config.get("recipe_runner", {}).get("time_limit_seconds")
    # As training itself counts: what later stages have used belongs to a model that is not built on this one.
    before = plan.stages[: plan.stages.index(stage) + 1]
    used = spent(plan.place_of(other).run_dir for other in before) if limit else 0.0
    if limit and used >= limit:
        raise Stop(
            f"The time limit of {units.duration(limit)} is used up, and `{stage.name}` does not start: training has taken "
            f"{units.duration(used)} so far.",
            "Raise `limits.time`; the same command then goes on from here.",
        )


def _ended_early(folder: StageFolder) -> Stop | None:
    """What to say where the time limit has ended a stage before its end. It stays unfinished, so that nothing builds on
    it; its model so far is saved and can be used."""
    summary = read_json(folder.path / "training_summary.json")
    limit = summary.get("time_limit") if isinstance(summary, dict) else None
    if not isinstance(limit, dict) or not limit.get("reached"):
        return None
    folder.mark("out of time")
    return Stop(
        f"The time limit of {units.duration(limit['limit_seconds'])} has ended `{folder.stage.name}` after step "
        f"{summary['steps']:,}. Its model so far is in `{folder.model}`, and nothing after it starts.",
        "Raise `limits.time`; the same command then goes on from this step.",
    )


def _told(folder: StageFolder) -> Iterable[str]:
    """What a finished stage has to say."""
    report = folder.results / "report.txt"
    if folder.stage.name == "data" and report.is_file():
        return report.read_text(encoding="utf-8").splitlines()
    summary = read_json(folder.path / "training_summary.json")
    if not isinstance(summary, dict):
        return []
    first, last = summary["first_validation_loss"], summary["last_validation_loss"]
    losses = f", validation loss {first:.3f} → {last:.3f}" if first is not None and last is not None else ""
    return [f"step {summary['steps']:,}, {summary['tokens']:,} tokens, {summary['training_seconds']:.0f} s{losses}"]


def _gate(plan: Plan, run: RunFolder, stage: Stage, tell: Tell) -> None:
    """Measures the stage where that is not done for what lies there now, and opens or closes its gate."""
    if not recorded.is_current(plan, run, stage):
        tell(f"{stage.name}: measuring")
        recorded.measure(plan, run, stage)
    verdicts = recorded.verdicts(plan, run, stage)
    tell(f"{stage.name}: gate")
    for line in gates.table(verdicts):
        tell(f"  {line}")
    if not opened(plan, run, stage, lambda line: tell(f"  {line}")):
        raise Stop(closed(stage, verdicts, "nothing after it starts"))


def opened(plan: Plan, run: RunFolder, stage: Stage, tell: Tell) -> bool:
    """Whether the gate after a stage is open, by what is on record or by a person's word, which is told."""
    if gates.passed(recorded.verdicts(plan, run, stage)):
        return True
    promotion = recorded.promotion(plan, run, stage)
    for line in recorded.promotion_lines(promotion) if promotion else ():
        tell(line)
    return promotion is not None


def closed(stage: Stage, verdicts: list[gates.Verdict], consequence: str, where: str = "") -> str:
    """What a closed gate says. where: the option of `recipe promote` that names where the run lives."""
    missed = "\n".join(
        f"  {verdict.metric}: wanted {verdict.wanted}, got {verdict.got}: {verdict.why}"
        for verdict in verdicts
        if not verdict.holds
    )
    return (
        f"The gate after `{stage.name}` is closed, and {consequence}. It missed:\n{missed}\n"
        f"Look at the stage's log and curves. A person may overrule: "
        f"recipe promote RECIPE {stage.name}{where} --by NAME --reason TEXT"
    )


def require_open(plan: Plan, run: RunFolder, stage: Stage, tell: Tell, where: str = "") -> None:
    """Raises Stop with the first gate before a stage that is closed; where: as for `closed`."""
    for guard in guards_of(plan, stage):
        if not opened(plan, run, guard, tell):
            raise Stop(closed(guard, recorded.verdicts(plan, run, guard), f"`{stage.name}` does not start", where))


def guards_of(plan: Plan, stage: Stage) -> list[Stage]:
    """The stages with a gate that this one goes back to, in their order: each may have been tightened since."""
    found, names = set(), list(stage.reads)
    while names:
        if (name := names.pop()) not in found:
            found.add(name)
            names += _named(plan, name).reads
    return [other for other in plan.stages if other.name in found and other.gates]


def _named(plan: Plan, name: str) -> Stage:
    return next(stage for stage in plan.stages if stage.name == name)


def _tell_tokens(plan: Plan, tell: Tell) -> None:
    tokens = plan.facts["tokens"]
    parts = ", ".join(f"{name} {count:,}" for name, count in tokens.items())
    tell(f"{plan.facts['parameters']:,} parameters; {plan.facts['tokens_in_all']:,} tokens to train on ({parts})")


def _tell_trained(plan: Plan, tell: Tell) -> None:
    """How many tokens pretraining has truly seen, counted by the trainer over all context lengths."""
    for stage in reversed(plan.stages):
        summary = read_json(StageFolder(plan, stage).path / "training_summary.json")
        if stage.name in plan.facts["tokens"] and isinstance(summary, dict):
            tell(f"{summary['tokens']:,} of {plan.facts['tokens_in_all']:,} tokens trained on, up to {stage.name}")
            return


def summaries(plan: Plan) -> list[dict[str, Any]]:
    """The summary of every finished stage that trained something, with the stage's name."""
    found = []
    for stage in plan.stages:
        summary = read_json(Path(StageFolder(plan, stage).path) / "training_summary.json")
        if isinstance(summary, dict) and StageFolder(plan, stage).finished:
            found.append({"stage": stage.name} | summary)
    return found


def report(plan: Plan, run: RunFolder, summaries: list[dict[str, Any]]) -> list[str]:
    """What a person wants to know at the end, a line a stage, and who has overruled which gate."""
    lines = [""]
    for summary in summaries:
        first, last = summary["first_validation_loss"], summary["last_validation_loss"]
        losses = f"validation loss {first:.3f} → {last:.3f}" if first is not None and last is not None else ""
        accuracy = summary.get("last_preference_accuracy")
        preferred = f", prefers the better answer in {accuracy:.0%}" if accuracy is not None else ""
        lines.append(f"{summary['stage']:<16} step {summary['steps']:>9,}  {losses}{preferred}")
    shown = run.path.relative_to(Path.cwd()) if run.path.is_relative_to(Path.cwd()) else run.path
    return [*lines, *recorded.promotions(plan, run), "", f"Everything is in {shown}/"]
