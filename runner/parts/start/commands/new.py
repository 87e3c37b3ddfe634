"""`recipe new`: a copy of a recipe, or a recipe from a few answers; each question is an option
too."""

import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import click

from runner import catalog
from runner.catalog.hardware import NO_GPU
from runner.check import by_schema, data_file
from runner.check.sources import MOST_NAMES, named_people
from runner.check.validate import valid
from runner.commands.next_step import before_training
from runner.commands.options import command, end, parameter, say, set_words, short, table
from runner.data.chat_logs import ANSWERERS
from runner.data.conversation_formats import WRITTEN_FORMS
from runner.parts.start import drafting
from runner.parts.start.commands import doctor
from runner.parts.start.commands.models import card_named, licence, size
from runner.parts.start.drafting import KINDS, PAIR, PLACES, TABLES, Answers, Draft
from runner.parts.start.proposals import MOST_CHANGES, NewCommand, working_command
from runner.recipe import overrides as changing
from runner.recipe import units
from runner.recipe.recipe import Override
from runner.tools.packaged import named
from runner.tools.problem import Problem, Stop, did_you_mean, listed
from runner.tools.text import JOB_NAME, printable

ROWS, WIDTH = 3, 400  # the most rows that are shown, and the most characters of each
BACK, NOT = "back", "not "
MOST_HERE = 5  # models that are shown for this machine's CPU


class Question(NamedTuple):
    """name: a field of Answers; option: of the command, `--NAME` unless `questions.toml` has
    another one. The other fields are as there."""

    name: str
    text: str
    help: str
    option: str
    complete: str = ""
    rows: tuple[str, ...] = ()
    where: str = ""
    needs: tuple[str, ...] = ()
    choices: str = ""
    what: str = ""
    optional: bool = False
    most: int = 0
    starts: str = ""
    enter: str = ""

    def asked(self, answers: Answers) -> bool:
        """Whether the question makes sense after these answers."""
        meant = (not self.rows or answers.of.rows in self.rows) and self.where in (
            "",
            answers.where,
        )
        unmet = (
            one
            for one in self.needs
            if bool(attrgetter(one.removeprefix(NOT))(answers)) == one.startswith(NOT)
        )
        return meant and not any(unmet)

    def known(self, answers: Answers) -> Collection[str]:
        """The allowed answers; empty if it may be any."""
        if not self.choices:
            return ()
        choices: Collection[str] = attrgetter(self.choices)(answers)
        return choices

    def open(self, answers: Answers) -> bool:
        """Whether the question may stay without an answer."""
        may_stay = self.name in ("data", "hold_back", "results")
        return self.optional or (may_stay and answers.of.keeps)

    def proposed(self, answers: Answers) -> str:
        """The answer for Enter without text; empty if unknown."""
        if self.name in PROPOSED:
            own = PROPOSED[self.name](answers)
        else:
            own = self.starts and answers.starts(self.starts)
        return str(own or self.enter.format(answers=answers))

    def value(self, answers: Answers, said: str) -> Any:
        """The field's value from an answer. Raises Stop if it is not valid."""
        known = self.known(answers)
        if known:
            if said in known:
                return said
            if known == answers.yes_or_no and said.lower() in ("y", "n"):
                return dict(zip("yn", known, strict=True))[said.lower()]
            what = self.what.format(answers.of.title.lower())
            kinds = []
            for each in known:
                if not (self.name == "kind" and KINDS[each].keeps and each in named()):
                    kinds.append(each)
            if len(kinds) < len(known):
                starters = " Or name a starter; `recipe list` shows them."
            else:
                starters = ""
            hint = f"{did_you_mean(said, known)}Use {listed(kinds, 'or')}.{starters}"
            raise Stop(f"`{said}` is not a valid {what}.", hint)
        if self.most:
            if said.isdecimal() and 1 <= int(said) <= self.most:
                return int(said)
            raise Stop(
                f"`{said}` is not a valid number.",
                f"Write a whole number from 1 to {self.most:,}, for example `{self.option} 1`.",
            )
        if self.name in VALUES:
            return VALUES[self.name](answers, said)
        return said


