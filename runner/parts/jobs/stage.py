"""`python -m runner.parts.jobs.stage VERB FILE …`: a stage in a pod, by the records on the claim.

    run FILE -- COMMAND…                    a stage: COMMAND, once the stages before it are finished
    and their gates open
    gate FILE                               measures the stage and opens or closes the gate after it
    promote FILE --by NAME --reason TEXT    a person's override of that gate

FILE is the stage's `plan.json` (see `runner.plan.Plan.upto`). A missing, broken or other record is
a refusal.
"""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from runner import parts
from runner.data.prepared import require_room
from runner.parts.jobs import mirror
from runner.plan import read_keys, tracker
from runner.run import pipeline
from runner.run.run_folder import StageFolder, require_of
from runner.scenarios.saved_plan import read_plan
from runner.tools import child_process
from runner.tools.files import read_record
from runner.tools.problem import Stop, Tell
from runner.tools.process import ensure_home, helping_pod
from runner.tools.run_files import PROGRESS, STOPPED

# The cluster shows the text of this file as the reason of a pod's end, up to 4096 bytes. It exists
# only in pods.
TERMINATION_LOG = Path("/dev/termination-log")
ON_CLUSTER = " --cluster"
say: Tell = partial(print, flush=True)


def run(folder: StageFolder, command: list[str], tell: Tell) -> int:
    """Runs a stage after the gates before it; returns the exit code of its command. Every machine
    checks before it starts; only the first hashes other stages' results, and keeps the record.
    Raises Stop if an earlier stage is not as needed, a gate is closed, the job has another number
    of machines than the plan, or the results are incomplete."""
    is_first_machine = os.environ.get("PET_NODE_RANK", "0") == "0" and not helping_pod()
    if is_first_machine:
        mirror.begin(folder, tell)
    require(folder, hashes=is_first_machine)
    # Set by the operator; OpenShift AI's console offers to change the number of a job's machines.
    nodes = os.environ.get("PET_NNODES", "")
    if folder.stage.trains and nodes.isdigit() and int(nodes) != folder.stage.machines.nodes:
        raise Stop(
            f"The number of this job's machines is now {int(nodes)}, but the recipe `{folder.plan.name}` says {folder.stage.machines.nodes}. It would train with another batch size.",
            f"Change it back to {folder.stage.machines.nodes}, or write `nodes: {int(nodes)}` in `machines` and run `recipe submit RECIPE`.",
        )
    pipeline.guard(folder, tell, ON_CLUSTER)
    decision = pipeline.decision_on(folder)
    if decision.action == "keep":
        if is_first_machine:
            # Its inputs are the current ones, whatever their names; the stages after it look for
            # its keys.
            folder.mark("finished", keys=dict(folder.stage.keys))
            mirror.attempt(folder, tell)
        tell(f"{folder.stage.name}: done already")
        leave_progress(folder)
        return 0
    if folder.stage.trains:
        require_room(Path(folder.plan.place.data_dir))
    if not is_first_machine:
        return _work(folder, command)
    # The results of another recipe would be deleted.
    require_of(
        folder.run,
        folder.plan.name,
        "Name another folder with `openshift.output_dir`, or delete that one from the claim.",
    )
    folder.run.mark("running", recipe=folder.plan.name)
    pipeline.begin(folder, decision, tell)
    with mirror.following(folder, tell):
        code = _work(folder, command)
    if code:
        _send(folder, tell)
        return code
    for line in pipeline.finish(folder):
        tell(line)
    _send(folder, tell)
    leave_progress(folder)
    return 0


def require(folder: StageFolder, hashes: bool) -> None:
    """Raises Stop if a stage that this one reads is not finished, was made from other settings than
    the plan's, or, with `hashes`, if its files have changed since."""
    stage = folder.stage
    for name, beginnings in stage.reads.items():
        before = folder.other(name)
        if not before.finished:
            raise Stop(
                f"The stage `{stage.name}` builds on `{name}`, which is not finished.",
                "`recipe submit RECIPE` sends the first stage that is not finished.",
            )
        planned, recorded = (
            read_keys(keys, beginnings) for keys in (before.stage.keys, before.state.keys)
        )
        if not all(planned.values()) or recorded != planned:
            raise Stop(
                f"`{name}` was made from other settings than this recipe's. It must run again first.",
                "`recipe submit RECIPE` sends the first stage that is not finished.",
            )
        if hashes and (wrong := before.changed_outputs(beginnings)):
            raise Stop(
                f"`{wrong[0]}` of the stage `{name}` has changed since it was made. The stage must run again first.",
                "`recipe submit RECIPE` sends the first stage that is not finished.",
            )


