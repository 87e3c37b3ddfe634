"""What `recipe check` and `recipe new` say of files that are no recipes and hold no rows, as people
have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.check import data_file
from runner.check.validate import examine
from runner.commands.cli import _code

ROW = {"question": "Why do bees hum?", "answer": "They beat their wings 230 times a second."}
TALK = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
FILES = {
    "bees.csv": "question,answer\n" + f"{ROW['question']},{ROW['answer']}\n" * 3,
    "bees.jsonl": json.dumps(ROW),
    "list.json": json.dumps([ROW]),
    "talks.jsonl": json.dumps(TALK),
    "numbers.csv": "a,b\n1,2\n3,4\n",
    "broken.jsonl": "{",
    "notes.txt": "Bees hum.",
    "handbook.pdf": "%PDF-1.7",
    "letter.docx": "PK",
    "table.numbers": "PK",
    "all.rar": "Rar",
    "bee.JPG": "",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_check_of_a_file_of_data_says_what_it_is_and_what_to_do(
    name, folder, capsys, golden_message
):
    assert _code(["check", name]) == 1
    shown = capsys.readouterr()
    golden_message(f"{shown.out}\n{shown.err}")


def test_a_recipe_in_json_is_a_recipe(folder):
    Path("recipe.json").write_text(json.dumps({"scenario": "lora", "name": "x"}), "utf-8")
    assert all("not a recipe" not in problem.message for problem in examine("recipe.json"))


@pytest.mark.parametrize(
    "name", ["handbook.pdf", "table.numbers", "bee.JPG", "bes.csv", "https://example.org/bees.csv"]
)
def test_a_new_recipe_of_what_holds_no_rows_is_refused_with_the_way_out(
    name, folder, capsys, golden_message
):
    assert _code(["new", "mine", "--data", name, "--model", "small"]) == 1
    golden_message(capsys.readouterr().err.replace(str(folder), "<folder>"))
    assert not Path("mine.yaml").exists()


def test_a_missing_file_of_a_recipe_has_a_near_name(folder):
    recipe = {"scenario": "lora", "name": "x", "model": {"base": "small"}}
    recipe["data"] = {"path": "bes.csv"}
    Path("recipe.yaml").write_text(json.dumps(recipe), "utf-8")
    (problem,) = [each for each in examine("recipe.yaml") if "does not exist" in each.message]
    assert problem.hint.startswith("Did you mean `bees.csv`? ")


def test_a_field_inside_an_object_is_shown(tmp_path):
    (tmp_path / "faq.json").write_text(
        '[{"name": "Opening?", "acceptedAnswer": {"text": "At nine."}}]', encoding="utf-8"
    )
    assert "“Opening?” with “At nine.”" in data_file.problem_of(tmp_path / "faq.json").message