def _numbers(answers: Answers, said: str) -> tuple[int, ...]:
    found = said.replace(",", " ").split()
    if found and all(map(str.isdecimal, found)) and len(set(found)) == len(found):
        return tuple(map(int, found))
    raise Stop(
        f"`{said}` is not a list of GPU numbers.",
        "Write them as nvidia-smi has them, for example `--numbers 2,3`.",
    )


def _file(answers: Answers, said: str) -> str:
    name = data_file.pasted(said)
    found = replace(answers, data=name)
    there = found.columns
    if answers.of.rows == "conversations" and there and not found.form:
        raise Stop(
            f"The columns of `{name}` are {listed(there)}, which match no form of conversations.",
            f"Choose `questions` if one column has questions and another has answers, or give the rows the columns of a form: {WRITTEN_FORMS}.",
        )
    if answers.of.rows in ("questions", "songs") and not found.form:
        found.require_columns()
    return name


def _show(one: Question, answers: Answers) -> None:
    if one.name == "answered_by":
        people = [(name, f"{count:,}") for name, count in answers.speakers.items()]
        table([("NAME", "MESSAGES"), *people])
    elif one.name in ("question", "prompt", "column") and answers.columns:
        say(f"The columns of {answers.data}: {', '.join(answers.columns)}")
    elif one.name == "model":
        if answers.on_cpu:
            _show_trained_here(answers)
            return
        found = drafting.choices(answers, _own_card(answers))
        rows = []
        for model, need in found:
            rows.append((model.id, size(model), short(need.cards[0]), licence(model)))
        table([("MODEL", "PARAMETERS", "SMALLEST GPU", "LICENCE"), *rows])


def _show_trained_here(answers: Answers) -> None:
    """At most five models with their minutes here, instead of all of the catalog."""
    rows = [("MODEL", "TIME HERE", "MAIN MEMORY")]
    for model in islice(drafting.trained_here("new", answers), MOST_HERE):
        rows.append((model.base, units.duration(model.seconds), units.gib(model.memory)))
    table(rows)
    say("Larger models need a GPU elsewhere.")


def _own_card(answers: Answers) -> str:
    """This machine's first GPU of the catalog, if it trains here; empty without one."""
    if answers.where != "here":
        return ""
    return next(filter(catalog.gpu, doctor.labels()), "")


def _proposed_card(answers: Answers) -> str:
    """The starter's GPU; else this machine's first GPU of the catalog, if it runs here; else the
    smallest one with room for the model, or a medium one if that is unknown."""
    if answers.of.keeps:
        return str(answers.starts("machines.gpu"))
    own_card = _own_card(answers)
    if own_card:
        return own_card
    if answers.base:
        model = catalog.model(answers.base)
    else:
        model = None
    if model:
        need = drafting.need_of(model, answers)
    else:
        need = None
    if need:
        return need.cards[0]
    return "NVIDIA-L40S"


VALUES: Mapping[str, Callable[[Answers, str], Any]] = {
    "data": _file,
    **dict.fromkeys(("question", "answer", *PAIR), lambda answers, said: answers.template(said)),
    "column": lambda answers, said: answers.template(said).strip("[]"),
    "addresses": lambda answers, said: tuple(said.replace(",", " ").split()),
    "gpu": lambda answers, said: NO_GPU if said == NO_GPU else card_named(said).name,
    "numbers": _numbers,
}
PROPOSED: Mapping[str, Callable[[Answers], Any]] = {
    "prompt": lambda answers: answers.guessed[0],
    "hold_back": lambda answers: "" if answers.of.keeps else "yes",
    "where": lambda answers: next(
        (where for where in PLACES if answers.starts(PLACES[where])), "here"
    ),
    "addresses": lambda answers: ",".join(
        one["address"] for one in answers.starts("nodes.machines", [])
    ),
    "results": lambda answers: "" if answers.starts("nodes") else drafting.SHARED,
    "gpu": _proposed_card,
    "numbers": lambda answers: ",".join(map(str, answers.starts("nodes.machines.0.gpus", []))),
}
STARTERS = ", ".join(name for name in KINDS if Answers(name).way.starter == name)
QUESTIONS = tuple(
    Question(
        name,
        **{
            "option": f"--{name.replace('_', '-')}",
            **row,
            "help": row["help"].format(starters=STARTERS),
        },
    )
    for name, row in (TABLES["data"] | TABLES["place"]).items()
)
ABOUT_DATA = len(TABLES["data"])  # the number of these, which come first
# Columns may be unknown as long as these are not all answered.
ABOUT_COLUMNS = ("data", "sheet", "question", "answer")


