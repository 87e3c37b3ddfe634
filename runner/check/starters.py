"""The starters' questions, which fit only the starters' data."""

import re
from collections.abc import Iterator
from functools import cache

from runner.recipe.recipe import Recipe
from runner.tools import packaged
from runner.tools.problem import Problem

_QUESTION = re.compile(r"^ *- (.+?)(?: +#.*)?$", re.MULTILINE)
_SOURCE = re.compile(r"^ +(?:hub|path|sample): (\S+)", re.MULTILINE)


@cache
def _starters() -> tuple[tuple[str, frozenset[str], frozenset[str]], ...]:
    """For each starter recipe: its name, the items of its lists (the questions among them), and its
    data."""
    starters = []
    for name, file in packaged.named().items():
        text = file.read_text(encoding="utf-8")
        questions = frozenset(_QUESTION.findall(text))
        starters.append((name, questions, frozenset(_SOURCE.findall(text))))
    return tuple(starters)


def questions_of(recipe: Recipe) -> tuple[str, list[str]]:
    """The name of a starter with other data, and its questions in this recipe's demo; none if there
    is no such starter."""
    data = _sources(recipe)
    demo_questions = [question for _, question in recipe.demo_questions]
    if not data or not demo_questions:
        return "", []
    for name, questions, learned in _starters():
        theirs = [question for question in demo_questions if question in questions]
        if theirs and learned.isdisjoint(data):
            return name, theirs
    return "", []


def _sources(recipe: Recipe) -> list[str]:
    sources_of_rows = list[str]()
    for _, data_set in recipe.data_sets():
        sources_of_rows += filter(None, (data_set.get("hub"), data_set.get("path")))
    return sources_of_rows


def demo(recipe: Recipe) -> Iterator[Problem]:
    """A starter's questions fit only the starter's data."""
    name, theirs = questions_of(recipe)
    if theirs:
        place = recipe.place_of_question(theirs[0])
        source = _sources(recipe)[0]
        yield recipe.note(
            place,
            f"`{theirs[0]}` is a question of the starter `{name}`, but the model learns from `{source}`.",
            "Write questions about your own data. Or delete them: then the demo asks questions of your rows.",
        )
