"""`python -m runner.execute.step VERB FILE …`: a step of a pipeline in a pod, by the records on the claim.

    run FILE -- COMMAND…                    a stage: COMMAND, once the stages before it are finished and their gates open
    gate FILE                               measures the stage and opens or closes the gate after it
    promote FILE --by NAME --reason TEXT    a person's word against that gate

FILE is the stage's `pipeline.json` (see `runner.plan_file`). Whatever is missing, broken or about something else is a no.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from runner import inputs, plan_file
from runner.execute import gates, pipeline, recorded
from runner.execute.order import one
from runner.execute.runs import RunFolder
from runner.execute.stages import StageFolder
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.training import leash

# What is written here a cluster shows as the reason of a pod's end, up to 4096 bytes; it is there in pods alone.
TERMINATION_LOG = Path("/dev/termination-log")
MOST = 4000
ON_CLUSTER = " --cluster"

Tell = Callable[[str], None]


def run(plan: Plan, command: list[str], tell: Tell) -> int:
    """A stage behind the gates before it; the exit code of its command.

    Every machine looks before it starts; the first one alone hashes what is read, and keeps the stage's record.
    Raises Stop where a stage before is not as this one needs it, a gate is closed, or the results are not whole.
    """
    stage, folder = plan.stages[-1], _run_folder(plan)
    first = os.environ.get("PET_NODE_RANK", "0") == "0"
    require(plan, stage, hashes=first)
    pipeline.require_open(plan, folder, stage, tell, ON_CLUSTER)
    here, decision = StageFolder(plan, stage), one(plan, stage)
    if decision.action == "keep":
        tell(f"{stage.name}: done already")
        return 0
    if not first:
        os.execvp(command[0], command)
    pipeline.identify(folder)
    pipeline.begin(plan, folder, here, decision, tell)
    if code := _child(command):
        return code
    for line in pipeline.finish(plan, here):
        tell(line)
    return 0


def require(plan: Plan, stage: Stage, hashes: bool) -> None:
    """Raises Stop where a stage that this one reads is not finished, was made from other settings than the plan's, or,
    where `hashes` are looked at, has not left what lies there now."""
    for name, beginnings in stage.reads.items():
        before = next(other for other in plan.stages if other.name == name)
        folder = StageFolder(plan, before)
        submit = "`recipe submit RECIPE` takes the first stage that is not finished."
        if not folder.finished:
            raise Stop(f"The stage `{stage.name}` builds on `{name}`, which is not finished.", submit)
        wanted, made = (inputs.read(keys, beginnings) for keys in (before.keys, folder.recorded("keys")))
        if not all(wanted.values()) or made != wanted:
            raise Stop(f"`{name}` was made from other settings than this recipe's; it must run again first.", submit)
        wrong = folder.changed_outputs(beginnings) if hashes else []
        if wrong:
            raise Stop(f"`{wrong[0]}` of the stage `{name}` is not as it was left; it must run again first.", submit)


def gate(plan: Plan, tell: Tell) -> int:
    """0 where the gate after the stage is open, 1 where it is closed. What does not hold is measured anew, because
    somebody has sent the gate again.

    Raises Stop where the stage has no result that could be measured.
    """
    stage, folder = plan.stages[-1], _run_folder(plan)
    if one(plan, stage).action != "keep":
        raise Stop(f"The stage `{stage.name}` is not finished, or was made from other settings than this recipe's.")
    quiet: list[str] = []
    if not (recorded.is_current(plan, folder, stage) and pipeline.opened(plan, folder, stage, quiet.append)):
        tell(f"{stage.name}: measuring")
        recorded.measure(plan, folder, stage)
    verdicts = recorded.verdicts(plan, folder, stage)
    said = gates.table(verdicts)
    is_open = pipeline.opened(plan, folder, stage, said.append)
    said.append(f"The gate after `{stage.name}` is {'open' if is_open else 'closed'}.")
    for line in said:
        tell(line)
    leave("\n".join(said))
    return 0 if is_open else 1


def promote(plan: Plan, by: str, reason: str, tell: Tell) -> int:
    """Raises Stop where there is nothing to overrule."""
    stage = plan.stages[-1]
    if one(plan, stage).action != "keep":
        raise Stop(f"The stage `{stage.name}` is not finished, or was made from other settings than this recipe's.")
    for line in recorded.promotion_lines(recorded.promote(plan, _run_folder(plan), stage, by, reason)):
        tell(line)
    return 0


def _run_folder(plan: Plan) -> RunFolder:
    return RunFolder(Path(plan.place.run_dir), "run")


def _child(command: list[str]) -> int:
    """Runs the engine, which prints into the pod's log, and passes on the cluster's wish to end it; gives its exit code,
    that of a signal as a shell has it."""
    process = subprocess.Popen(command, env=os.environ | {leash.NAME: str(os.getpid())})
    # The first process of a pod gets no default reaction to signals.
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda number, _: process.send_signal(number))
    code = process.wait()
    return 128 - code if code < 0 else code


def leave(text: str) -> None:
    """Leaves the reason of the pod's end where the cluster shows it; the end of a long one."""
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_bytes(text.encode()[-MOST:])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.execute.step")
    parser.add_argument("verb", choices=("run", "gate", "promote"))
    parser.add_argument("file")
    parser.add_argument("--by")
    parser.add_argument("--reason")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    try:
        plan = _read(Path(chosen.file))
        if chosen.verb == "run":
            return run(plan, command, _say)
        return gate(plan, _say) if chosen.verb == "gate" else promote(plan, chosen.by, chosen.reason, _say)
    except Stop as stop:
        print(stop.text, file=sys.stderr, flush=True)
        leave(stop.text)
        return 1


def _read(file: Path) -> Plan:
    try:
        return plan_file.read(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(f"{file} is missing or broken: {error}", "Render and submit the recipe again.") from None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