def as_options(command: Callable[..., object]) -> Callable[..., Any]:
    for one in reversed(QUESTIONS):
        parameter(one.name, str | None, option=one.option, help=one.help, complete=one.complete)(
            command
        )
    return command


def terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(
    name: str, given: Mapping[str, str], sets: list[Override], there: bool
) -> tuple[Draft, Answers]:
    """The recipe from the given answers, the others from a person at the terminal, or else
    proposed. there: whether such a person is asked. Raises Stop if a given answer is not possible,
    or if one without a proposal is missing."""
    nothing = Answers(sets=tuple(sets))
    answers = nothing
    at = 0
    if there:
        say("Enter gives the suggested answer. `back` returns to the previous question.")
        say("^C stops without writing a file.")
    while True:
        whole = None
        try:
            whole = _through(name, answers, given, there, at)
            return drafting.finished(name, whole), whole
        except Stop as stop:
            if not there or sets:
                raise
            _say(stop)
        # A question replaces a wrong option. Readable data stays.
        given = {}
        at = ABOUT_DATA if whole else 0
        if whole:
            of_data = {name: getattr(whole, name) for name in TABLES["data"]}
            answers = replace(nothing, **of_data)
        else:
            answers = nothing


def _through(
    name: str, answers: Answers, given: Mapping[str, str], there: bool, at: int
) -> Answers:
    """The answers, with those to the questions from number `at` on."""
    before: list[tuple[int, Answers]] = []
    shown = -1
    seen = at > 0
    is_judged = True
    judged_data = answers.data
    while at < len(QUESTIONS):
        if there and at >= ABOUT_DATA and not seen:
            seen = _looked(name, answers)
            if not seen:
                given = {}
                at, answers = _before_columns(before)
                continue
        one = QUESTIONS[at]
        said = given.get(one.name, "") or _of_sets(one, answers)
        settled = said or not there or len(one.known(answers)) == 1
        if not one.asked(answers):
            if said:
                raise Stop(
                    f"`{one.option}` does not fit the other answers.", "Leave it out.", code=2
                )
        elif settled:
            if not said and answers.data != judged_data:
                # A proposal comes from the columns.
                _judge(name, answers, given, at)
                judged_data = answers.data
            said = said or one.proposed(answers)
            if said:
                answers = _on_cpu_here(one, given, _with_answer(one, answers, said))
                is_judged = False
            elif not one.open(answers):
                _judge(name, answers, given, at)
                if one.name in ("question", "answer"):
                    answers.learned()  # raises Stop, with the columns
                missing = (
                    f"`recipe new` without `--from` needs `{one.option}`: {one.help[0].lower()}{one.help[1:]}",
                    "In a terminal, `recipe new` asks for what is missing.",
                )
                raise Stop(*missing, code=2)
        else:
            if not is_judged:
                _judge(name, answers, given, at)
                is_judged = True
            if shown != at:
                _show(one, answers)
            shown = at
            proposed = one.proposed(answers) or ("" if one.open(answers) else None)
            suggested = proposed or ("as in the starter" if answers.of.keeps else "skip")
            asking = one.text.format(starters=STARTERS) + (
                "" if proposed is None else f" (Enter: {suggested})"
            )
            said = click.prompt(printable(asking), default=proposed, show_default=False).strip()
            if said == BACK:
                if before:
                    at, answers = before.pop()
                else:
                    at = 0
                    answers = Answers(sets=answers.sets)
                seen = seen and at >= ABOUT_DATA
                continue
            try:
                taken = answers
                if said:
                    taken = _with_answer(one, answers, said)
                    _judge(name, taken, given, at)
            except WrongSettings:
                raise
            except Stop as stop:
                _say(stop)
                continue
            before.append((at, answers))
            answers = _on_cpu_here(one, given, taken)
        at += 1
    if not is_judged:
        _judge(name, answers, given, at)
    return answers


class WrongSettings(Stop):
    """The settings of `--set` are wrong, whatever the answers are."""


