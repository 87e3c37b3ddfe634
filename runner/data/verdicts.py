"""Two answers to a question with a verdict, as arenas of models and OpenAI's preferences have them.
A row gets the question as `prompt`, and the answers as `chosen` and `rejected`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.data.columns import Rivals, rival_answers
from runner.data.logged_turns import VERDICTS, words_of
from runner.data.quizzes import list_in
from runner.recipe.templates import value_at

PROMPT = "prompt"
CHOSEN = "chosen"
REJECTED = "rejected"
TIE = "rows without a better answer"
SEVERAL_ANSWERS = "conversations with several answers, of which the verdict names none"
# The columns of two conversations, of which another column says which one is better.
TALKS = ("conversation_a", "conversation_b")
WINNER = "winner"
WINNERS = {"model_a": 0, "a": 0, "model_b": 1, "b": 1}
# The columns of OpenAI's format for preferences.
PREFERRED = "preferred_output"
OTHER = "non_preferred_output"
INPUT = "input"


class LeftOut(str):
    """In the place of an answer: why a row has no pair of answers."""


class Pair(NamedTuple):
    better: object
    worse: object


def change_of(
    names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> Callable[[Mapping[str, object]], dict[str, Any]] | None:
    """What makes preferences of rows; None for rows without a verdict."""
    if {CHOSEN, REJECTED} <= set(names):
        return None
    for form, change in zip(VERDICTS, (_of_talks, _of_openai), strict=True):
        if all(row.keys() >= form for row in sample):
            return change
    rivals = rival_answers(names, sample)
    if rivals is None:
        return None

    def of_rivals(row: Mapping[str, object]) -> dict[str, Any]:
        first = _only_words(row[rivals.first_answer])
        second = _only_words(row[rivals.second_answer])
        changed = {**row, **_judged(Pair(first, second), _winner(row, rivals))}
        if PROMPT in row:
            changed[PROMPT] = _only_words(row[PROMPT])
        return changed

    return of_rivals


def _winner(row: Mapping[str, object], rivals: Rivals) -> int | None:
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


def _of_openai(row: Mapping[str, object]) -> dict[str, Any]:
    """A row of OpenAI's preferences."""
    turns = row[INPUT]
    if isinstance(turns, dict):
        turns = turns.get("messages")
    changed = {**row, PROMPT: turns}
    changed[CHOSEN] = row[PREFERRED]
    changed[REJECTED] = row[OTHER]
    return changed


def _of_talks(row: Mapping[str, object]) -> dict[str, Any]:
    """A row of two conversations that begin with the same question."""
    first_talk, second_talk = (list_in(row[name]) for name in TALKS)
    if not first_talk or not second_talk:
        return {**row, PROMPT: [], **_judged(Pair("", ""), None)}
    *prompt, first_turn = first_talk
    *other_prompt, second_turn = second_talk
    changed = {**row, PROMPT: prompt}
    if prompt != other_prompt:
        changed[CHOSEN] = LeftOut(SEVERAL_ANSWERS)
        changed[REJECTED] = LeftOut(SEVERAL_ANSWERS)
        return changed
    answers = Pair(words_of(first_turn), words_of(second_turn))
    verdict = str(row[WINNER]).strip().lower()
    return {**changed, **_judged(answers, WINNERS.get(verdict))}
