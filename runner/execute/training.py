"""Training on this machine: a plan in a run folder, from prepared data to verified results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from runner.execute.launch import Progress, launch
from runner.execute.runs import RunFolder
from runner.execute.tokenised import forget_older
from runner.files import read_json, write_json
from runner.plan import Place, Plan
from runner.problem import Stop

Tell = Callable[[str], None]
Watch = Callable[[], AbstractContextManager[Progress]]


def place_for(run: RunFolder, accelerator: bool, data_dir: str | None = None) -> Place:
    """A run folder as a Place."""
    return Place(
        config_dir=str(run.path / "config"),
        data_dir=data_dir or str(run.path / "data"),
        run_dir=str(run.path),
        scratch_dir=str(run.path / "scratch"),
        accelerator=accelerator,
    )


def train(plan: Plan, run: RunFolder, tell: Tell, watch: Watch) -> dict[str, Any]:
    """Trains a plan of one stage whose data is prepared; returns its summary.

    Raises Stop where training fails, or ends without its results.
    """
    (stage,) = plan.stages
    processes = stage.machines.world_size
    tell(
        f"Training with {stage.engine}, {processes} process{'es' if processes > 1 else ''}; log in {run.path}/train.log"
    )
    if stage.engine == "axolotl":
        forget_older(stage.config)
    try:
        with watch() as progress:
            launch(stage, plan.place, progress)
    except Stop:
        run.mark("stopped")
        raise
    return finish(run, plan.fingerprint)


def finish(run: RunFolder, fingerprint: str) -> dict[str, Any]:
    """Marks a run as finished whose training has ended; returns its summary, with what the run folder knows beside it.

    Raises Stop where the results are not all there, or are those of another recipe.
    """
    summary = read_json(run.path / "training_summary.json")
    if summary is None or summary["fingerprint"] != fingerprint or not run.weights:
        run.mark("stopped")
        log = next(iter(sorted(run.path.glob("train*.log"))), run.path / "train.log")
        raise Stop("Training ended without an error and without its results.", f"The whole log: {log}")
    state = run.state
    known = {"changes": state.get("changes", []), "substitutions": state.get("substitutions", [])}
    write_json(run.path / "training_summary.json", summary | {"kind": run.kind} | known)
    run.mark("finished")
    return summary


def results(run: RunFolder, summary: dict[str, Any]) -> list[str]:
    """What a person wants to know at the end."""
    first, best = summary["first_validation_loss"], summary["best_validation_loss"]
    share = summary["trainable_parameters"] / summary["total_parameters"]
    lines = [
        f"trained {summary['trainable_parameters']:,} of {summary['total_parameters']:,} parameters ({share:.2%}), "
        f"{summary['steps']} steps in {summary['training_seconds']:.0f} s",
        f"effective batch {summary['effective_batch_size']}, learning rate {summary['learning_rate']:g}",
    ]
    if first:
        lines.append(f"validation loss {first:.3f} → {best:.3f}, {1 - best / first:.1%} better")
    if summary.get("best_accuracy") is not None:
        tested = f", {summary['test_accuracy']:.1%} of the test images" if summary["test_accuracy"] is not None else ""
        lines.append(
            f"accuracy {summary['best_accuracy']:.1%} of the validation images, in epoch {summary['best_epoch']:g}{tested}"
        )
    rows = read_json(run.path / "demo_outputs" / "answers.json") or []
    if rows and run.kind == "rehearsal":
        lines += ["", "A tiny model's words mean nothing; they show that asking works, before and after:"]
    for row in rows:
        lines += [
            "",
            f"  {row['question']}",
            f"    before: {_line(row['before'])}",
            f"    after:  {_line(row['after'])}",
        ]
    shown = run.path.relative_to(Path.cwd()) if run.path.is_relative_to(Path.cwd()) else run.path
    return [*lines, "", f"Everything is in {shown}/"]


def _line(text: str, width: int = 100) -> str:
    flat = " ".join(text.split()) or "(nothing)"
    return flat if len(flat) <= width else f"{flat[: width - 3]}..."
