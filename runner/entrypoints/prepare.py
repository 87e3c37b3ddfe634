"""`python -m runner.entrypoints.prepare FILE`: a stage that trains nothing, in a process without a
GPU.

FILE is the stage's config (see `runner.scenarios.shared.common.work`). On a claim, free space is
checked before each write, and nothing is done if everything is there already.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from runner import parts, scenarios
from runner.data.prepared import require_room
from runner.parts.contract import Work
from runner.scenarios.preparing import fetch_model, require_columns, write_rows
from runner.scenarios.shared.common import FETCHING
from runner.tools import child_process
from runner.tools.files import read_json, write_json
from runner.tools.problem import Stop, Tell
from runner.tools.process import ensure_home, helping_pod, hush
from runner.tools.run_files import STOPPED


def carry_out(work: Work, tell: Tell) -> None:
    """Does the work of a stage's config: `rows`, `model` (only the base model), or a work of its
    scenario. Raises Stop if there is too little space, model or data are not available, or the
    wrong tokens would be trained."""
    if work["work"] == FETCHING:
        return fetch_model(work["model"], tell)
    for part in work.values():
        if isinstance(part, Mapping) and ("sets" in part or "hub" in part):
            require_columns(part)
    if work["work"] == "rows":
        if work["model"]:
            fetch_model(work["model"], tell)
        write_rows(work, tell)
    else:
        scenarios.work(work["work"])(work, tell)
    require_room(Path(work["out"]))
    proofs = work.get("proofs")
    if proofs and not helping_pod() and parts.has("proof"):
        from runner.parts.proof import hooks

        hooks.prove(proofs, tell)


def main(file: str) -> int:
    ensure_home()
    child_process.watch_parent()
    hush()
    work = read_json(Path(file))
    if work is None:
        print(f"{file} is missing or broken.", file=sys.stderr)
        return 1
    try:
        carry_out(work, lambda line: print(line, flush=True))
    except Stop as stop:
        print(child_process.stop_line(stop.text), file=sys.stderr, flush=True)
        write_json(
            Path(work["run_dir"]) / STOPPED, {"message": stop.text}
        )  # the parent reads it, as in training
        return child_process.exit_status(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
