"""`recipe evaluate`: measures what a stage has left, and records it."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option
from runner.problem import Stop


@click.command()
@recipe_path
@click.argument("stage")
@set_option
@run_option
@click.option("--checkpoint", metavar="DIR", help="These weights instead of the stage's result; they open no gate.")
def evaluate(path: str, stage: str, sets: tuple[str, ...], run_dir: str | None, checkpoint: str | None) -> None:
    """Measure a stage as its gates ask, and record the result for them."""
    from runner.quiet import hush

    hush()
    from runner.runs import ask, gates
    from runner.runs.run_folder import find
    from runner.runs.stage_folder import StageFolder

    recipe, _ = open_recipe(path, sets)
    run = find(recipe.name, run_dir)
    plan = ask.plan_of(recipe, run)
    folder = StageFolder(plan, plan.stage(stage))
    if checkpoint and not Path(checkpoint).is_dir():
        raise Stop(f"There is no folder `{checkpoint}`.", "A stage's checkpoints lie in its folder `checkpoints/`.")
    with run.lock():
        measured = gates.measure(folder, Path(checkpoint).resolve() if checkpoint else None)
    say(f"{stage}: {measured.checkpoint}")
    for name, value in sorted(measured.metrics.items()):
        say(f"  {name:<40} {value:.6g}")
    for name, reason in sorted(measured.missing.items()):
        say(f"  {name:<40} not measured: {reason}")
