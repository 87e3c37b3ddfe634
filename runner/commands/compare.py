"""`recipe compare`: before and after, side by side; for a pipeline its runs, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable

import click

from runner.commands.options import open_recipe, recipe_path, run_option, say, set_option
from runner.problem import Stop
from runner.recipe.recipe import Recipe


@click.command()
@recipe_path
@set_option
@run_option
@click.option("--with", "others", multiple=True, metavar="DIR", help="Another run of the same pipeline. Repeatable.")
@click.option(
    "--question",
    "questions",
    multiple=True,
    help="Ask this instead of the recipe's own questions. Repeatable.",
)
def compare(
    path: str, sets: tuple[str, ...], run_dir: str | None, others: tuple[str, ...], questions: tuple[str, ...]
) -> None:
    """Put the same questions to the original and to the tuned model, and show both answers side by side.

    Of a pipeline, show metrics, gates and promotions of each stage, side by side with those of other runs.
    """
    from runner.quiet import hush

    hush()
    recipe, _ = open_recipe(path, sets)
    if recipe.scenario == "pipeline":
        return _stages(recipe, run_dir, others, questions)
    if others:
        raise Stop(f"`{recipe.name}` has no stages to compare.", "Leave out `--with`.", code=2)
    from runner.execute import runs
    from runner.execute.asking import compare as both
    from runner.execute.asking import models

    folder = runs.latest(recipe.name, run_dir)
    before, after = models(folder, recipe)
    say(f"{folder.kind} in {folder.path}")
    say(f"before: {before.model}")
    say(f"after:  {after.model}")
    rows = both(folder, recipe, questions or [question for _, question in recipe.demo_questions])
    _show(("question", "before", "after"), ((row["question"], row["before"], row["after"]) for row in rows), lines=True)


def _stages(recipe: Recipe, run_dir: str | None, others: tuple[str, ...], questions: tuple[str, ...]) -> None:
    from runner.execute import comparing, opening

    folders = [opening.run_of(recipe, folder) for folder in (run_dir, *others)]
    names = [f"{folder.kind} {number}" for number, folder in enumerate(folders, 1)]
    for name, folder in zip(names, folders, strict=True):
        say(f"{name}: {folder.path}")
    rows = comparing.compare(recipe, folders, questions)
    shown = [
        (row.stage if not index or rows[index - 1].stage != row.stage else "", row.what, *row.texts)
        for index, row in enumerate(rows)
    ]
    _show(("stage", "", *names), shown, lines=False)


def _show(titles: Iterable[str], rows: Iterable[tuple[str, ...]], lines: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*titles, show_lines=lines, expand=True)
    for row in rows:
        if not lines and row[0]:
            table.add_section()
        table.add_row(*(escape(text or "(nothing)") if lines else escape(text) for text in row))
    console = Console()
    Console(width=None if console.is_terminal else 120).print(table)
