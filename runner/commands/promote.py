"""`recipe promote`: a person's word against a gate."""

from __future__ import annotations

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option
from runner.problem import Stop


@click.command()
@recipe_path
@click.argument("stage")
@set_option
@run_option
@click.option("--by", required=True, metavar="NAME", help="Who takes the responsibility.")
@click.option("--reason", required=True, metavar="TEXT", help="Why the gate is overruled.")
@click.option("--cluster", "on_cluster", is_flag=True, help="The run on the cluster of your kubeconfig.")
def promote(
    path: str, stage: str, sets: tuple[str, ...], run_dir: str | None, by: str, reason: str, on_cluster: bool
) -> None:
    """Let a stage of a pipeline pass in spite of its closed gate; who, when, why and what it missed are kept."""
    from runner.execute import opening, recorded
    from runner.execute.order import stage_of

    if not by.strip() or not reason.strip():
        raise Stop("A promotion needs a name and a reason.", "--by NAME --reason TEXT", code=2)
    if on_cluster:
        from runner.commands import cluster_options as shared
        from runner.execute.cluster import promoting
        from runner.execute.cluster.connect import connect

        plan = shared.open_plan(path, sets)
        promoting.promote(connect(), plan, stage_of(plan, stage), by.strip(), reason.strip(), say)
        return
    recipe, _ = open_recipe(path, sets)
    run = opening.run_of(recipe, run_dir)
    plan = opening.plan_of(recipe, run)
    chosen = stage_of(plan, stage)
    with run.lock():
        promotion = recorded.promote(plan, run, chosen, by.strip(), reason.strip())
    for line in recorded.promotion_lines(promotion):
        say(line)
