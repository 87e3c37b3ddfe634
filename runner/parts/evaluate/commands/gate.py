"""`recipe gate`: what a stage had to prove, and whether it did."""

import click

from runner.commands.options import end, open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@click.argument("stage", required=False)
@set_option
@run_option
def gate(path: str, stage: str | None, sets: tuple[str, ...], run_dir: str | None) -> int:
    """Read what is recorded for a stage, and say whether its gate is open (exit 0) or closed (exit 1).

    STAGE is one of a pipeline's; left out, the last one that has left a model.
    """
    from runner.parts.evaluate import gates
    from runner.run import inference
    from runner.run.run_folder import find
    from runner.run.stage_folder import StageFolder

    recipe, _ = open_recipe(path, sets)
    plan = inference.plan_of(recipe, find(recipe.name, run_dir))
    folder = StageFolder(plan, plan.stage(stage)) if stage else inference.newest(plan)
    is_open, lines = gates.described(folder, look=True)
    for line in lines:
        say(line)
    if is_open:
        end("What comes after it may start.", "compare", path)
    else:
        said = "Train it further, or overrule the gate with your name."
        end(said, "promote", path, folder.stage.name, "--by", "NAME", "--reason", "TEXT")
    return 0 if is_open else 1
