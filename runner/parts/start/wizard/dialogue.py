"""Asking: the questions of `recipe new` and their options, until a recipe follows that has no errors."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from runner.commands.options import say
from runner.parts.start import beginning
from runner.parts.start.answers import Answers
from runner.parts.start.beginning import Draft
from runner.parts.start.wizard.questions import DATA, PLACE, Question
from runner.recipe.overrides import Override
from runner.tools.problem import Problem, Stop

ROWS, WIDTH = 3, 400


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The answers as options of a command, under the names of their fields."""
    for one in reversed((*DATA, *PLACE)):
        add = click.option(one.option, one.name, help=one.help, shell_complete=one.completed)
        command = add(command)
    return command


def terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(name: str, given: Mapping[str, str], sets: list[Override]) -> tuple[Draft, Answers]:
    """The recipe that answers make: those that are given, and where somebody is there the others asked for; else what is proposed.

    Raises Stop where one that is given cannot be, or where one is missing that nobody can propose.
    """
    given, there = dict(given), terminal()
    answers = _through(DATA, name, Answers(), given, there)
    while there and not _looked(name, answers):
        given = {each: said for each, said in given.items() if each not in {one.name for one in DATA}}
        answers = _through(DATA, name, Answers(), given, there)
    while True:
        whole = _through(PLACE, name, answers, given, there)
        try:
            made = beginning.finished(name, whole, sets)
            if made.errors:
                raise Stop(made.errors)
            return made, whole
        except Stop as stop:
            if not there or {"model", "gpu"} <= given.keys():
                raise
            _say(stop)
            given = {each: said for each, said in given.items() if each not in ("model", "gpu")}


def _through(
    questions: tuple[Question, ...], name: str, answers: Answers, given: Mapping[str, str], there: bool
) -> Answers:
    for one in questions:
        said = given.get(one.name)
        if not one.asked(answers):
            if said:
                raise Stop(f"`{one.option}` does not go with what else is said of it.", "Leave it out.", code=2)
        elif said:
            answers = _taken(one, name, answers, said)
        elif there:
            answers = _prompted(one, name, answers)
        elif proposed := one.proposed(answers):
            answers = _taken(one, name, answers, proposed)
        else:
            raise Stop(
                f"`recipe new` without `--from` needs `{one.option}`.",
                "In a terminal it asks for what is missing.",
                code=2,
            )
    return answers


def _prompted(one: Question, name: str, answers: Answers) -> Answers:
    """Asks until the answer can be."""
    one.shown(answers)
    while True:
        said = click.prompt(one.text, default=one.proposed(answers) or None).strip()
        try:
            return _taken(one, name, answers, said)
        except Stop as stop:
            _say(stop)


def _taken(one: Question, name: str, answers: Answers, said: str) -> Answers:
    """Raises Stop where the recipe would have errors with it."""
    taken = one.take(answers, said)
    if taken.data:
        # Sections that are only half said are judged when they are whole.
        whole = (
            taken if one.name in ("results", "namespace", "gpu", "gpus") else replace(taken, where="here", addresses=())
        )
        made = beginning.drafted(name, whole)
        # There is no file yet that a lock could stand beside.
        later = [replace(each, hint=each.hint.replace(f" --recipe {made.target}", "")) for each in made.mended_later]
        if wrong := [*made.errors, *later]:
            raise Stop(wrong)
    return taken


def _looked(name: str, answers: Answers) -> bool:
    """Shows the first rows as the model will see them, and what is to be said of the file. Whether it can be used at all."""
    try:
        made = beginning.drafted(name, answers)
        found = beginning.rows(name, answers, ROWS)
    except Stop as stop:
        _say(stop)
        return False
    if not found and answers.kind != "images":
        say(f"No row of `{answers.data}` says anything that can be learned. Name another file, or other columns.\n")
        return False
    if found:
        say(f"\nThe first rows, as {answers.base} would see them:")
        for seen in found:
            text = seen.text if len(seen.text) <= WIDTH else f"{seen.text[:WIDTH]} …"
            say(f"\n{textwrap.indent(text, '  ')}")
        say()
    for problem in made.judged[1]:
        say(f"{_words(problem)}\n")
    return True


def _words(problem: Problem) -> str:
    """Without its place, which lies in a file that nobody has seen yet."""
    return f"{problem.message}\n{problem.hint}".rstrip()


def _say(stop: Stop) -> None:
    said = "\n\n".join(map(_words, stop.problems)) or stop.text
    click.echo(f"\n{said}\n", err=True)


def command(name: str, answers: Answers, sets: tuple[str, ...]) -> str:
    """What gives the same recipe without a question."""
    words = ["recipe", "new", name]
    for one in (*DATA, *PLACE):
        value = getattr(answers, one.name)
        if one.asked(answers) and value:
            words += [one.option, ",".join(value) if isinstance(value, tuple) else str(value)]
    return shlex.join([*words, *(part for one in sets for part in ("--set", one))])
