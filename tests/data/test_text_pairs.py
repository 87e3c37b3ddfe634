"""Questions and answers in text files, as people write them down."""

from __future__ import annotations

import pytest

from runner.data import text_pairs
from runner.data.chat_logs import is_text_chat
from runner.data.row_files import Bad

NAMES = ("bees", "drones", "combs", "honey", "wax")
PAIRS = [(f"Why do {name} need care?", f"Look at {name} once a week.") for name in NAMES]


def pairs_of(folder, text: str, ending: str = ".txt") -> list[tuple[str, str]] | None:
    """The pairs of a text; None if it is laid out otherwise."""
    file = folder / f"notes{ending}"
    file.write_text(text, encoding="utf-8")
    if not text_pairs.holds_pairs(file):
        return None
    rows = [row for _, row in text_pairs.rows_of(file)]
    return [(row["question"], row["answer"]) for row in rows if not isinstance(row, Bad)]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"Q: {question}\nA: {answer}" for question, answer in PAIRS),
        "\n".join(f"**Q{number}.** {q}\n**A{number}.** {a}\n" for number, (q, a) in enumerate(PAIRS)),
        "Frequent questions\n\n" + "\n\n".join(f"{q}\n\n{a}" for q, a in PAIRS),
        "\n".join(f"## {question}\n{answer}\n" for question, answer in PAIRS),
        "\n".join(f"{number}. {q}\n{a}\n" for number, (q, a) in enumerate(PAIRS, 1)),
        "\n".join(f"**{question}**\n\n{answer}\n" for question, answer in PAIRS),
    ],
)  # fmt: skip
def test_questions_with_what_stands_below_them(text, tmp_path):
    assert pairs_of(tmp_path, text) == PAIRS


@pytest.mark.parametrize("mark", text_pairs.MARKS)
def test_a_term_and_its_definition_on_each_line(mark, tmp_path):
    terms = [(name, f"what we call {name}") for name in NAMES]
    lines = [f"- {term}{mark}{definition}" for term, definition in terms]
    assert pairs_of(tmp_path, "\n".join(["# Words", "", *lines])) == terms


@pytest.mark.parametrize(
    "text",
    [
        "Bees hum.\n\nWhy? Nobody asks.\n\n" + "They fly, and they sleep.\n\n" * 20,
        "\n".join(f"In garden {name}, which is ours: look at it once a week." for name in NAMES),
        "\n".join(f"{name} {name} {name}, look at it." for name in NAMES),
        "",
    ],
)
def test_prose_holds_no_pairs(text, tmp_path):
    assert pairs_of(tmp_path, text) is None


def test_people_who_answer_each_other_are_a_chat_and_no_glossary(tmp_path):
    text = "\n".join(f"Anna: Why {name}?\nBen: Because of {name}." for name in NAMES)
    assert pairs_of(tmp_path, text) is None
    assert is_text_chat(tmp_path / "notes.txt")


def test_a_question_without_an_answer_is_a_row_that_is_reported(tmp_path):
    blocks = [f"Q: {question}\nA: {answer}" for question, answer in PAIRS * 4]
    blocks[2] = "Q: What now?\nA:"
    pairs = pairs_of(tmp_path, "\n".join(blocks))
    assert len(pairs) == 20
    assert pairs[2] == ("What now?", "")


def test_each_pair_has_the_line_of_its_question(tmp_path):
    file = tmp_path / "faq.txt"
    file.write_text("FAQ\n\n" + "\n\n".join("\n".join(pair) for pair in PAIRS), encoding="utf-8")
    assert [line for line, _ in text_pairs.rows_of(file)] == [3, 6, 9, 12, 15]


GUIDE = """# Bees

What people ask.

## How do I open a hive?

Slowly.

```
# is this a heading?
```

### What if it rains?

Wait.

## Why do bees dance?

They show the way.
"""


def guide(count):
    return "".join(GUIDE.replace("?", f" {number}?") for number in range(count))


def test_all_that_is_below_a_heading_that_asks_is_its_answer(tmp_path):
    file = tmp_path / "guide.md"
    file.write_text(guide(2), "utf-8")
    first, second, *others = [row for _, row in text_pairs.rows_of(file)]
    assert first["question"] == "How do I open a hive 0?"
    assert first["answer"].startswith("Slowly.\n\n```\n# is this a heading 0?\n```")
    assert first["answer"].endswith("### What if it rains 0?\n\nWait.")
    assert second == {"question": "Why do bees dance 0?", "answer": "They show the way."}
    assert len(others) == 2


def test_a_text_with_other_headings_beside_those_that_ask_is_a_text(tmp_path):
    file = tmp_path / "guide.md"
    others = "".join(f"## Part {number}\n\n{LONG}\n\n{LONG}\n\n" for number in range(20))
    file.write_text(guide(2) + others, "utf-8")
    assert not text_pairs.holds_pairs(file)


LONG = "Bees live in hives, and look for flowers all day long."


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("**{question}**  \n{answer}\n\n", ".md"),
        ("<details>\n<summary><b>{question}</b></summary>\n\n{answer}\n\n</details>\n\n", ".md"),
        ("{question}\n---------------\n\n{answer}\n\n", ".txt"),
    ],
)
def test_questions_in_bold_in_details_and_above_lines(text, ending, tmp_path):
    written = "".join(text.format(question=question, answer=answer) for question, answer in PAIRS)
    assert pairs_of(tmp_path, written, ending) == PAIRS
