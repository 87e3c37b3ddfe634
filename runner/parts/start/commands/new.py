"""`recipe new`: a copy to start your own from, or a recipe from a few answers: its questions, each an option too."""

import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from runner import catalog
from runner.check import by_schema
from runner.check.validate import valid
from runner.commands.options import (
    Completing,
    card_named,
    complete_gpu,
    complete_model,
    complete_recipe,
    complete_starter,
    end,
    say,
    set_option,
    short,
    table,
)
from runner.data.conversation_formats import COLUMNS
from runner.parts.start import drafting
from runner.parts.start.commands.models import licence, size
from runner.parts.start.drafting import KINDS, PLACES, Answers, Draft
from runner.recipe import overrides as changing
from runner.recipe.overrides import Override
from runner.recipe.reading import read
from runner.tools.names import JOB_NAME, did_you_mean, listed
from runner.tools.problem import Problem, Stop

# How many of the first rows are shown, and how many letters of each.
ROWS, WIDTH = 3, 400


@dataclass(frozen=True)
class Question:
    """name: the field of Answers that it is about. value: what that becomes with what was said; raises Stop where that
    cannot be. proposed: what Enter says, empty where nobody knows. asked: whether it is one at all; shown: said
    before."""

    name: str
    text: str
    help: str
    value: Callable[[Answers, str], Any] = lambda answers, said: said
    proposed: Callable[[Answers], str] = lambda answers: ""
    asked: Callable[[Answers], bool] = lambda answers: True
    shown: Callable[[Answers], None] = lambda answers: None
    completed: Completing | None = None

    @property
    def option(self) -> str:
        """Which answers it too."""
        return "--what" if self.name == "kind" else f"--{self.name}"


def _one_of(known: Mapping[str, Any], said: str, what: str) -> str:
    if said in known:
        return said
    raise Stop(f"`{said}` is no {what}.", f"{did_you_mean(said, known)}It can be {listed(known, 'or')}.")


def _count(said: str, option: str, most: int) -> int:
    if said.isdecimal() and 1 <= int(said) <= most:
        return int(said)
    raise Stop(f"`{said}` is no count.", f"Write a whole number from 1 to {most:,}, for example `{option} 1`.")


def _file(answers: Answers, said: str) -> str:
    found = replace(answers, data=said)
    if answers.kind == "conversations" and not found.form:
        forms = "; ".join(f"{listed(columns)} ({form})" for form, columns in COLUMNS.items())
        raise Stop(
            f"The columns of `{said}` are {listed(found.columns)}, which no form of conversations has.",
            f"Say `questions` where one column asks and another answers, or give the rows the columns of a form: {forms}.",
        )
    if answers.kind == "questions" and not found.form:
        found.guessed  # noqa: B018  two columns are needed
    return said


def _places(answers: Answers) -> dict[str, str]:
    scenario = read(answers.origin).data["scenario"]
    sections = {"machines": "nodes", "cluster": "openshift"}
    return {name: told for name, told in PLACES.items() if name == "here" or by_schema.has(scenario, sections[name])}


def _show_columns(answers: Answers) -> None:
    say(f"The columns of {answers.data}: {', '.join(answers.columns)}")


def _show_models(answers: Answers) -> None:
    rows = [(model.id, size(model), short(need.cards[0]), licence(model)) for model, need in drafting.choices(answers)]
    table([("MODEL", "PARAMETERS", "SMALLEST GPU", "LICENCE"), *rows])


def _proposed_card(answers: Answers) -> str:
    """This machine's first GPU that the catalog knows, where it runs here; else one with room."""
    from runner.parts.start.commands.doctor import labels

    own = next((label for label in labels() if catalog.gpu(label)), "") if answers.where == "here" else ""
    return drafting.card(answers, own)


def _is(where: str) -> Callable[[Answers], bool]:
    return lambda answers: answers.where == where