def _before_columns(before: list[tuple[int, Answers]]) -> tuple[int, Answers]:
    """The question about the columns, else the last one, and the answers before it. before: the
    answered questions, of which the later ones are removed."""
    at = 0
    answers = Answers()
    while before:
        at, answers = before.pop()
        if QUESTIONS[at].name in ("question", "prompt", "column"):
            break
    return at, answers


def _on_cpu_here(one: Question, given: Mapping[str, str], answers: Answers) -> Answers:
    """The answers, with this machine's CPU after "here" if the machine has no GPU and no answer
    names one. A starter that is copied as it is keeps its GPU."""
    is_here = one.name == "where" and answers.where == "here" and not answers.of.keeps
    names_gpus = given.get("gpu") or given.get("gpus")
    if is_here and not names_gpus and not doctor.labels():
        return replace(answers, gpu=NO_GPU)
    return answers


# The answers that a setting of questions and answers gives, too.
SETTING_OF_ANSWER = {"sheet": "data.sheet", "question": "data.question", "answer": "data.answer"}


def _of_sets(question: Question, answers: Answers) -> str:
    """The answer that a setting of `--set` gives; empty without one."""
    setting = SETTING_OF_ANSWER.get(question.name)
    if answers.of.rows != "questions" or not question.asked(answers):
        return ""
    for change in reversed(by_schema.as_text(answers.document, answers.sets)):
        if change.setting == setting and isinstance(change.after, str):
            return change.after
    return ""


def _with_answer(question: Question, answers: Answers, answer: str) -> Answers:
    """The answers with one more. Raises Stop if it is not valid."""
    return replace(answers, **{question.name: question.value(answers, answer)})


def _judge(name: str, answers: Answers, later_answers: Mapping[str, str], position: int) -> None:
    """Raises Stop if the answers cause errors in the recipe. later_answers: those
    to later questions; position: the number of the last question."""
    if not answers.data and not answers.of.keeps:
        return
    if (
        position < len(QUESTIONS)
        and QUESTIONS[position].name in ABOUT_COLUMNS
        and answers.lacks_columns
    ):
        return  # the next questions ask for them
    judged = answers
    for question in QUESTIONS[position:ABOUT_DATA]:
        answer = later_answers.get(question.name, "")
        if answer and question.asked(judged):
            judged = _with_answer(question, judged, answer)
    # Whether a model can learn some rows depends on the model.
    judged = replace(judged, model=answers.model or later_answers.get("model", ""))
    lacks_machines = answers.where == "machines" and not answers.addresses
    lacks_project = answers.where == "cluster" and not answers.namespace
    if position < ABOUT_DATA or lacks_machines or lacks_project:
        # Incomplete sections are checked when they are complete.
        judged = judged.without_place
    problems = _problems_of_draft(name, judged)
    if not problems:
        return
    if answers.sets and not _problems_of_draft(name, replace(judged, sets=())):
        raise WrongSettings(problems)
    raise Stop(problems)


def _problems_of_draft(name: str, answers: Answers) -> list[Problem]:
    """The errors in the recipe of some answers."""
    draft = drafting.drafted(name, answers)
    # There is no recipe file yet, so no lock file beside it.
    later = []
    for problem in draft.mended_later:
        later.append(replace(problem, hint=problem.hint.replace(f" --recipe {draft.target}", "")))
    return [*draft.errors, *later]


def _looked(name: str, answers: Answers) -> bool:
    """Shows the first rows as the model sees them, and notes about the file. Returns whether it can
    be used."""
    try:
        made = drafting.drafted(name, answers.without_place)
        here = (
            answers.data
            and not drafting.on_hub(answers.data)
            and answers.of.rows not in ("images", "text-questions-preferences")
        )
        if here:
            found = drafting.first_rows(name, answers, ROWS)[1]
        else:
            found = []
    except Stop as stop:
        _say(stop)
        return False
    if here and not found:
        say(f"No row of `{answers.data}` can be trained on. Name another file, or other columns.\n")
        return False
    if found:
        say(f"\nThe first rows, as {answers.base} would see them:")
        for seen in found:
            if len(seen.text) <= WIDTH:
                text = seen.text
            else:
                text = f"{seen.text[:WIDTH]} …"
            say(f"\n{textwrap.indent(text, '  ')}")
        say()
    for problem in made.judged[1]:
        say(f"{_words(problem)}\n")
    return _confirmed(answers)


