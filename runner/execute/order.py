"""Order: which stages a command is about, and for each whether it is kept, gone on with, or run again, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.execute.stages import StageFolder, differences, inputs
from runner.names import listed, nearest
from runner.plan import Plan, Stage
from runner.problem import Stop


def stage_of(plan: Plan, name: str) -> Stage:
    """The stage of that name. Raises Stop (exit 2) where there is none."""
    stages = {stage.name: stage for stage in plan.stages}
    if name in stages:
        return stages[name]
    near = nearest(name, stages)
    raise Stop(
        f"`{plan.name}` has no stage `{name}`.",
        (f"Did you mean `{near}`? " if near else "") + f"Its stages are {listed(stages)}.",
        code=2,
    )


@dataclass(frozen=True)
class Selection:
    """`--stage`, `--from` and `--until`, by stage name; all None means every stage."""

    stage: str | None = None
    first: str | None = None
    last: str | None = None

    def of(self, plan: Plan) -> list[Stage]:
        """The stages meant, in their order. Raises Stop (exit 2) for a name that is no stage, or an empty choice."""
        names = [stage.name for stage in plan.stages]
        for name in (self.stage, self.first, self.last):
            if name is not None:
                stage_of(plan, name)
        if self.stage is not None and (self.first is not None or self.last is not None):
            raise Stop("`--stage` means one stage, and goes without `--from` and `--until`.", code=2)
        if self.stage is not None:
            return [stage for stage in plan.stages if stage.name == self.stage]
        start = names.index(self.first) if self.first is not None else 0
        end = names.index(self.last) if self.last is not None else len(names) - 1
        if start > end:
            raise Stop(f"`--from {self.first}` comes after `--until {self.last}`.", code=2)
        return list(plan.stages[start : end + 1])


@dataclass(frozen=True)
class Decision:
    """What becomes of a stage: `keep`, `begin`, `go on` or `again`; why: a line a reason."""

    stage: Stage
    action: str
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = {"keep": "done, and stays", "begin": "runs", "go on": "goes on where it stopped", "again": "runs again"}
        return f"{self.stage.name}: {words[self.action]}" + (f" ({'; '.join(self.why)})" if self.why else "")


def decide(plan: Plan, stages: Iterable[Stage]) -> list[Decision]:
    """A Decision a stage. A stage that reads from one that runs again runs again too, as far as can be told before."""
    repeated: set[str] = {stage.name for stage in plan.stages if not StageFolder(plan, stage).finished}
    found = []
    for stage in stages:
        decision = one(plan, stage)
        above = [name for name in stage.reads if name in repeated]
        if decision.action == "keep" and above:
            decision = Decision(stage, "again", (f"{listed(above)} before it runs again",))
        if decision.action != "keep":
            repeated.add(stage.name)
        found.append(decision)
    return found


def stale(plan: Plan, stage: Stage) -> tuple[Stage, list[str]] | None:
    """The first stage that this one goes back to and that was made from other settings or results than it would be made
    from now, and what differs; None where all of them hold. Only those parts of a stage count that are read."""
    for name, beginnings in stage.reads.items():
        before = next(other for other in plan.stages if other.name == name)
        if found := stale(plan, before):
            return found
        parts = [before.parts[part] for part in {text.split("/")[0] for text in beginnings} if part in before.parts]
        read = {setting for part in parts for setting in part}
        made, now = StageFolder(plan, before).recorded("inputs"), inputs(plan, before)
        if parts:
            made, now = ({name: of[name] for name in of if name.split(".")[0] in read} for of in (made, now))
        if changed := differences(made, now):
            return before, changed
    return None


def one(plan: Plan, stage: Stage) -> Decision:
    """What becomes of a stage with what lies in the run folder now."""
    folder = StageFolder(plan, stage)
    state = folder.state
    if not state:
        return Decision(stage, "begin")
    changed = differences(folder.recorded("inputs"), inputs(plan, stage))
    if changed:
        shown = (*changed[:4], *([f"and {len(changed) - 4} more"] if len(changed) > 4 else []))
        return Decision(stage, "again", shown)
    if not folder.finished:
        return Decision(stage, "go on")
    if wrong := folder.changed_outputs():
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return Decision(stage, "again", (f"{wrong[0]}{more} is not as it was left",))
    return Decision(stage, "keep")
