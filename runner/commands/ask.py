"""`recipe ask`: one question to a trained model."""

from __future__ import annotations

import click

from runner.commands.options import is_staged, open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@click.argument("question")
@set_option
@run_option
@click.option("--base", is_flag=True, help="Ask the original model, or the one that the stage began with.")
@click.option(
    "--stage", metavar="STAGE", help="Ask what this stage of a pipeline left. Default: the newest finished one."
)
def ask(path: str, question: str, sets: tuple[str, ...], run_dir: str | None, base: bool, stage: str | None) -> None:
    """Put a QUESTION to the model that a recipe trained, in the words it was trained with."""
    from runner.quiet import hush

    hush()
    from runner.execute import opening, runs, stage_asking
    from runner.execute.asking import answer, models
    from runner.execute.order import stage_of

    recipe, _ = open_recipe(path, sets)
    if is_staged(recipe, stage):
        folder = opening.run_of(recipe, run_dir)
        plan = opening.plan_of(recipe, folder)
        chosen = stage_of(plan, stage) if stage else stage_asking.newest(plan)
        before, after = stage_asking.chats(recipe, plan, folder, chosen)
        who = f"the model that `{chosen.name}` {'began with' if base else 'left'},"
    else:
        folder = runs.latest(recipe.name, run_dir)
        before, after = models(folder, recipe)
        who = f"{'original' if base else 'tuned'} model"
    chat = before if base else after
    say(f"{who} {chat.model}, of the {folder.kind} in {folder.path}")
    say()
    say(answer(chat, question))