def _confirmed(answers: Answers) -> bool:
    """Whether the person agrees with the columns of questions and answers; no question for other
    rows."""
    if answers.of.rows != "questions" or not answers.sample or answers.form:
        return True
    learned = data_file.learned_sentence(answers.first_pair)
    if not learned:
        return True
    say(learned)
    asking = "Is that a question with its answer? yes or no (Enter: yes)"
    while True:
        said = click.prompt(asking, default="yes", show_default=False).strip().lower()
        if said in ("yes", "y"):
            return True
        if said in ("no", "n", BACK):
            return False
        _say(Stop(f"`{said}` is not a valid answer.", "Use `yes` or `no`."))


def _words(problem: Problem) -> str:
    """A problem without its line, because the file does not exist yet."""
    return f"{problem.message}\n{problem.hint}".rstrip()


def _say(stop: Stop) -> None:
    said = "\n\n".join(map(_words, stop.problems)) or stop.text
    say(f"\n{said}\n", err=True)


def as_command(name: str, answers: Answers, sets: tuple[str, ...]) -> str:
    """The command for the same recipe without questions."""
    words = ["recipe", "new", name]
    for one in QUESTIONS:
        value = getattr(answers, one.name)
        # `none` was not asked for, but another machine may have a GPU.
        if value and (one.asked(answers) or value == NO_GPU):
            words += [
                one.option,
                ",".join(map(str, value)) if isinstance(value, tuple) else str(value),
            ]
    return shlex.join([*words, *set_words(sets)])


# Names of devices, which no file of Windows can have, with any ending
# (https://learn.microsoft.com/windows/win32/fileio/naming-a-file).
PORTS = tuple(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))
OF_WINDOWS = ("aux", "con", "nul", "prn", *PORTS)


@command
@as_options
def new(
    name: str, source: str | None, short: bool, sets: tuple[str, ...], **answers: str | None
) -> int:
    """Create a recipe called NAME: a copy of a starter, with its comments, schema and sample.

    Without `--from`, it asks what data you have, which model to train, and where, and writes a
    recipe from your answers. You can also give each answer as an option, and with `--from` those
    that differ from the starter.
    """
    given = {each: said for each, said in answers.items() if said}
    typed = NewCommand(name.removesuffix(".yaml"), source, short, given, sets)
    if source is None and not given and not terminal():
        raise click.MissingParameter(param_hint="'--from'", param_type="option")
    asks = terminal() and source is None
    try:
        _create(typed, asks)
    except Stop as refusal:
        working = None
        if not asks:
            working = working_command(typed, refusal, _attempt, MOST_CHANGES)
        if working is None:
            raise
        say(refusal.text, err=True)
        outcome = "Nothing was written. This command works:"
        if working.given.get("question", "") not in ("", given.get("question")):
            outcome = "Nothing was written. Name the columns to learn from, here two of them:"
        end(outcome, "new", *_words_of(working))
        return refusal.code
    return 0


def _words_of(typed: NewCommand) -> list[str]:
    """The words after `recipe new`."""
    arguments = [typed.name]
    if typed.source:
        arguments += ["--from", typed.source]
    if typed.is_short:
        arguments += ["--minimal"]
    for question in QUESTIONS:
        if typed.given.get(question.name):
            arguments += [question.option, typed.given[question.name]]
    return [*arguments, *set_words(typed.sets)]


def _attempt(typed: NewCommand) -> None:
    """Raises Stop if the command is refused. Writes nothing."""
    draft, _ = _drafted(typed, asks=False)
    if draft.errors:
        raise Stop(draft.errors)


