"""`recipe ask`: one question to a trained model."""

from __future__ import annotations

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@click.argument("question")
@set_option
@run_option
@click.option("--base", is_flag=True, help="Ask the original model: the one that the stage began with.")
@click.option("--stage", metavar="STAGE", help="Ask what this stage left. Default: the last one that has left a model.")
def ask(path: str, question: str, sets: tuple[str, ...], run_dir: str | None, base: bool, stage: str | None) -> None:
    """Put a QUESTION to the model that a recipe trained, in the words it was trained with."""
    from runner.quiet import hush

    hush()
    from runner.runs import ask as asking
    from runner.runs.run_folder import find
    from runner.runs.stage_folder import StageFolder

    recipe, _ = open_recipe(path, sets)
    plan = asking.plan_of(recipe, find(recipe.name, run_dir))
    folder = StageFolder(plan, plan.stage(stage)) if stage else asking.newest(plan)
    before, after = asking.models(recipe, folder)
    chat = before if base else after
    who = f"the model that `{folder.stage.name}` {'began with' if base else 'left'}"
    say(f"{who}, {chat.model}, of the {folder.run.kind} in {folder.run.path}")
    say()
    say(asking.answers_of(chat, [question])[0])
