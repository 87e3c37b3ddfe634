"""Grading: how many questions of its rows a model answers as the rows do, those that it was taught
and new ones."""

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from runner.tools.text import words
from runner.trainer.records import GradedAnswers, evenly

RIGHT = 0.8  # the least similarity of a right answer
SHORT_WORDS = 6  # words; an answer up to this length is right or wrong as a whole
TAUGHT_SHARE = 2 / 3  # of the graded questions; the others are from held-out rows
# A model on a processor answers a few dozen questions in this time. The others are not asked.
MOST_SECONDS = 120


class QuestionAndAnswer(NamedTuple):
    """A row of one question, and its own answer."""

    question: str
    answer: str


def similarity(answer: str, expected: str) -> float:
    """The share of words that two answers have in common, in their order: 1 for the same words, 0
    for none. Case and punctuation do not count. It is the ratio of Python's difflib: twice the
    common words, by the words of both."""
    return difflib.SequenceMatcher(None, words(answer), words(expected), autojunk=False).ratio()


def is_right(answer: str, expected: str) -> bool:
    """Whether an answer has nearly all words of the expected one, in their order. A short answer
    must have all of them, and each number counts, because one other word makes another fact of
    them."""
    given_words = words(answer)
    expected_words = words(expected)
    if len(expected_words) <= SHORT_WORDS:
        return given_words == expected_words
    numbers = {word for word in expected_words if word.isdigit()}
    if not numbers.issubset(given_words):
        return False
    return similarity(answer, expected) >= RIGHT


def questions_with_answers(rows: Iterable[Mapping[str, Any]]) -> Iterator[QuestionAndAnswer]:
    """The question and the answer of each prepared row that has one of each. A question counts
    once, with its first answer."""
    known_questions = set[str]()
    for row in rows:
        turns = [turn for turn in row.get("messages") or () if turn["role"] != "system"]
        if [turn["role"] for turn in turns] != ["user", "assistant"]:
            continue
        question = turns[0]["content"]
        answer = turns[1]["content"]
        if question and answer and question not in known_questions:
            known_questions.add(question)
            yield QuestionAndAnswer(question, answer)


def grade(
    answer: Callable[[str], str],
    beginning: Callable[[str], str],
    taught: Sequence[QuestionAndAnswer],
    new: Sequence[QuestionAndAnswer],
    count: int,
) -> GradedAnswers:
    """Asks at most `count` questions, evenly spaced among the rows, and counts the right answers.

    answer: from a question to the model's answer. beginning: the part of a row's answer that fits
    into the longest answer, so that a long one can be right. taught, new: rows of training, and
    held-out rows. The time is limited by MOST_SECONDS; questions of both kinds alternate, so that
    both are asked."""
    if new:
        most_taught = round(count * TAUGHT_SHARE)
    else:
        most_taught = count
    asked_taught = evenly(taught, most_taught)
    asked_new = evenly(new, count - most_taught)
    counts = {"taught_asked": 0, "taught_right": 0, "new_asked": 0, "new_right": 0}
    deadline = time.monotonic() + MOST_SECONDS
    for of_taught, of_new in zip_longest(asked_taught, asked_new):
        for origin, row in (("taught", of_taught), ("new", of_new)):
            if row is None or time.monotonic() > deadline:
                continue
            counts[f"{origin}_asked"] += 1
            if is_right(answer(row.question), beginning(row.answer)):
                counts[f"{origin}_right"] += 1
    return GradedAnswers(**counts)
