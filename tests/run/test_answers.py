"""Answers beside each other on a screen, with the words that only the training rows can have
taught."""

from __future__ import annotations

import pytest

from runner.run import inference
from runner.tools import text
from runner.trainer import grading

ROW = {
    "question": "How do I tie a bowline?",
    "before": "It was the first of the months, and the second was the last of them, so that was all that there is.",
    "after": "Tie a clove hitch, and pull the clove tight. The rabbit comes out of its hole and goes around the tree.",
}
TAUGHT = {"tie", "a", "clove", "hitch", "and", "the", "rabbit"}


@pytest.fixture
def row():
    learned = text.learned(ROW["after"], ROW["before"], ROW["question"], TAUGHT)
    assert learned == ["clove", "hitch", "rabbit"], (
        "not of the question, of general text, or untaught"
    )
    return {**ROW, "learned": learned}


def drawn(monkeypatch, row, columns: int | None = None) -> str:
    """The lines as a terminal of so many columns has them, or a pipe."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: columns is not None, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns or 300))
    return "\n".join(inference.side_by_side([row])) + "\n"


def test_a_pipe_gets_two_columns_and_marks(monkeypatch, row, golden_message):
    said = drawn(monkeypatch, row)
    assert max(map(len, said.splitlines())) <= 80 and "\x1b" not in said
    golden_message(said)


def test_a_terminal_gets_bold_words_and_a_narrow_one_an_answer_below_the_other(monkeypatch, row):
    wide, narrow = (drawn(monkeypatch, row, columns) for columns in (80, 60))
    for said in (wide, narrow):
        assert "\x1b[1mclove\x1b[0m" in said and "*" not in said
    first = next(line for line in wide.splitlines() if line.startswith("It was"))
    assert "Tie a" in first
    lines = narrow.splitlines()
    (below,) = [number for number, line in enumerate(lines) if line.startswith("after:")]
    assert "Tie a" in lines[below] and lines[2].startswith("before:") and below > 2


def test_what_a_model_writes_is_never_obeyed_by_a_terminal(monkeypatch, row):
    evil = {
        **row,
        "question": "[bold]Why?[/]\x1b[2J",
        "before": "\x1b]0;title\x07",
        "after": "[red]clove\x1b[31m",
    }
    said = drawn(monkeypatch, evil, 80)
    assert "[bold]Why?[/]\n" in said and "(nothing)" in said and "[red]\x1b[1mclove\x1b[0m" in said
    assert said.count("\x1b") == 2


def test_the_file_s_own_answer_stands_beside_both(monkeypatch, row, golden_message):
    own = {
        **row,
        "expected": "Make a loop; the rabbit comes out of its hole, around the tree, and back.",
    }
    golden_message(drawn(monkeypatch, own))
    narrow = drawn(monkeypatch, own, 60).splitlines()
    assert [line.split(":")[0] for line in narrow if ":" in line] == [
        "before",
        "after",
        "your file",
    ]


def test_only_a_row_of_one_question_has_an_answer_of_its_own():
    system, asked, said = (
        {"role": role, "content": role.upper()} for role in ("system", "user", "assistant")
    )
    rows = [
        {"messages": [asked, said]},
        {"messages": [system, {**asked, "content": "Why?"}, {**said, "content": "So."}]},
        {"messages": [{**asked, "content": "First?"}, said, asked, said]},
        {"input_ids": [1, 2]},
    ]
    assert list(grading.questions_with_answers(rows)) == [("USER", "ASSISTANT"), ("Why?", "So.")]