DATA = (
    Question(
        "kind",
        f"What do you have ({', '.join(KINDS)})?",
        f"What you have: {', '.join(KINDS)}.",
        lambda answers, said: _one_of(KINDS, said, "kind of data"),
        proposed=lambda answers: "questions",
    ),
    Question(
        "data",
        "Where is the file, or the folder?",
        "The file, or the folder, that it learns from.",
        _file,
        completed=complete_recipe,
    ),
    Question(
        "question",
        "What is the model asked? Columns stand in brackets",
        "What the model is asked, with columns in brackets.",
        lambda answers, said: answers.template(said),
        proposed=lambda answers: answers.guessed[0],
        asked=lambda answers: answers.kind == "questions" and not answers.form,
        shown=_show_columns,
    ),
    Question(
        "answer",
        "What does it learn to say?",
        "What it learns to say, likewise.",
        lambda answers, said: answers.template(said),
        proposed=lambda answers: replace(answers, question="").guessed[1],
        asked=lambda answers: bool(answers.question),
    ),
    Question(
        "column",
        "Which column holds the text?",
        "The column with the text.",
        lambda answers, said: answers.template(said).strip("[]"),
        proposed=lambda answers: next((name for name in ("text", "content") if name in answers.columns), ""),
        asked=lambda answers: answers.kind == "text" and bool(answers.columns),
        shown=_show_columns,
    ),
)
PLACE = (
    Question(
        "model",
        "Which model?",
        "The model that training starts from.",
        proposed=lambda answers: answers.of.model,
        asked=lambda answers: bool(answers.of.model),
        shown=_show_models,
        completed=complete_model,
    ),
    Question(
        "where",
        f"Where does it run ({', '.join(f'{name}: {told}' for name, told in PLACES.items())})?",
        f"Where it runs: {', '.join(f'{name} ({told})' for name, told in PLACES.items())}.",
        lambda answers, said: _one_of(_places(answers), said, "place for it"),
        proposed=lambda answers: "here",
    ),
    Question(
        "namespace",
        "In which project (namespace) of the cluster?",
        "The project on the cluster.",
        asked=_is("cluster"),
    ),
    Question(
        "machines",
        "On how many machines?",
        "How many machines of the cluster.",
        lambda answers, said: _count(said, "--machines", 1024),
        proposed=lambda answers: "1",
        asked=_is("cluster"),
    ),
    Question(
        "addresses",
        "What are the machines' addresses, the main one first, with commas between?",
        "The addresses of plain machines, with commas between.",
        lambda answers, said: tuple(said.replace(",", " ").split()),
        asked=_is("machines"),
    ),
    Question(
        "results",
        "Which folder do all of them share, for results?",
        "The folder for results that plain machines share.",
        proposed=lambda answers: "/shared/models",
        asked=_is("machines"),
    ),
    Question(
        "gpu",
        "Which GPU has it? `recipe gpus` shows them all",
        "The GPU, by its label.",
        lambda answers, said: card_named(said).name,
        proposed=_proposed_card,
        completed=complete_gpu,
    ),
    Question(
        "gpus",
        "How many of them in each machine?",
        "How many GPUs in each machine.",
        lambda answers, said: _count(said, "--gpus", 64),
        proposed=lambda answers: "1",
    ),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The answers as options of a command, under the names of their fields."""
    for one in reversed((*DATA, *PLACE)):
        command = click.option(one.option, one.name, help=one.help, shell_complete=one.completed)(command)
    return command


def terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(name: str, given: Mapping[str, str], sets: list[Override]) -> tuple[Draft, Answers]:
    """The recipe that answers make: those that are given, and where somebody is there the others asked for; else what
    is proposed.

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
            made = drafting.finished(name, whole, sets)
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
    taken = replace(answers, **{one.name: one.value(answers, said)})
    if taken.data:
        # Sections that are only half said are judged when they are whole.
        whole = (
            taken if one.name in ("results", "namespace", "gpu", "gpus") else replace(taken, where="here", addresses=())
        )
        made = drafting.drafted(name, whole)
        # There is no file yet that a lock could stand beside.
        later = [replace(each, hint=each.hint.replace(f" --recipe {made.target}", "")) for each in made.mended_later]
        if wrong := [*made.errors, *later]:
            raise Stop(wrong)
    return taken


def _looked(name: str, answers: Answers) -> bool:
    """Shows the first rows as the model will see them, and what is to be said of the file. Whether it can be used at
    all."""
    try:
        made = drafting.drafted(name, answers)
        found = drafting.first_rows(name, answers, ROWS)
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


def as_command(name: str, answers: Answers, sets: tuple[str, ...]) -> str:
    """What gives the same recipe without a question."""
    words = ["recipe", "new", name]
    for one in (*DATA, *PLACE):
        value = getattr(answers, one.name)
        if one.asked(answers) and value:
            words += [one.option, ",".join(value) if isinstance(value, tuple) else str(value)]
    return shlex.join([*words, *(part for one in sets for part in ("--set", one))])


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="RECIPE",
    help="A starter recipe's name, or any recipe file. Without it, a terminal is asked.",
    shell_complete=complete_starter,
)
@click.option(
    "--minimal",
    "short",
    is_flag=True,
    help="Take the minimal starter of that starter's scenario instead: on the same data, where there is one.",
)
@set_option
@options
def new(name: str, source: str | None, short: bool, sets: tuple[str, ...], **answers: str | None) -> None:
    """Copy a recipe under a new NAME, comments and all, with its schema and its sample beside it.

    Without `--from` it asks what you have, which model, and where it runs, and makes the recipe from that. Every answer is an
    option too.
    """
    name = name.removesuffix(".yaml")
    if not JOB_NAME.match(name):
        raise Stop(
            f"A recipe cannot be called `{name}`.",
            "A name has lower-case letters, digits and `-`, starts with a letter, and has at most 53 characters.",
        )
    given = {each: said for each, said in answers.items() if said}
    if source is None and not given and not terminal():
        raise click.MissingParameter(param_hint="'--from'", param_type="option")
    if source and given:
        raise Stop(
            "`--from` copies a recipe as it is, and does not go with answers about another one.",
            "Use `--set` beside it, or leave `--from` out.",
            code=2,
        )
    if short and source is None:
        raise Stop("`--minimal` goes with `--from`.", "Leave it out.", code=2)
    if Path(f"{name}.yaml").exists():
        raise Stop(f"`{name}.yaml` is there already.", "Choose another name, or delete it first.")
    wished, said = changing.from_options(sets), None
    if source:
        origin = drafting.minimal_starter(source) if short else drafting.starter(source)
        valid(read(origin))
        made = drafting.draft(origin, name, wished)
    else:
        made, said = asked(name, given, wished)
        origin = said.origin
    copied = drafting.write(made, origin)
    if not said:
        called = f"minimal/{origin.stem}" if short else source
        say(f"{made.target}: a copy of {called}. Edit it, then: recipe check {made.target}")
        for change in changing.apply(made.origin, made.changes)[1]:
            if change.setting not in {own.setting for own in (*made.wished, *made.moved)}:
                say(f"{change}")
    for file in copied:
        say(f"{file}: goes with it")
    for problem in made.mended_later:
        say(f"\nStill to do: {problem.message}\n{problem.hint}")
    if said:
        _answered(made, said, sets)


def _answered(made: Draft, said: Answers, sets: tuple[str, ...]) -> None:
    """What became of the answers, and how to get the same again."""
    secret = made.recipe.settings.get("openshift", {}).get("hub_token_secret")
    for problem in made.judged[1]:
        say(f"\n{problem}")
    say(f"\nThe same without questions:\n  {as_command(made.recipe.name, said, sets)}")
    if secret:
        say(f"`{said.base}` is gated: accept its licence on the hub, and write a token into the secret `{secret}`.")
    end(f"{made.target} is made from your answers, and checked.", "rehearse", str(made.target))