def _drafted(typed: NewCommand, asks: bool) -> tuple[Draft, Answers | None]:
    """The recipe that a command makes, and the answers, unless it only copies a starter."""
    name = typed.name
    source = typed.source
    typed_answers = dict(typed.given)
    if not JOB_NAME.match(name):
        raise Stop(
            f"A recipe cannot have the name `{name}`.",
            "A name has lower-case letters, digits and `-`, starts with a letter, and has at most 53 characters.",
        )
    if name in OF_WINDOWS:
        raise Stop(
            f"A recipe cannot have the name `{name}`, which Windows keeps for a device.",
            "Choose another name: somebody may copy the recipe to Windows.",
        )
    if not source and "kind" not in typed_answers and typed_answers.get("data"):
        kind_of_file = data_file.kind_of(Path(data_file.pasted(typed_answers["data"])))
        if kind_of_file:
            typed_answers["kind"] = kind_of_file
    if source and typed_answers:
        typed_answers["kind"] = _kind_of_copy(source, typed.is_short, typed_answers)
        source = None
    if typed.is_short and source is None:
        raise Stop("`--minimal` needs `--from`.", "Leave it out.", code=2)
    if Path(f"{name}.yaml").exists():
        raise Stop(f"`{name}.yaml` already exists.", "Choose another name, or delete it first.")
    wished = changing.from_options(typed.sets)
    if source is None:
        return asked(name, typed_answers, wished, asks)
    origin = drafting.starter(source)
    if typed.is_short:
        origin = drafting.minimal_starter(source)
    valid(origin)
    return drafting.draft(origin, name, wished), None


def _create(typed: NewCommand, asks: bool) -> None:
    """Writes the recipe, and tells what it is."""
    made, said = _drafted(typed, asks)
    given = typed.given
    copied = drafting.write(made)
    if not said:
        called: str | None
        if typed.is_short:
            called = f"minimal/{Path(made.origin.file).stem}"
        else:
            called = typed.source
        say(f"{made.target}: a copy of {called}")
        for change in changing.apply(made.origin, made.changes)[1]:
            if change.setting not in {own.setting for own in (*made.wished, *made.moved)}:
                say(f"{change}")
    for file in copied:
        say(
            f"{file}: {'helps editors complete settings' if file.suffixes == ['.schema', '.json'] else 'also copied'}"
        )
    for problem in made.mended_later:
        say(f"\nStill to do: {problem.message}\n{problem.hint}")
    if not said:
        end(
            f"{made.target} is your own copy of {called}. Edit it in any editor.",
            "check",
            str(made.target),
        )
        return
    for problem in made.judged[1]:
        say(f"\n{problem}")
    if not asks and said.of.rows == "questions" and said.data and not said.form:
        say(f"\n{data_file.learned_sentence(said.first_pair)}")
    if not asks and said.of.rows == "text" and said.data:
        say(f"\n{data_file.text_sentence(_beginning(made.recipe.name, said))}")
    if said.answered_by and not asks and "answered_by" not in given:
        say(f"\n{_chosen_answerer(said)}")
    say(
        f"\nThis command gives the same recipe without questions:\n  {as_command(made.recipe.name, said, typed.sets)}"
    )
    secret = made.recipe.settings.get("openshift", {}).get("hub_token_secret")
    if secret:
        say(
            f"`{said.base}` is gated: accept its licence on the hub, and save a token in the secret `{secret}`."
        )
    following = before_training(made.recipe)
    if following == "run":
        advice = "Its model is part of the installation."
    else:
        advice = "Rehearse it with a tiny model first."
    done = f"{made.target} has your answers, and no mistakes. {advice}"
    end(done, following, str(made.target))


def _beginning(name: str, answers: Answers) -> str:
    """The beginning of the first text; empty if it is not on this machine."""
    if drafting.on_hub(answers.data):
        return ""
    _, texts = drafting.first_rows(name, answers, 1)
    return texts[0].text if texts else ""


def _chosen_answerer(answers: Answers) -> str:
    """Who answers in a chat of which no person is named, and why."""
    speakers = dict(answers.speakers)
    speakers.pop(answers.answered_by, None)
    others = named_people(speakers)
    if answers.answered_by.strip().lower() in ANSWERERS:
        choice = f"`{answers.answered_by}` answers in this chat, by the name."
    else:
        choice = f"`{answers.answered_by}` answers in this chat: nobody else follows another person as often."
    if not others:
        return choice
    return f"{choice} For another person, write another name as `answered_by`: {', '.join(others[:MOST_NAMES])}."


def _kind_of_copy(source: str, short: bool, given: Mapping[str, str]) -> str:
    """The answer to the first question that copies a starter, so that the other answers change the
    copy. Raises Stop if no such answer exists."""
    is_starter = source in KINDS and KINDS[source].keeps
    if short or "kind" in given or not is_starter:
        raise Stop(
            "Options for answers, such as `--data`, work with `--from` only if it names a starter, without `--minimal` and `--what`.",
            "Use `--set` instead of them, or leave out `--from`.",
            code=2,
        )
    return source
