"""`recipe compare`: runs, stage by stage, and answers before and after, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from runner import parts
from runner.commands.options import end, open_recipe, recipe_path, run_option, say, set_option, url_option
from runner.recipe.recipe import Recipe
from runner.tools.files import read_json
from runner.tools.problem import Stop
from runner.tools.run_files import ANSWERS

if TYPE_CHECKING:
    from runner.run.run_folder import RunFolder


@click.command()
@recipe_path
@set_option
@run_option
@click.option("--with", "others", multiple=True, metavar="DIR", help="Another run of the same recipe. Repeatable.")
@click.option(
    "--question",
    "questions",
    multiple=True,
    help="Ask this instead of the recipe's own questions. Repeatable.",
)
@url_option
def compare(
    path: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    others: tuple[str, ...],
    questions: tuple[str, ...],
    url: str | None,
) -> None:
    """Put the same questions to the model before and after, and show both answers side by side.

    First of all, for each stage: losses, metrics, gates and promotions, side by side with those of other runs.
    """
    from runner.tools.process import hush

    hush()
    from runner.parts.evaluate import evaluation_report as comparing
    from runner.run import inference
    from runner.run.run_folder import find

    recipe, _ = open_recipe(path, sets)
    if url:
        asked = questions or [question for _, question in recipe.demo_questions]
        if not asked:
            asked = inference.questions_of(recipe, inference.folder_of(recipe, run_dir, None))
        _served(recipe, url, asked)
        end("Both have answered.", "evaluate", path, "--url", url)
        return
    runs = [find(recipe.name, folder) for folder in (run_dir, *others)]
    names = [f"{run.kind} {number}" for number, run in enumerate(runs, 1)]
    for name, run in zip(names, runs, strict=True):
        say(f"{name}: {run.path}")
    # Of several runs each stage's answers stand beside each other; of a single one, before and after.
    rows = comparing.compare(recipe, runs, questions if others else ())
    shown = [
        (row.stage if not index or rows[index - 1].stage != row.stage else "", row.what, *row.texts)
        for index, row in enumerate(rows)
    ]
    _show(("stage", "", *names), shown, lines=False)
    if not others:
        _answers(recipe, runs[0], questions)
    end("So they differ.", "report", *(run.shown for run in runs))


def _answers(recipe: Recipe, run: RunFolder, questions: Sequence[str]) -> None:
    """The answers of a run's model before and after, to these questions or else the demo's."""
    from runner.run import inference

    try:
        folder = inference.newest(inference.plan_of(recipe, run))
    except Stop:
        if questions or recipe.demo_questions:
            raise
        return  # nothing has been asked that could be shown
    if not (asked := questions or inference.questions_of(recipe, folder)):
        return
    before, after = inference.models(recipe, folder)
    say(f"before: {before.model}")
    say(f"after:  {after.model}")
    # What the stage has already answered is not asked again.
    known = {row["question"]: (row["before"], row["after"]) for row in read_json(folder.path / ANSWERS) or []}
    new = [question for question in asked if question not in known]
    if new:
        both = (inference.answers_of(chat, new) for chat in (before, after))
        known |= dict(zip(new, zip(*both, strict=True), strict=True))
    _show_answers((question, *known[question]) for question in asked)


def _served(recipe: Recipe, url: str, questions: Sequence[str]) -> None:
    server = parts.hook("models_at")(url, recipe)
    sides = [server.chat(base) for base in (True, False)]
    for side, chat in zip(("before", "after"), sides, strict=True):
        say(f"{side + ':':<8}{chat.model} at {server.url}")
    before, after = (server.answers(chat, questions) for chat in sides)
    _show_answers(zip(questions, before, after, strict=True))


def _show_answers(rows: Iterable[tuple[str, ...]]) -> None:
    _show(("question", "before", "after"), (tuple(text or "(nothing)" for text in row) for row in rows), lines=True)


def _show(titles: Iterable[str], rows: Iterable[tuple[str, ...]], lines: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*titles, show_lines=lines, expand=True)
    for row in rows:
        if not lines and row[0]:
            table.add_section()
        table.add_row(*map(escape, row))
    console = Console()
    Console(width=None if console.is_terminal else 120).print(table)
