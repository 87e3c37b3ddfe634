"""Answers to questions of the rows, counted as right or wrong; and what people read of it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from runner.trainer import grading, results
from runner.trainer.grading import QuestionAndAnswer
from runner.trainer.records import GradedAnswers, Summary
from runner.trainer.settings import Demo

TAUGHT = [
    QuestionAndAnswer(f"Which taught number is {number}?", f"It is the number {number}.")
    for number in range(40)
]
NEW = [
    QuestionAndAnswer(f"Which new number is {number}?", f"It is the number {number}.")
    for number in range(20)
]


@pytest.mark.parametrize(
    ("answer", "expected", "is_right"),
    [
        (
            "A honey bee has five eyes.",
            "a honey bee has five eyes",
            True,
        ),  # case and punctuation do not count
        (
            "A honey bee has ten eyes.",
            "A honey bee has five eyes.",
            False,
        ),  # a short answer has all words
        (
            "It opens on each Monday at 9 in the morning.",
            "It opens each Monday at 9 in the morning.",
            True,
        ),
        (
            "It opens each Monday at 8 in the morning.",
            "It opens each Monday at 9 in the morning.",
            False,
        ),  # each number
        (
            "Morning the in 9 at Monday each opens it.",
            "It opens each Monday at 9 in the morning.",
            False,
        ),  # the order
        ("", "A honey bee has five eyes.", False),
        ("Bees make honey.", "A honey bee has five eyes.", False),
        ("Blue.", "Blue.", True),
        ("Red.", "Blue.", False),
    ],
)
def test_an_answer_is_right_if_it_has_most_words_in_their_order(answer, expected, is_right):
    assert grading.is_right(answer, expected) is is_right


def whole(answer: str) -> str:
    return answer


def test_two_of_three_questions_are_taught_and_evenly_spaced():
    asked = []

    def answer(question: str) -> str:
        asked.append(question)
        number = question.rpartition(" ")[2].rstrip("?")
        return f"It is the number {number}." if "taught" in question else "I do not know."

    graded = grading.grade(answer, whole, TAUGHT, NEW, 30)
    assert graded == GradedAnswers(taught_right=20, taught_asked=20, new_right=0, new_asked=10)
    assert asked[:3] == [TAUGHT[0].question, NEW[0].question, TAUGHT[2].question]
    assert graded.shares == {"taught_answers": 1.0, "new_answers": 0.0}


def test_without_held_out_rows_all_questions_are_taught_and_with_few_rows_there_are_fewer():
    assert grading.grade(lambda question: "", whole, TAUGHT, [], 30).counts == {
        "taught_answers": "0 of 30"
    }
    assert grading.grade(lambda question: "", whole, TAUGHT[:4], NEW[:1], 30).counts == {
        "taught_answers": "0 of 4",
        "new_answers": "0 of 1",
    }
    assert not grading.grade(lambda question: "", whole, TAUGHT, NEW, 0)


def test_a_slow_model_is_asked_fewer_questions_of_both_kinds(monkeypatch):
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(grading.time, "monotonic", lambda: float(next(clock)))
    graded = grading.grade(lambda question: "", whole, TAUGHT, NEW, 30)
    assert 0 < graded.taught_asked < 10 and 0 < graded.new_asked < 10


def test_a_long_answer_is_compared_as_far_as_the_longest_answer_goes():
    long = [QuestionAndAnswer("Tell me all.", "one two three four five six seven eight")]
    graded = grading.grade(
        lambda question: "one two three", lambda answer: " ".join(answer.split()[:3]), long, [], 1
    )
    assert graded.taught_right == 1


def test_the_counts_are_a_sentence(golden_message):
    for case, counts in (
        ("both", GradedAnswers(17, 20, 2, 10)),
        ("taught alone", GradedAnswers(17, 20, 0, 0)),
        ("new alone", GradedAnswers(0, 0, 2, 10)),
    ):
        golden_message(counts.sentence, case)
    assert GradedAnswers().sentence == "" and GradedAnswers().has_learned is None
    assert GradedAnswers(10, 20).has_learned and not GradedAnswers(9, 20).has_learned


def test_a_summary_keeps_the_counts():
    summary = Summary.of(asdict(Summary(answers=GradedAnswers(17, 20, 2, 10))))
    assert summary.answers == GradedAnswers(17, 20, 2, 10)


def write_rows(path, questions: list[str]) -> dict[str, str]:
    parquet.write_table(pa.table({"full-question": questions}), path)
    return {"path": str(path)}


def test_the_demo_asks_three_taught_questions_and_two_new_ones(tmp_path):
    config = {
        "datasets": [
            write_rows(tmp_path / "train.parquet", [f"Taught {number}?" for number in range(30)])
        ],
        "test_datasets": [
            write_rows(tmp_path / "validation.parquet", [f"New {number}?" for number in range(6)])
        ],
    }
    demo = Demo(
        base_model="base", system_prompt=None, turn_end=None, of_rows=5, graded_questions=30
    )
    asked = results.with_questions(demo, config, tmp_path).questions
    assert asked == ["Taught 0?", "Taught 10?", "Taught 20?", "New 0?", "New 3?"]
    # Without held-out rows, all are taught; of rows without answers, all are new; and the recipe's
    # own questions stay.
    without = results.with_questions(demo, {"datasets": config["datasets"]}, tmp_path).questions
    assert len(without) == 5 and all(question.startswith("Taught") for question in without)
    plain = results.with_questions(replace(demo, graded_questions=0), config, tmp_path).questions
    assert len(plain) == 5 and all(question.startswith("New") for question in plain)
    own = replace(demo, questions=["Why?"])
    assert results.with_questions(own, config, tmp_path).questions == ["Why?"]
