"""What is on record for a stage: its evaluation, its verdicts, and a person's word against them."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.execute import gates
from runner.execute.launch import environment, follow
from runner.execute.runs import RunFolder
from runner.execute.stages import StageFolder, weights_of
from runner.files import read_json, sha256, write_json
from runner.names import content_hash
from runner.plan import Plan, Stage
from runner.problem import Stop

EVALUATION_FILE = "evaluation.json"
PROMOTION_FILE = "promotion.json"


def subject(plan: Plan, run: RunFolder, stage: Stage, look: bool = False) -> gates.Subject | None:
    """What an evaluation of this stage must be about; None where the stage is not finished.

    look: whether the weights themselves are hashed, which takes minutes where nobody has just done so; else what is on
    record of them counts.
    """
    folder = StageFolder(plan, stage)
    if not folder.finished or not folder.weights or not run.state.get("id"):
        return None
    return gates.Subject(
        run=run.state["id"],
        stage=stage.name,
        inputs=content_hash(folder.state.get("inputs"), 32),
        weights=weights_of(folder.model) if look else folder.weights,
        settings=_settings(stage),
    )


def _settings(stage: Stage) -> str:
    """How the stage is measured, the sample task's content included; where its files lie changes no measurement."""
    chosen = {key: value for key, value in stage.evaluation.items() if key not in ("text_blocks", "base")}
    task = stage.evaluation.get("sample_task")
    content = sha256(Path(task)) if task and Path(task).is_file() else None
    return content_hash(chosen | {"sample_task": content}, 32)


def record(plan: Plan, stage: Stage) -> Any:
    return read_json(StageFolder(plan, stage).path / EVALUATION_FILE)


def verdicts(plan: Plan, run: RunFolder, stage: Stage, look: bool = False) -> list[gates.Verdict]:
    """The verdicts on what is recorded now; with nothing recorded, every one of them is a no. look: as for `subject`."""
    return gates.judge(stage.gates, record(plan, stage), subject(plan, run, stage, look))


def is_current(plan: Plan, run: RunFolder, stage: Stage) -> bool:
    """Whether what is recorded is about what lies in the run folder."""
    found, about = record(plan, stage), subject(plan, run, stage)
    return (
        about is not None
        and isinstance(found, Mapping)
        and isinstance(found.get("metrics"), Mapping)
        and all(found.get(part) == getattr(about, part) for part in ("run", "stage", "inputs", "weights", "settings"))
    )


def measure(plan: Plan, run: RunFolder, stage: Stage, checkpoint: Path | None = None) -> dict[str, Any]:
    """Evaluates a stage in a process of its own and records the result; another checkpoint than the stage's result is
    recorded as what it is, and opens no gate.

    Raises Stop where the stage has no result, or measuring fails.
    """
    folder, about = StageFolder(plan, stage), subject(plan, run, stage)
    if about is None and checkpoint is None:
        raise Stop(f"The stage `{stage.name}` has no finished result to measure.", "Run it first.")
    if not stage.evaluation:
        raise Stop(f"The stage `{stage.name}` has no gates, so nothing is measured after it.")
    model = checkpoint or folder.model
    task = dict(stage.evaluation) | {
        "model": str(model),
        "stage_dir": str(folder.path),
        "checkpoint_step": _step(checkpoint),
        "out": str(folder.path / ".measured.json"),
        "before": _metrics_before(plan, run, stage),
    }
    file = folder.path / "evaluation-task.json"
    write_json(file, task)
    Path(task["out"]).unlink(missing_ok=True)
    command = [sys.executable, "-m", "runner.execute.evaluate", str(file)]
    env = environment(stage, plan.place_of(stage))
    follow(command, env, folder.path, lambda event: None, f"Measuring `{stage.name}`")
    measured = read_json(Path(task["out"]))
    if not isinstance(measured, dict):
        raise Stop(f"Measuring `{stage.name}` ended without a result.", f"The whole log: {folder.path}/train.log")
    result = {
        "run": run.state.get("id"),
        "stage": stage.name,
        "inputs": about.inputs if about else "",
        "weights": weights_of(model),
        "settings": _settings(stage),
        "checkpoint": str(model),
        **measured,
    }
    write_json(folder.path / EVALUATION_FILE, result)
    Path(task["out"]).unlink(missing_ok=True)
    return result


