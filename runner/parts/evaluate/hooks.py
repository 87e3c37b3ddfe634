"""Gates around stages: nothing starts behind a closed one, and what has ended is measured and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runner.parts.evaluate import gates
from runner.plan import Plan
from runner.run.stage_folder import StageFolder
from runner.tools.problem import Stop

Tell = Callable[[str], None]


def after_stage(folder: StageFolder, tell: Tell) -> None:
    """Measures the stage where that is not done for what lies there now, and opens or closes its gate.

    Raises Stop where it stays closed.
    """
    stage = folder.stage
    if not stage.gates:
        return
    if not gates.current(folder):
        tell(f"{stage.name}: measuring")
        gates.measure(folder)
    tell(f"{stage.name}: gate")
    is_open, lines = gates.opened(folder)
    for line in (*gates.table(gates.verdicts(folder)), *lines):
        tell(f"  {line}")
    if not is_open:
        later = any(stage.name in other.reads for other in folder.plan.stages)
        raise Stop(gates.closed(folder, "nothing after it starts" if later else "its model does not count as good"))


def before_stage(folder: StageFolder, tell: Tell, where: str) -> None:
    """Raises Stop with the first gate before a stage that is closed; where: the option of `recipe promote` that names
    where the run lives."""
    for stage in folder.plan.guards(folder.stage):
        guard = StageFolder(folder.plan, stage)
        is_open, lines = gates.opened(guard)
        for line in lines:
            tell(line)
        if not is_open:
            raise Stop(gates.closed(guard, f"`{folder.stage.name}` does not start", where))


def on_record(plan: Plan) -> Iterable[str]:
    """Who has overruled which gate."""
    return gates.promotions(plan)


def gate_in_pod(folder: StageFolder, tell: Tell) -> tuple[bool, list[str]]:
    """Whether the gate after the stage is open, and why. What does not hold is measured again, because somebody has sent the gate
    again.

    Raises Stop where the stage has no result that could be measured.
    """
    name = folder.stage.name
    if not (gates.current(folder) and gates.opened(folder)[0]):
        tell(f"{name}: measuring")
        gates.measure(folder)
    is_open, override = gates.opened(folder)
    verdict = f"The gate after `{name}` is {'open' if is_open else 'closed'}."
    said = [*gates.table(gates.verdicts(folder)), *override, verdict]
    for line in said:
        tell(line)
    return is_open, said


def promote_in_pod(folder: StageFolder, by: str, reason: str, tell: Tell) -> None:
    for line in gates.promote(folder, by, reason).lines:
        tell(line)
