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
    """Measure a stage of a pipeline as its gates ask, and record the result for them."""
    from runner.quiet import hush

    hush()
    from runner.execute import opening, recorded
    from runner.execute.order import stage_of

    recipe, _ = open_recipe(path, sets)
    run = opening.run_of(recipe, run_dir)
    plan = opening.plan_of(recipe, run)
    chosen = stage_of(plan, stage)
    if checkpoint and not Path(checkpoint).is_dir():
        raise Stop(f"There is no folder `{checkpoint}`.", "A stage's checkpoints lie in its folder `checkpoints/`.")
    with run.lock():
        found = recorded.measure(plan, run, chosen, Path(checkpoint).resolve() if checkpoint else None)
    say(f"{chosen.name}: {found['checkpoint']}")
    for name, value in sorted(found["metrics"].items()):
        say(f"  {name:<40} {value:.6g}")
    for name, reason in sorted(found["missing"].items()):
        say(f"  {name:<40} not measured: {reason}")
