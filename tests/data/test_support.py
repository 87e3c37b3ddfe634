"""Which demo questions and prompts rows support, by shared words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.check.validate import examine, load
from runner.data import support
from runner.plan import EngineConfig, learned_from
from runner.recipe.overrides import from_options
from runner.recipe.reading import read
from runner.scenarios import place, translate
from runner.scenarios.preparing import write_rows
from tests.conftest import RECIPES, ROOT

REAL = (
    Path(os.environ.get("RECIPE_SHARED", ROOT.parent / "shared")) / "data" / "survival" / "qa.jsonl"
)
SURVIVAL = ROOT / "recipes" / "survival.yaml"
SAMPLE = ROOT / "recipes" / "data" / "survival-sample.jsonl"
RULE_OF_3S = "What is the rule of 3s in survival?"
FOREIGN = "Which mortgage has the lowest interest rate?"
SAILING = """You are a sailing instructor on a large schooner. Explain halyards, sheets, winches, jibing, tacking, reefing
the mainsail, the genoa, the spinnaker, mooring, anchoring, buoyage, tides and navigation lights to the crew."""
LOCAL = ("data.hub=", "data.revision=", "data.split=", "data.sample=", "limits=")


def texts_of(file: Path) -> list[str]:
    return [" ".join(json.loads(line).values()) for line in file.read_text("utf-8").splitlines()]


def judged(texts: list[str], questions: list[str], prompt: str = "") -> support.Support:
    judge = support.Support(questions, prompt)
    for text in texts:
        judge.add(text)
    return judge


def test_a_question_about_something_else_is_unsupported_and_every_paraphrase_is_not():
    asked = [question for _, question in load(SURVIVAL)[0].demo_questions]
    for file in filter(Path.is_file, (SAMPLE, REAL)):
        found = judged(texts_of(file), [*asked, RULE_OF_3S, FOREIGN]).unsupported_questions()
        assert found == [RULE_OF_3S, FOREIGN]


@pytest.mark.skipif(not REAL.is_file(), reason="the real rows are not here")
def test_the_other_real_rows_support_nearly_every_real_question():
    rows = [json.loads(line) for line in REAL.read_text("utf-8").splitlines()]
    alarms = []
    for question in {row["question"] for row in rows[::50]}:
        others = [" ".join(row.values()) for row in rows if row["question"] != question]
        alarms += judged(others, [question]).unsupported_questions()
    assert not alarms


def test_a_prompt_about_another_subject_is_unsupported_and_manners_are_not():
    texts = texts_of(SAMPLE)
    own = load(SURVIVAL)[0].data.system_prompt
    manners = """You are a careful and helpful assistant. Answer honestly and concisely, explain your reasoning, refuse
    harmful requests politely, and admit when you do not know."""
    assert [
        judged(texts, [], prompt).prompt_is_unsupported() for prompt in (own, manners, SAILING)
    ] == [
        False,
        False,
        True,
    ]


def test_few_rows_and_short_questions_are_not_judged():
    assert judged(texts_of(SAMPLE)[:10], [FOREIGN]).unsupported_questions() == []
    assert judged(texts_of(SAMPLE), ["Which mortgage?"]).unsupported_questions() == []


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if load(path)[0].demo_questions], ids=lambda path: path.stem
)
def test_a_starters_own_rows_support_its_questions_and_its_prompt(path):
    recipe = load(path)[0]
    if "songs" in recipe.data or recipe.rows == "text":
        pytest.skip("its rows are not questions and answers")
    file = recipe.folder / (recipe.data.get("sample") or recipe.data.path)
    rows = texts_of(file) if file.suffix == ".jsonl" else file.read_text("utf-8").splitlines()
    questions = [question for _, question in recipe.demo_questions]
    assert list(judged(rows, questions, recipe.data.get("system_prompt") or "").findings()) == []


def test_check_notes_what_no_row_of_a_local_file_supports(tmp_path, golden_message):
    (tmp_path / "mine.jsonl").write_bytes(SAMPLE.read_bytes())
    prompt = f"data.system_prompt={' '.join(SAILING.split())}"
    questions = "demo.questions=" + json.dumps(["How do you tie a clove hitch?", FOREIGN])
    local = (*LOCAL, f"data.path={tmp_path / 'mine.jsonl'}")
    notes = [
        one
        for one in examine(SURVIVAL, from_options((*local, prompt, questions)))
        if "supports" in one.message
    ]
    assert [note.severity for note in notes] == ["note", "note"]
    golden_message("\n".join(f"{note.message}\n{note.hint}" for note in notes))
    assert not [one for one in examine(SURVIVAL, from_options(local)) if "supports" in one.message]


def test_prepare_reports_it_and_another_question_prepares_nothing_again(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(SAMPLE.read_bytes())
    local = (*LOCAL, "openshift=", "serve=", f"data.path={tmp_path / 'mine.jsonl'}")

    def work_of(*questions: str) -> EngineConfig:
        recipe = load(SURVIVAL, from_options((*local, f"demo.questions={json.dumps(questions)}")))[
            0
        ]
        return translate(recipe, place(recipe)).stages[0].config

    def prepared(work: EngineConfig) -> list[str]:
        lines: list[str] = []
        data = {**work["data"], "tokenizer": None}
        write_rows(
            {**work, "out": str(tmp_path / "rows"), "data": data, "model": None}, lines.append
        )
        return [line for line in lines if "supports" in line]

    supported, foreign = (
        work_of("How do you tie a clove hitch?"),
        work_of("How do you tie a clove hitch?", FOREIGN),
    )
    assert prepared(supported) == []
    (found,) = prepared(foreign)
    assert FOREIGN in found and found in (tmp_path / "rows" / "report.txt").read_text("utf-8")
    assert dict(learned_from(supported)) == dict(learned_from(foreign))


@pytest.mark.parametrize("same_subject", [True, False])
def test_a_copy_keeps_prompt_and_demo_if_the_rows_of_ones_own_parquet_support_them(
    recipe_command, tmp_path, same_subject
):
    from datasets import Dataset

    lines = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    if same_subject:
        rows = [
            {"subject": row["topic"], "prompt": row["question"], "response": row["answer"]}
            for row in lines
        ]
    else:
        rows = [
            {
                "subject": "bread",
                "prompt": f"How long does loaf {n} rise?",
                "response": f"{n} hours.",
            }
            for n in range(60)
        ]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "mine.parquet"))
    columns = ("--set", "data.question=[prompt]", "--set", "data.answer=[response]")
    done = recipe_command(
        "new", "my", "--from", "survival", "--set", "data.path=mine.parquet", *columns, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    copy = read(tmp_path / "my.yaml").data
    assert ("system_prompt" in copy["data"]) == ("questions" in copy["demo"]) == same_subject
    assert ("asked about the old data" in done.stdout) == (not same_subject)
