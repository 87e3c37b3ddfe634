"""Options and helpers that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from runner.problem import Problem, Stop
from runner.recipe import changes as changing
from runner.recipe.changes import Change
from runner.recipe.check import load
from runner.recipe.recipe import Recipe

recipe_path = click.argument("path", metavar="RECIPE")
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting for this command, e.g. train.epochs=2. Repeatable.",
)
run_option = click.option(
    "--run", "run_dir", metavar="DIR", help="The run folder to read. Default: the latest run of the recipe."
)
stage_option = click.option("--stage", metavar="STAGE", help="Only this stage of a pipeline.")
from_option = click.option("--from", "first", metavar="STAGE", help="This stage of a pipeline and those after it.")
until_option = click.option("--until", "last", metavar="STAGE", help="The stages of a pipeline up to this one.")


def say(text: str = "") -> None:
    click.echo(text)


def open_recipe(
    path: str, sets: tuple[str, ...], *, environment: bool = False, more: list[Change] | None = None
) -> tuple[Recipe, list[Change]]:
    """The recipe with `--set` and `more` on top, and below them, where `environment` holds, the environment. Prints
    what changed."""
    wished = os.environ if environment else {}
    recipe, made, notes = load(path, [*changing.from_options(sets), *(more or [])], wished)
    print_notes(notes)
    for change in made:
        say(f"{change}")
    return recipe, made


def is_staged(recipe: Recipe, *names: str | None) -> bool:
    """Whether a recipe has several stages; raises Stop (exit 2) where stages are named and it has one."""
    staged = recipe.scenario == "pipeline"
    if any(names) and not staged:
        raise Stop(f"`{recipe.name}` has no stages to choose from.", "Leave out --stage, --from and --until.", code=2)
    return staged


def run_folder_from(out: str | None) -> str | None:
    """The run folder that the person names: `--out`, else OUTPUT_DIR from the environment, which is said aloud."""
    named = os.environ.get("OUTPUT_DIR")
    if not out and named:
        say(f"run folder: {named}  (OUTPUT_DIR={named})")
    return out or named or None


def data_folder_from(below: str = "") -> str | None:
    """The folder for prepared data that DATA_DIR names, or None; said aloud."""
    named = os.environ.get("DATA_DIR")
    if not named:
        return None
    folder = os.path.abspath(os.path.join(named, below)) if below else os.path.abspath(named)
    say(f"prepared data: {folder}  (DATA_DIR={named})")
    return folder


def print_notes(problems: Iterable[Problem]) -> None:
    for problem in problems:
        if problem.severity == "note":
            click.echo(f"{problem}\n", err=True)


@contextmanager
def watch() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows training's progress: a bar on a terminal, a line now and then where output is piped."""
    import sys

    if not sys.stdout.isatty():
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("starting", total=None, loss="")

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "begin":
                bar.update(task, description="training", total=event["steps"], completed=event["step"])
            elif event["event"] == "step":
                bar.update(task, completed=event["step"], loss=f"loss {event['loss']:.3f}")
            elif event["event"] == "evaluation":
                bar.console.print(f"  epoch {event['epoch']:g}: {_evaluation(event)}")

        yield show


def _lines() -> Callable[[dict[str, Any]], None]:
    shown = -1

    def show(event: dict[str, Any]) -> None:
        nonlocal shown
        if event["event"] == "evaluation":
            say(f"  epoch {event['epoch']:g}: {_evaluation(event)}")
        elif event["event"] == "step" and (tenth := event["step"] * 10 // max(1, event["steps"])) > shown:
            shown = tenth
            say(f"  step {event['step']} of {event['steps']}, loss {event['loss']:.3f}")

    return show


def _evaluation(event: dict[str, Any]) -> str:
    loss = event["validation_loss"]
    accuracy = f", accuracy {event['accuracy']:.1%}" if "accuracy" in event else ""
    return f"validation loss {loss:.3f}{accuracy}" if loss is not None else "no validation loss"
