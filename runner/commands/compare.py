"""`recipe compare`: before and after, side by side."""

from __future__ import annotations

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option


@click.command()
@recipe_path
@set_option
@run_option
@click.option(
    "--question",
    "questions",
    multiple=True,
    help="Ask this instead of the recipe's own questions. Repeatable.",
)
def compare(path: str, sets: tuple[str, ...], run_dir: str | None, questions: tuple[str, ...]) -> None:
    """Put the same questions to the original and to the tuned model, and show both answers side by side."""
    from runner.quiet import hush

    hush()
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from runner.execute import runs
    from runner.execute.asking import compare as both
    from runner.execute.asking import models

    recipe, _ = open_recipe(path, sets)
    folder = runs.latest(recipe.name, run_dir)
    before, after = models(folder, recipe)
    say(f"{folder.kind} in {folder.path}")
    say(f"before: {before.model}")
    say(f"after:  {after.model}")
    table = Table("question", "before", "after", show_lines=True, expand=True)
    for row in both(folder, recipe, questions or [question for _, question in recipe.demo_questions]):
        table.add_row(*(escape(row[part] or "(nothing)") for part in ("question", "before", "after")))
    console = Console()
    Console(width=None if console.is_terminal else 120).print(table)
