"""Options and helpers that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from runner.check.validate import load
from runner.problem import Problem
from runner.recipe import overrides as changing
from runner.recipe.overrides import Override
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


def say(text: str = "") -> None:
    click.echo(text)


def open_recipe(
    path: str,
    sets: tuple[str, ...],
    *,
    environment: bool = False,
    more: list[Override] | None = None,
    look: bool = True,
    aside: bool = False,
) -> tuple[Recipe, list[Override]]:
    """The recipe with `--set` and `more` on top, and below them, where `environment` holds, the environment. Prints
    what changed. look: whether the files that it names are looked at. aside: print on standard error, because a program reads
    the output."""
    wished = os.environ if environment else {}
    recipe, made, notes = load(path, [*changing.from_options(sets), *(more or [])], wished, look)
    print_notes(notes)
    for change in made:
        click.echo(f"{change}", err=aside)
    return recipe, made


def print_notes(problems: Iterable[Problem]) -> None:
    for problem in problems:
        if problem.severity == "note":
            click.echo(f"{problem}\n", err=True)
