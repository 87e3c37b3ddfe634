"""`recipe promote`: a person's word against a gate."""

import click

from runner import parts
from runner.commands.options import end, open_recipe, recipe_path, run_option, say, set_option
from runner.tools.problem import Stop


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
    """Let a stage pass in spite of its closed gate; who, when, why and what it missed are kept."""
    if not by.strip() or not reason.strip():
        raise Stop("A promotion needs a name and a reason.", "--by NAME --reason TEXT", code=2)
    if on_cluster and run_dir:
        raise Stop(
            "`--run` names a run folder of this machine, and `--cluster` the run on the cluster.",
            "Leave out one of the two.",
            code=2,
        )
    if on_cluster:
        parts.hook("promote_on_cluster")(path, sets, stage, by.strip(), reason.strip(), say)
        end(f"`{stage}` passes, on record.", "status", path)
        return
    recipe, _ = open_recipe(path, sets)
    from runner.parts.evaluate import gates
    from runner.run import inference
    from runner.run.run_folder import find
    from runner.run.stage_folder import StageFolder

    run = find(recipe.name, run_dir)
    plan = inference.plan_of(recipe, run)
    with run.lock():
        override = gates.promote(StageFolder(plan, plan.stage(stage)), by.strip(), reason.strip())
    for line in override.lines:
        say(line)
    end(f"`{stage}` passes, on record.", "run" if run.kind == "run" else "rehearse", path)