def gate(folder: StageFolder, tell: Tell) -> int:
    """0 if the gate after the stage is open, 1 if it is closed. Raises Stop if the stage has no
    result to measure."""
    mirror.begin(folder, tell)
    _require_finished(folder)
    parts.require("evaluate")
    from runner.parts.evaluate import gates

    is_open, lines = gates.gate_in_pod(folder, tell)
    _send(folder, tell)
    write_termination_message("\n".join(lines))
    if is_open:
        return 0
    return 1


def promote(folder: StageFolder, person: str, reason: str, tell: Tell) -> int:
    """A person's override of the gate. Raises Stop if there is nothing to overrule."""
    _require_finished(folder)
    parts.require("evaluate")
    from runner.parts.evaluate import gates

    for line in gates.promote(folder, person, reason).lines:
        tell(line)
    return 0


def _send(folder: StageFolder, tell: Tell) -> None:
    """Sends the stage's results with the run's page, if the recipe reports to a server, and
    everything to its mirror."""
    if tracker(folder.stage.config) and parts.has("report"):
        with suppress(ImportError):  # a stock image lacks what pages are made of
            from runner.parts.report import page

            page.in_pod(folder, tell)
    pipeline.send(folder, tell)
    mirror.attempt(folder, tell)


def _require_finished(folder: StageFolder) -> None:
    if pipeline.decision_on(folder).action != "keep":
        raise Stop(
            f"The stage `{folder.stage.name}` is not finished, or was made from other settings than this recipe's."
        )


def _child(command: list[str]) -> int:
    """Runs the engine, passes on the cluster's signal to end, and returns its exit code, for a
    signal as shells do.

    The engine does not become the first process of the pod: torchrun handles no signal before its
    rendezvous, and the kernel drops what the first process does not handle. Later signals end
    nothing, because the stage's record and its last upload are completed within the pod's grace."""
    process = subprocess.Popen(command, env=os.environ | {child_process.PARENT: str(os.getpid())})
    for passed_on in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed_on, lambda number, _: process.send_signal(number))
    code = process.wait()
    if code < 0:
        return 128 - code
    return code


def _work(folder: StageFolder, command: list[str]) -> int:
    """Runs the engine as `_child` does. If it has stopped itself, its reason becomes that of the
    pod's end."""
    code = _child(command)
    if code and (reason := read_record(folder.path / STOPPED).get("message")):
        write_termination_message(str(reason))
    return code


def write_termination_message(text: str) -> None:
    """Writes the reason of the pod's end for the cluster, or the last part of a long one."""
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_bytes(text.encode()[-4000:])


def leave_progress(folder: StageFolder) -> None:
    """Writes the final progress of training, once the stage has succeeded, for OpenShift AI's
    Trainer. A hook before the pod's stop would not run, because the container's process ends by
    itself."""
    file = folder.path / PROGRESS
    if file.is_file():
        write_termination_message(file.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    ensure_home()
    parser = argparse.ArgumentParser(prog="python -m runner.parts.jobs.stage")
    parser.add_argument("verb", choices=("run", "gate", "promote"))
    parser.add_argument("file")
    parser.add_argument("--by")
    parser.add_argument("--reason")
    if "--" in arguments:
        split = arguments.index("--")
    else:
        split = len(arguments)
    chosen = parser.parse_args(arguments[:split])
    command = arguments[split + 1 :]
    try:
        plan = read_plan(Path(chosen.file))
        folder = StageFolder(plan, plan.stages[-1])
        if chosen.verb == "run":
            return run(folder, command, say)
        if chosen.verb == "gate":
            return gate(folder, say)
        return promote(folder, chosen.by, chosen.reason, say)
    except Stop as stop:
        print(child_process.stop_line(stop.text), file=sys.stderr, flush=True)
        write_termination_message(stop.text)
        return child_process.exit_status(stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