def _step(checkpoint: Path | None) -> int | None:
    number = checkpoint.name.removeprefix("checkpoint-") if checkpoint else ""
    return int(number) if number.isdigit() else None


def _metrics_before(plan: Plan, run: RunFolder, stage: Stage) -> dict[str, Any] | None:
    """What the gated stage before this one has measured, where that still holds."""
    name = stage.evaluation.get("before")
    before = next((other for other in plan.stages if other.name == name), None)
    if before is None or not is_current(plan, run, before):
        return None
    return dict(record(plan, before)["metrics"])


def promote(plan: Plan, run: RunFolder, stage: Stage, by: str, reason: str) -> dict[str, Any]:
    """Records a person's word that a stage goes on in spite of its gate.

    Raises Stop where there is nothing to overrule: no finished result, or a gate that is open.
    """
    about, found = subject(plan, run, stage, look=True), verdicts(plan, run, stage, look=True)
    if not stage.gates:
        raise Stop(f"The stage `{stage.name}` has no gate to overrule.")
    if about is None or about.weights != StageFolder(plan, stage).weights:
        raise Stop(f"The stage `{stage.name}` has no finished result that could be promoted.", "Run it first.")
    if gates.passed(found):
        raise Stop(f"The gate after `{stage.name}` is open; there is nothing to overrule.")
    promotion = {
        "by": by,
        "reason": reason,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "missed": [verdict.as_json() for verdict in found if not verdict.holds],
        "run": about.run,
        "stage": about.stage,
        "inputs": about.inputs,
        "weights": about.weights,
        "gates": [str(gate) for gate in stage.gates],
    }
    write_json(StageFolder(plan, stage).path / PROMOTION_FILE, promotion)
    return promotion


def promotion(plan: Plan, run: RunFolder, stage: Stage, look: bool = False) -> dict[str, Any] | None:
    """The promotion on record, where it is about what lies there now, the gates are those that it overruled, and it says
    who, when, why and against which figures. look: as for `subject`."""
    found, about = read_json(StageFolder(plan, stage).path / PROMOTION_FILE), subject(plan, run, stage, look)
    if not isinstance(found, dict) or about is None:
        return None
    same = all(found.get(part) == getattr(about, part) for part in ("run", "stage", "inputs", "weights"))
    named = all(isinstance(found.get(part), str) and found[part].strip() for part in ("by", "reason", "at"))
    whole = same and named and _tells_what_was_missed(found.get("missed"))
    return found if whole and found.get("gates") == [str(gate) for gate in stage.gates] else None


def _tells_what_was_missed(missed: Any) -> bool:
    return (
        isinstance(missed, list)
        and bool(missed)
        and all(isinstance(entry, dict) and {"metric", "wanted", "got"} <= entry.keys() for entry in missed)
    )


def promotion_lines(found: Mapping[str, Any]) -> list[str]:
    """Who overruled the gate, when, why, and what it had missed."""
    missed = [f"{entry['metric']} {entry['got']} (wanted {entry['wanted']})" for entry in found["missed"]]
    return [
        f"PROMOTED against its gate by {found['by']} at {found['at']}: {found['reason']}",
        f"  it had missed: {'; '.join(missed)}",
    ]


def promotions(plan: Plan, run: RunFolder) -> list[str]:
    """Lines about every promotion in force; they belong in every report."""
    lines = []
    for stage in plan.stages:
        if stage.gates and (found := promotion(plan, run, stage)):
            lines += [f"{stage.name}: {line}" if not line.startswith(" ") else line for line in promotion_lines(found)]
    return lines
