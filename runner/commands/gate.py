"""`recipe gate`: what a stage had to prove, and whether it did."""

from __future__ import annotations

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@click.argument("stage")
@set_option
@run_option
def gate(path: str, stage: str, sets: tuple[str, ...], run_dir: str | None) -> int:
    """Read what is recorded for a stage of a pipeline, and say whether its gate is open (exit 0) or closed (exit 1)."""
    from runner.execute import gates, opening, recorded
    from runner.execute.order import stage_of

    recipe, _ = open_recipe(path, sets)
    run = opening.run_of(recipe, run_dir)
    plan = opening.plan_of(recipe, run)
    chosen = stage_of(plan, stage)
    verdicts = recorded.verdicts(plan, run, chosen, look=True)
    for line in gates.table(verdicts):
        say(line)
    open_ = gates.passed(verdicts)
    if not open_ and (promotion := recorded.promotion(plan, run, chosen, look=True)):
        for line in recorded.promotion_lines(promotion):
            say(line)
        open_ = True
    say(f"The gate after `{chosen.name}` is {'open' if open_ else 'closed'}.")
    return 0 if open_ else 1
