"""`recipe ask`: one question to a trained model."""

from __future__ import annotations

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@click.argument("question")
@set_option
@run_option
@click.option("--base", is_flag=True, help="Ask the original model instead of the tuned one.")
def ask(path: str, question: str, sets: tuple[str, ...], run_dir: str | None, base: bool) -> None:
    """Put a QUESTION to the model that a recipe trained, in the words it was trained with."""
    from runner.quiet import hush

    hush()
    from runner.execute import runs
    from runner.execute.asking import answer, models

    recipe, _ = open_recipe(path, sets)
    folder = runs.latest(recipe.name, run_dir)
    before, after = models(folder, recipe)
    chat = before if base else after
    say(f"{'original' if base else 'tuned'} model {chat.model}, of the {folder.kind} in {folder.path}")
    say()
    say(answer(chat, question))
