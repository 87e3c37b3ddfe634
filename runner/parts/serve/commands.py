"""`recipe chat` and `recipe serve`: a run's models side by side, or behind OpenAI's API; and
`recipe plan --serve`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.commands import options
from runner.commands.options import command, end, print_notes, say, table
from runner.parts.openshift.client import connect
from runner.parts.openshift.commands import confirm
from runner.parts.openshift.jobs import Confirm, Owner
from runner.parts.serve import chat as chatting
from runner.parts.serve import cluster as on_the_cluster
from runner.parts.serve import introduction, kserve, openai_api, serving
from runner.parts.serve.introduction import OfferedQuestion
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.scenarios import planned
from runner.tools.child_process import watch_parent
from runner.tools.problem import Stop, errors_of, listed
from runner.tools.text import json_text, macros, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@command
def serve(
    path: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    stage: str | None,
    port: int,
    engine: str | None,
    on_cluster: bool,
    stops: bool,
    dry_run: bool,
    yes: bool,
    take_over: tuple[str, ...],
) -> None:
    """Serve the original and the trained model with OpenAI's API until ^C. Questions are formatted
    as in training.

    A server on the cluster records who sent it. You are asked before it replaces or removes another
    person's server.
    """
    if dry_run and (stops or not on_cluster):
        raise Stop("`--dry-run` needs `--cluster`, without `--stop`.", "Leave it out.", code=2)
    if on_cluster or stops:
        return _on_cluster(path, sets, stops, dry_run, port, confirm(yes, take_over))
    recipe, _ = options.open_recipe(path, sets, look=False)
    folder = inference.folder_of(recipe, run_dir, stage)
    served_models = {recipe.name: inference.models(recipe, folder), **openai_api.others(recipe)}
    chosen = engine or openai_api.engine_for(served_models)
    say(
        f"`{folder.stage.name}` of the {folder.run.kind} in {folder.run.shown}, served by {chosen}; loading …"
    )
    began = time.monotonic()

    def ready(url: str, models: Sequence[str], log: Path) -> None:
        say(f"Ready after {time.monotonic() - began:.0f} s: {url}/v1  (^C ends it)")
        say(f"models: {', '.join(models)}")
        if len(models) == 1:
            say(
                "vLLM serves one complete model; `--engine transformers` also serves the original one."
            )
        say(f"log: {log}")
        end(f"{recipe.name} answers at {url}/v1 until ^C.", "ask", path, "QUESTION", "--url", url)

    openai_api.serve(chosen, served_models, folder.path, port, ready)


def _on_cluster(
    path: str, sets: tuple[str, ...], stops: bool, dry_run: bool, port: int, allowed: Confirm
) -> None:
    recipe = options.with_section(
        options.open_recipe(path, sets, look=False)[0], "serve", "--cluster"
    )
    if not stops:
        plan, server = kserve.served(recipe)
        problems = serving.problems(recipe, server)
        print_notes(problems)
        wrong = errors_of(problems)
        if wrong:
            raise Stop(wrong)
    cluster = connect()
    owner = Owner.here(path, cluster.person())
    if stops:
        return on_the_cluster.stop(cluster, planned(recipe, kserve.NAME), say, owner, allowed)
    return on_the_cluster.start(
        cluster, kserve.sharing(recipe, plan), server, say, owner, allowed, port, dry_run
    )


def plan_server(recipe: Recipe, json_wanted: bool) -> int:
    """Prints what a server of the recipe's model needs: the content of each GPU, and its room for
    requests; 1 if it does not fit."""
    _, server = kserve.served(recipe)
    needs = server.forecast
    if needs is None:
        raise Stop(
            f"The size of `{recipe.model.base}` is unknown here, so the memory of a server is unknown too.",
            "`recipe models` lists the known models, and adds others.",
        )
    problems = serving.problems(recipe, server)
    if json_wanted:
        facts = {name: value for name, value in vars(server).items() if name != "forecast"}
        figures = {}
        for name, value in vars(needs).items():
            if name not in ("model", "gpu"):
                figures[name] = value
        say(json_text({"server": facts, "forecast": figures}))
    else:
        template = macros(Path(__file__).with_name("forecast.jinja"), gib=units.gib)
        say(str(template.above(server, needs)))
        fewer = [f"{units.gib(size)} in {form}" for form, size in needs.compressed.items() if size]
        table([line.split(" | ") for line in str(template.rows(needs, fewer)).splitlines()])
        say()
        say(
            str(
                template.below(server, listed(adapter.name for adapter in server.source.adapters))
            ).rstrip()
        )
        for problem in problems:
            say(f"\n{problem}")
    return int(bool(errors_of(problems)))


ENDINGS = ("exit", "quit", "bye")
HELP = f"/1, /2, … asks a question from the list, /new begins a new conversation; {', '.join(ENDINGS)} or ^D ends the chat."


@command
def chat(
    path: str, sets: tuple[str, ...], run_dir: str | None, stage: str | None, page: bool, port: int
) -> None:
    """Chat with the original and the trained model at once. Both stay loaded, and their answers
    appear side by side."""
    watch_parent()  # of the page of `recipe edit`, which may be killed
    recipe, _ = options.open_recipe(path, sets, look=False)
    folder = inference.folder_of(recipe, run_dir, stage)
    say(f"`{folder.stage.name}` of the {folder.run.kind} in {folder.run.shown}; loading …")
    sides = chatting.sides(recipe, folder)
    model_lines = introduction.about_models(folder)
    questions = introduction.questions(recipe, folder)
    if page:
        title = f"{recipe.name}: before and after training"

        def ready(address: str) -> None:
            say(f"The page: {address}  (^C ends it)")

        chatting.show_page(sides, title, model_lines, questions, port, ready)
        return
    say(f"Type {sides.asked_with}. {HELP}")
    for line in model_lines:
        say(line)
    for number, question in enumerate(questions, 1):
        if question.origin_words:
            origin = f"  ({question.origin_words})"
        else:
            origin = ""
        say(f"/{number}  {question.text}{origin}")
    _talk(sides, questions)
    end("The conversation is over. It was not saved.", "compare", path)


def _talk(sides: chatting.Sides, questions: Sequence[OfferedQuestion]) -> None:
    from rich.console import Console

    terminal = Console().is_terminal
    console = Console(width=None if terminal else 120)
    turns: list[chatting.Turn] = []
    expected = introduction.expected_answers(questions)
    for line in _lines():
        if line == "/new":
            turns.clear()
            continue
        question = _question(line, questions)
        if question is None:
            say(f"`{line}` is not in the list. {HELP}")
            continue
        try:
            answers = _show_answers(console, sides, question, turns, expected.get(question))
        except Stop as stop:
            say(stop.text)
        except KeyboardInterrupt:
            say("(interrupted)")
        else:
            turns.append((question, answers))
            if not terminal:
                say()


def _question(line: str, questions: Sequence[OfferedQuestion]) -> str | None:
    """The question that a line asks, itself or by its number in the list; None for a number that is
    not there."""
    number = line.removeprefix("/")
    if number == line or not number.isalnum():
        return line
    if number.isdecimal() and 0 < int(number) <= len(questions):
        return questions[int(number) - 1].text
    return None


def _show_answers(
    console: Console,
    sides: chatting.Sides,
    question: str,
    turns: Sequence[chatting.Turn],
    expected: str | None,
) -> tuple[str, ...]:
    """Shows the answers while they are written, and returns them. expected: that of the row with
    this question; None for none."""
    from rich.live import Live

    answers: tuple[str, ...] = ("",) * len(sides.names)
    unfinished = _answers_table(sides, chatting.unfinished(answers), expected)
    with Live(unfinished, console=console, refresh_per_second=12) as live:
        for answers in sides.ask(question, turns):
            live.update(_answers_table(sides, chatting.unfinished(answers), expected))
        live.update(_answers_table(sides, answers, expected))
    return answers


def _answers_table(sides: chatting.Sides, answers: Sequence[str], expected: str | None) -> Table:
    from rich.table import Table
    from rich.text import Text

    columns = dict(zip(sides.names, answers, strict=True))
    if expected is not None:
        columns[chatting.YOUR_FILE] = expected
    table = Table(expand=True)
    for name in columns:
        table.add_column(name, ratio=1)
    table.add_row(*(Text(printable(text) or "(nothing)") for text in columns.values()))
    return table


def _lines() -> Iterator[str]:
    """The lines that a person types, without empty ones, until one ends the chat."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401 - gives `input` its editing and history
    while True:
        try:
            line = (input("\n> ") if sys.stdin.isatty() else next(sys.stdin)).strip()
        except (EOFError, StopIteration):
            return
        if line.removeprefix("/").casefold() in ENDINGS:
            return
        if line:
            yield line
