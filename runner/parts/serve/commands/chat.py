"""`recipe chat`: the models of a run, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from runner.commands import options
from runner.commands.options import end, say
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.parts.serve.chat import Sides, Turn

HELP = "/1, /2, … asks a question from the list, /new begins a new conversation, /quit or ^D ends it."


@click.command()
@options.recipe_path
@options.set_option
@options.run_option
@options.stage_option
@click.option("--page", is_flag=True, help="Open a page in the browser instead of the terminal, for a demo.")
@options.port_option(7860, "the page")
def chat(path: str, sets: tuple[str, ...], run_dir: str | None, stage: str | None, page: bool, port: int) -> None:
    """Chat with the original and the trained model at once. Both stay loaded, and their answers appear side by
    side."""
    from runner.parts.serve import chat as chatting
    from runner.run import inference

    recipe, _ = options.open_recipe(path, sets, look=False)
    folder = inference.folder_of(recipe, run_dir, stage)
    say(f"`{folder.stage.name}` of the {folder.run.kind} in {folder.run.shown}; loading …")
    sides = chatting.sides(recipe, folder)
    questions = inference.questions_of(recipe, folder)
    if page:
        title = f"{recipe.name}: before and after training"
        chatting.show_page(sides, title, questions, port, lambda address: say(f"The page: {address}  (^C ends it)"))
        return
    for number, question in enumerate(questions, 1):
        say(f"/{number}  {question}")
    say(f"Type {sides.asked_with}. {HELP}")
    _talk(sides, questions)
    end("The conversation is over. It was not saved.", "compare", path, *(("--run", run_dir) if run_dir else ()))


def _talk(sides: Sides, questions: list[str]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.markup import escape
    from rich.table import Table

    terminal = Console().is_terminal
    console = Console(width=None if terminal else 120)
    turns: list[Turn] = []

    def shown(said: tuple[str, ...], nothing: str = "…") -> Table:
        table = Table(expand=True)
        for name in sides.names:
            table.add_column(name, ratio=1)
        table.add_row(*(escape(text) or nothing for text in said))
        return table

    for line in _lines():
        if line == "/new":
            turns.clear()
            continue
        question = questions[int(line[1:]) - 1] if line[1:].isdigit() and 0 < int(line[1:]) <= len(questions) else line
        if question is line and line.startswith("/") and line[1:].isalnum():
            say(f"`{line}` is not in the list. {HELP}")
            continue
        said: tuple[str, ...] = ("",) * len(sides.names)
        try:
            with Live(shown(said), console=console, refresh_per_second=12) as live:
                for said in sides.ask(question, turns):
                    live.update(shown(said))
                live.update(shown(said, "(nothing)"))
        except Stop as stop:
            say(stop.text)
        except KeyboardInterrupt:
            say("(interrupted)")
        else:
            turns.append((question, said))
            if not terminal:
                say()


def _lines() -> Iterator[str]:
    """The lines that a person types, or a program sends."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives `input` its editing and history
    while True:
        try:
            line = (input("\n> ") if sys.stdin.isatty() else next(sys.stdin)).strip()
        except (EOFError, StopIteration):
            return
        if line == "/quit":
            return
        if line:
            yield line
