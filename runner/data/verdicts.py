"""Two answers to a question with a verdict, as arenas of models and OpenAI's preferences have them.
A row gets the question as `prompt`, and the answers as `chosen` and `rejected`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.data.columns import Rivals, rival_answers
from runner.data.logged_turns import VERDICTS, words_of
from runner.data.quizzes import list_in
from runner.recipe.templates import value_at

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"
TIE = "rows without a better answer"
SEVERAL_ANSWERS = "conversations with several answers, of which the verdict names none"
# The columns of two conversations, of which another column says which one is better.
TALKS = ("conversation_a", "conversation_b")
WINNER = "winner"
# The columns of OpenAI's format for preferences.
PREFERRED, OTHER, INPUT = "preferred_output", "non_preferred_output", "input"


class LeftOut(str):
    """In the place of an answer: why a row has no pair of answers."""


class Pair(NamedTuple):
    better: object
    worse: object


def change_of(
    names: Sequence[str], sample: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
    """What makes preferences of rows; None for rows without a verdict."""
    if {CHOSEN, REJECTED} <= set(names):
        return None
    for form, change in zip(VERDICTS, (_of_talks, _of_openai), strict=True):
        if all(row.keys() >= form for row in sample):
            return change
    rivals = rival_answers(names, sample)
    if rivals is None:
        return None

    def of_rivals(row: Mapping[str, Any]) -> dict[str, Any]:
        answers = Pair(*(_only_words(row[name]) for name in (rivals.first, rivals.second)))
        question = {}
        if PROMPT in row:
            question = {PROMPT: _only_words(row[PROMPT])}
        return {**row, **question, **_judged(answers, _winner(row, rivals))}

    return of_rivals


def _winner(row: Mapping[str, Any], rivals: Rivals) -> int | None:
    """Which answer of a row is better, 0 or 1; None for neither."""
    for place, judge in enumerate(rivals.flags):
        if str(row.get(judge)).strip().lower() in ("1", "1.0", "true"):
            return place
    if rivals.flags:
        return None
    return rivals.place(value_at(row, rivals.judge))


def _judged(answers: Pair, winner: int | None) -> dict[str, Any]:
    if winner is None:
        return dict.fromkeys((CHOSEN, REJECTED), LeftOut(TIE))
    return {CHOSEN: answers[winner], REJECTED: answers[1 - winner]}


def _only_words(value: object) -> object:
    """The only text of a list, which a table has as JSON; another value as it is."""
    texts = list_in(value)
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    return value


def _of_openai(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of OpenAI's preferences."""
    asked = row[INPUT]
    turns = asked.get("messages") if isinstance(asked, dict) else asked
    answers = {CHOSEN: row[PREFERRED], REJECTED: row[OTHER]}
    return {**row, PROMPT: turns, **answers}


def _of_talks(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of two conversations that begin with the same question."""
    talks = [list_in(row[name]) for name in TALKS]
    if any(len(talk) < 2 for talk in talks):
        return {**row, PROMPT: [], **_judged(Pair("", ""), None)}
    prompts = [talk[:-1] for talk in talks]
    if prompts[0] != prompts[1]:
        several = dict.fromkeys((CHOSEN, REJECTED), LeftOut(SEVERAL_ANSWERS))
        return {**row, PROMPT: prompts[0][:1], **several}
    answers = Pair(*(words_of(talk[-1]) for talk in talks))
    verdict = str(row[WINNER]).strip().lower()
    winner = {"model_a": 0, "a": 0, "model_b": 1, "b": 1}.get(verdict)
    return {**row, PROMPT: prompts[0], **_judged(answers, winner)}
