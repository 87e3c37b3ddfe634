"""Gates around stages: nothing starts behind a closed one, and what has ended is measured and judged."""

from collections.abc import Callable

from runner.parts.evaluate import gates
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
    is_open, lines = gates.described(folder)
    for line in lines[:-1]:
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


def gate_in_pod(folder: StageFolder, tell: Tell) -> tuple[bool, list[str]]:
    """Whether the gate after the stage is open, and why. What does not hold is measured again, because somebody has sent the gate
    again.

    Raises Stop where the stage has no result that could be measured.
    """
    if not (gates.current(folder) and gates.opened(folder)[0]):
        tell(f"{folder.stage.name}: measuring")
        gates.measure(folder)
    is_open, said = gates.described(folder)
    for line in said:
        tell(line)
    return is_open, said


def promote_in_pod(folder: StageFolder, by: str, reason: str, tell: Tell) -> None:
    for line in gates.promote(folder, by, reason).lines:
        tell(line)
