"""What `recipe check` says of the first rows of a local file: notes, with line numbers, and nothing
of what is personal."""

from __future__ import annotations

import json

import pytest
import yaml

from runner.check.validate import examine
from runner.tools.problem import errors_of
from tests.conftest import ROOT


def notes(folder, rows: list[str], **data):
    recipe = yaml.safe_load((ROOT / "recipes" / "survival.yaml").read_text())
    (folder / "rows.jsonl").write_text("\n".join(rows))
    recipe["data"] = {"path": "rows.jsonl", "question": "[q]", "answer": "[a]"} | data
    (folder / "my.yaml").write_text(yaml.safe_dump(recipe))
    problems = examine(folder / "my.yaml")
    return [
        problem
        for problem in problems
        if "rows of" in problem.message and problem.severity == "note"
    ]


def row(number: int, answer: str) -> str:
    return json.dumps({"q": f"What is {number}?", "a": answer})


GOOD = [
    row(n, f"The number {n} is one of many numbers, and number {n + 1} is the next.")
    for n in range(3)
]
CASES = {
    "broken": [
        *(row(n, f"{n} is one of many numbers.") for n in range(20)),
        "{broken",
    ],
    "half an exchange": [
        *(row(n, f"{n} is one of many numbers.") for n in range(20)),
        row(25, " "),
    ],
    "personal": [*GOOD, row(4, "Ask jane.doe@company.org about it.")],
    "two answers": [*GOOD, row(1, "The first of all odd numbers that are whole.")],
    "short": [row(n, "No." if n == 4 else f"{n} is one of many numbers.") for n in range(20)],
    "one-sided": [
        row(n, f"{'As I said' if n % 2 else f'Number {n}'} it is {n} and so on.") for n in range(30)
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_rows_are_looked_at(case, tmp_path, golden_message):
    (note,) = notes(tmp_path, CASES[case])
    assert note.line
    assert "jane" not in note.message
    golden_message(note.message.replace(str(tmp_path), "<tmp>") + "\n" + note.hint)


def test_good_rows_and_rows_behind_the_first_are_not_spoken_of(tmp_path):
    assert not notes(tmp_path, GOOD)
    others = [row(n, f"{n} is one of many numbers.") for n in range(200)]
    assert not notes(tmp_path, [*others, "{broken"])


def test_columns_that_are_not_there_are_said_once_and_not_for_each_row(tmp_path):
    assert not notes(tmp_path, GOOD, question="[none]")


def column_notes(folder, table: list[dict], answer: str) -> list[str]:
    """What is said of the columns of a table, in the order of the file."""
    recipe = yaml.safe_load((ROOT / "recipes" / "survival.yaml").read_text())
    names = ",".join(table[0])
    lines = [",".join(str(value) for value in row.values()) for row in table]
    (folder / "bees.csv").write_text("\n".join([names, *lines]))
    recipe["data"] = {"path": "bees.csv", "question": "[Frage]", "answer": answer}
    (folder / "my.yaml").write_text(yaml.safe_dump(recipe))
    return [
        f"{problem.message.replace(str(folder), '<tmp>')}\n{problem.hint}"
        for problem in examine(folder / "my.yaml")
        if "Did you mean `[" in (problem.hint or "")
    ]


BEES = [
    {
        "Nr": f"c{number}",
        "Frage": f"Warum summen Bienen im Monat {number}?",
        "Antwort": f"Sie bewegen die Flügel {number} Mal in der Sekunde.",
        "Bemerkung": "geprüft" if number == 7 else "",
    }
    for number in range(144)
]


@pytest.mark.parametrize("column", ["Bemerkung", "Nr"])
def test_a_column_that_cannot_be_meant_is_named_with_the_one_that_is(
    column, tmp_path, golden_message
):
    (note,) = column_notes(tmp_path, BEES, f"[{column}]")
    golden_message(note)


@pytest.mark.parametrize("answer", ["[Antwort]", "[Antwort] ([Bemerkung])", "[Frage]"])
def test_other_columns_are_not_doubted(answer, tmp_path):
    assert column_notes(tmp_path, BEES, answer) == []


def test_rows_are_judged_with_the_chat_template_of_the_recipe(tmp_path):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}}
    turns = [
        {"role": "user", "content": "What is 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "assistant", "content": "It is one."},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 12))
    recipe = yaml.safe_load((ROOT / "recipes" / "minimal" / "lora.yaml").read_text())
    recipe["model"] = {"base": "Qwen/Qwen3-0.6B"}
    recipe["data"] = {"path": "rows.jsonl", "form": "messages"}
    refusals = {}
    for template in ("auto", "tokenizer_default"):
        recipe["data"]["chat_template"] = template
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(recipe))
        refusals[template] = errors_of(examine(tmp_path / "my.yaml"))
    (refusal,) = refusals["auto"]
    assert "the chat template `chatml` does not write" in refusal.message
    assert refusal.allows == ("data.chat_template", "tokenizer_default")
    assert refusals["tokenizer_default"] == []


def test_rows_left_out_on_purpose_are_not_to_be_fixed(tmp_path):
    full = [row(n, f"{n} is one of many numbers.") for n in range(30)]
    empty, broken = notes(tmp_path, [*full, row(31, ""), "{broken", row(33, "")])
    assert "2 will be left out. The first is line 31: the question or the answer" in empty.message
    assert "Fix" not in empty.hint and empty.hint.startswith("A model learns nothing from half")
    assert "1 will be left out. The first is line 32: not JSON" in broken.message
    assert broken.hint.startswith("Fix them to learn them.")
