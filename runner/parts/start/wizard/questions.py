"""Which questions `recipe new` asks, in their order: each is an option too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner import catalog
from runner.check import by_schema
from runner.commands import completing
from runner.commands.options import card_named, say, short, table
from runner.data.conversation_formats import COLUMNS
from runner.parts.planner import parameters
from runner.parts.start import beginning
from runner.parts.start.answers import KINDS, PLACES, Answers
from runner.recipe.reading import read
from runner.tools.names import listed, nearest
from runner.tools.problem import Stop


@dataclass(frozen=True)
class Question:
    """option: which answers it too, `--what`, for the field `name` of Answers. take: the answers with what was said; raises Stop where
    that cannot be. proposed: what Enter says, empty where nobody knows. asked: whether it is one at all; shown: said before."""

    option: str
    name: str
    text: str
    help: str
    take: Callable[[Answers, str], Answers]
    proposed: Callable[[Answers], str] = lambda answers: ""
    asked: Callable[[Answers], bool] = lambda answers: True
    shown: Callable[[Answers], None] = lambda answers: None
    completed: completing.Completing | None = None


def _one_of(known: Mapping[str, Any], said: str, what: str) -> str:
    if said in known:
        return said
    near = nearest(said, known)
    raise Stop(
        f"`{said}` is no {what}.", (f"Did you mean `{near}`? " if near else "") + f"It can be {listed(known, 'or')}."
    )


def _count(said: str, option: str, most: int) -> int:
    if said.isdecimal() and 1 <= int(said) <= most:
        return int(said)
    raise Stop(f"`{said}` is no count.", f"Write a whole number from 1 to {most:,}, for example `{option} 1`.")


def _file(answers: Answers, said: str) -> Answers:
    found = replace(answers, data=said)
    if answers.kind == "conversations" and not found.form:
        raise Stop(
            f"The columns of `{said}` are {listed(found.columns)}, which no form of conversations has.",
            "Say `questions` where one column asks and another answers, or give the rows the columns of a form: "
            + "; ".join(f"{listed(columns)} ({form})" for form, columns in COLUMNS.items())
            + ".",
        )
    if answers.kind == "questions" and not found.form:
        found.guessed  # noqa: B018  two columns are needed
    return found


def _column(answers: Answers, said: str) -> Answers:
    return replace(answers, column=answers.template(said).strip("[]"))


def _places(answers: Answers) -> dict[str, str]:
    scenario = read(answers.origin).data["scenario"]
    sections = {"machines": "nodes", "cluster": "openshift"}
    return {name: told for name, told in PLACES.items() if name == "here" or by_schema.has(scenario, sections[name])}


def _templates(answers: Answers) -> bool:
    return answers.kind == "questions" and not answers.form


def _shown_models(answers: Answers) -> None:
    rows = [
        (model.id, f"{(model.parameters or parameters.total(model)) / 1e9:.2f}B", short(need.cards[0]), _licence(model))
        for model, need in beginning.choices(answers)
    ]
    table([("MODEL", "PARAMETERS", "SMALLEST GPU", "LICENCE"), *rows])


def _licence(model: catalog.Model) -> str:
    return (model.licence or "unknown") + (", gated" if model.gated else "")


def _here() -> str:
    """The label of this machine's first GPU, where the catalog knows it."""
    from runner.run.hardware import labels

    return next((label for label in labels() if catalog.gpu(label)), "")


def _is(where: str) -> Callable[[Answers], bool]:
    return lambda answers: answers.where == where


DATA = (
    Question(
        "--what",
        "kind",
        f"What do you have ({', '.join(KINDS)})?",
        f"What you have: {', '.join(KINDS)}.",
        lambda answers, said: replace(answers, kind=_one_of(KINDS, said, "kind of data")),
        lambda answers: "questions",
    ),
    Question(
        "--data",
        "data",
        "Where is the file, or the folder?",
        "The file, or the folder, that it learns from.",
        _file,
        completed=completing.recipe_file,
    ),
    Question(
        "--question",
        "question",
        "What is the model asked? Columns stand in brackets",
        "What the model is asked, with columns in brackets.",
        lambda answers, said: replace(answers, question=answers.template(said)),
        lambda answers: answers.guessed[0],
        _templates,
        lambda answers: say(f"The columns of {answers.data}: {', '.join(answers.columns)}"),
    ),
    Question(
        "--answer",
        "answer",
        "What does it learn to say?",
        "What it learns to say, likewise.",
        lambda answers, said: replace(answers, answer=answers.template(said)),
        lambda answers: replace(answers, question="").guessed[1],
        lambda answers: bool(answers.question),
    ),
    Question(
        "--column",
        "column",
        "Which column holds the text?",
        "The column with the text.",
        _column,
        lambda answers: next((name for name in ("text", "content") if name in answers.columns), ""),
        lambda answers: answers.kind == "text" and bool(answers.columns),
        lambda answers: say(f"The columns of {answers.data}: {', '.join(answers.columns)}"),
    ),
)
PLACE = (
    Question(
        "--model",
        "model",
        "Which model?",
        "The model that training starts from.",
        lambda answers, said: replace(answers, model=said),
        lambda answers: answers.of.model,
        lambda answers: bool(answers.of.model),
        _shown_models,
        completing.models,
    ),
    Question(
        "--where",
        "where",
        f"Where does it run ({', '.join(f'{name}: {told}' for name, told in PLACES.items())})?",
        f"Where it runs: {', '.join(f'{name} ({told})' for name, told in PLACES.items())}.",
        lambda answers, said: replace(answers, where=_one_of(_places(answers), said, "place for it")),
        lambda answers: "here",
    ),
    Question(
        "--namespace",
        "namespace",
        "In which project (namespace) of the cluster?",
        "The project on the cluster.",
        lambda answers, said: replace(answers, namespace=said),
        asked=_is("cluster"),
    ),
    Question(
        "--machines",
        "machines",
        "On how many machines?",
        "How many machines of the cluster.",
        lambda answers, said: replace(answers, machines=_count(said, "--machines", 1024)),
        lambda answers: "1",
        _is("cluster"),
    ),
    Question(
        "--addresses",
        "addresses",
        "What are the machines' addresses, the main one first, with commas between?",
        "The addresses of plain machines, with commas between.",
        lambda answers, said: replace(answers, addresses=tuple(said.replace(",", " ").split())),
        asked=_is("machines"),
    ),
    Question(
        "--results",
        "results",
        "Which folder do all of them share, for results?",
        "The folder for results that plain machines share.",
        lambda answers, said: replace(answers, results=said),
        lambda answers: "/shared/models",
        _is("machines"),
    ),
    Question(
        "--gpu",
        "gpu",
        "Which GPU has it? `recipe gpus` shows them all",
        "The GPU, by its label.",
        lambda answers, said: replace(answers, gpu=card_named(said).name),
        lambda answers: beginning.card(answers, _here() if answers.where == "here" else ""),
        completed=completing.gpus,
    ),
    Question(
        "--gpus",
        "gpus",
        "How many of them in each machine?",
        "How many GPUs in each machine.",
        lambda answers, said: replace(answers, gpus=_count(said, "--gpus", 64)),
        lambda answers: "1",
    ),
)
