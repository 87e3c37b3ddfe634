"""`recipe evaluate`: measures what a stage has left, and records it."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option
from runner.problem import Stop


@click.command()
@recipe_path
@click.argument("stage", required=False)
@set_option
@run_option
@click.option(
    "--checkpoint", metavar="DIR", help="This model instead of what the stage has left; it opens and closes no gate."
)
@click.option("--format", "form", type=click.Choice(("text", "json", "markdown")), default="text", show_default=True)
def evaluate(
    path: str, stage: str | None, sets: tuple[str, ...], run_dir: str | None, checkpoint: str | None, form: str
) -> int:
    """Measure the model that a run has left, and the one that it began with; exit 1 where a gate is closed.

    STAGE is one of a pipeline's; left out, the last one that has left a model.
    """
    from runner.quiet import hush

    hush()
    from runner.runs import ask, gates, measured
    from runner.runs.run_folder import find
    from runner.runs.stage_folder import StageFolder

    recipe, _ = open_recipe(path, sets, aside=form != "text")
    run = find(recipe.name, run_dir)
    plan = ask.plan_of(recipe, run)
    folder = StageFolder(plan, plan.stage(stage)) if stage else ask.newest(plan)
    if checkpoint and not Path(checkpoint).exists():
        raise Stop(f"There is no folder `{checkpoint}`.", "A stage's checkpoints lie in its folder `checkpoints/`.")
    with run.lock():
        found = gates.measure(folder, Path(checkpoint).resolve() if checkpoint else None)
    for line in measured.shown(folder, found, form):
        say(line)
    return 0 if checkpoint or not folder.stage.gates or gates.opened(folder)[0] else 1
