"""The demo's questions belong to the data: the recipe's own, else what validation rows ask; a
starter's are noted beside other data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from runner.check.validate import changed, examine, load
from runner.recipe.overrides import from_options
from runner.recipe.reading import read
from runner.recipe.recipe import Override
from runner.run import inference
from runner.scenarios import rehearsal
from runner.scenarios.render import emit
from runner.tools.problem import Problem
from runner.trainer import results
from runner.trainer.settings import Demo
from tests.conftest import ROOT, setting_of

SURVIVAL = ROOT / "recipes" / "survival.yaml"


def test_a_demo_without_questions_asks_what_validation_rows_ask(tmp_path):
    questions = [
        "What is rye?",
        "",
        *(f"How long does loaf {number} rise?" for number in range(9)),
        "Why? " * 100,
    ]
    file = tmp_path / "validation.parquet"
    parquet.write_table(pa.table({"full-question": questions, "answer": questions}), file)
    config = {"test_datasets": [{"path": str(file)}]}
    nothing = Demo(base_model="m", system_prompt=None, turn_end=None)
    asked = results.with_questions(replace(nothing, of_rows=5), config, tmp_path).questions
    assert len(set(asked)) == 5 and set(asked) <= set(questions[:-1]) and "What is rye?" in asked
    assert max(map(questions.index, asked)) > 6, "from everywhere among the rows"
    few = results.with_questions(replace(nothing, of_rows=50), config, tmp_path).questions
    assert few == [question for question in questions[:-1] if question]
    # A recipe's own questions stay; a stage that is asked by hand alone has none; neither has one
    # without such rows.
    own = replace(nothing, questions=["mine?"], of_rows=5)
    assert results.with_questions(own, config, tmp_path) == own
    assert results.with_questions(nothing, config, tmp_path) == nothing
    assert not results.with_questions(replace(nothing, of_rows=5), {}, tmp_path).questions


def test_of_blocks_of_text_the_beginnings_of_whole_documents_are_gone_on_with():
    words = SimpleNamespace(
        eos_token_id=0,
        decode=lambda tokens, skip_special_tokens: " ".join(f"w{token}" for token in tokens),
    )
    long = list(range(10, 60))
    block = [5, 6, 0, *long, 0, 7, 8, 0, *long]
    beginning = " ".join(f"w{token}" for token in long[: results.WORDS])
    assert list(results._beginnings(block, words)) == [beginning, beginning]


def test_a_recipe_without_questions_says_so_to_the_training_process():
    def demo(*options: str) -> str:
        (text,) = [
            one.text
            for one in emit(load(SURVIVAL, from_options(options))[0])
            if one.path.endswith("axolotl.yaml")
        ]
        return text

    assert "of_rows" not in demo() and "of_rows: 5" in demo("demo=")


@pytest.fixture
def bread(tmp_path) -> Path:
    row = {"topic": "bread", "question": "How long?", "answer": "Two hours."}
    (tmp_path / "bread.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "bread.jsonl"


def test_a_starters_questions_beside_other_data_are_noted_at_their_line(bread, golden_message):
    gone = ["data.hub=", "data.revision=", "data.sample=", f"data.path={bread}"]

    def said(*options: str) -> list[Problem]:
        return [
            one for one in examine(SURVIVAL, from_options(options)) if "the starter" in one.message
        ]

    (note,) = said(*gone)
    assert (setting_of(note), note.severity) == ("-", "note")
    golden_message(note)
    assert (
        said()
        == said(*gone, "demo=")
        == said(*gone, 'demo.questions=["How long does it rise?"]')
        == []
    )
    assert said(*gone[:-1], "data.path=data/survival-sample.jsonl") == []


@pytest.mark.parametrize(
    ("starter", "left"),
    [("survival", {"max_new_tokens": 300}), ("lyrics", {"max_new_tokens": 300})],
)
def test_a_copy_for_other_data_has_no_questions_of_the_starter(
    recipe_command, tmp_path, starter, left
):
    row = {"topic": "a", "question": "b", "answer": "c", "instruction": "d", "lyrics": "e"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n")
    done = recipe_command(
        "new", "my", "--from", starter, "--set", "data.path=mine.jsonl", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "my.yaml").data["demo"].keys() == left.keys()
    assert "(asked about the old data)" in done.stdout


def test_other_rows_for_a_rehearsal_are_asked_about_in_place_of_the_recipes(bread):
    recipe = load(SURVIVAL)[0]
    own = rehearsal(recipe.scenario)
    assert not changed(recipe, own.before_data(recipe, str(bread)))[0].demo_questions
    assert changed(recipe, own.before_data(recipe, None))[0].demo_questions == recipe.demo_questions


def test_whoever_asks_later_asks_what_the_run_has_asked(tmp_path):
    folder = SimpleNamespace(path=tmp_path)
    recipe = load(SURVIVAL)[0]
    assert inference.questions_of(recipe, folder) == [
        question for _, question in recipe.demo_questions
    ]
    silent = load(SURVIVAL, [Override("demo.questions", None, None, "a test")])[0]
    assert inference.questions_of(silent, folder) == []
    (tmp_path / "demo.json").write_text(json.dumps({"questions": ["How long?"]}))
    assert inference.questions_of(silent, folder) == ["How long?"]
