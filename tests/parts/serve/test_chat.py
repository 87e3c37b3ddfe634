"""`recipe chat` in the terminal, and what it tells about its models, without models."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from runner import catalog
from runner.check.validate import load
from runner.data import packaged_models
from runner.parts.serve import chat, commands, introduction
from runner.parts.serve.introduction import OfferedQuestion
from runner.recipe.recipe import Override
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import RunManifest
from runner.scenarios.shared.rehearsal import REAL
from runner.trainer.records import GradedAnswers, Summary
from tests.conftest import ROOT

MUSEUM = ROOT / "recipes" / "museum.yaml"
SMALL = str(packaged_models.folder_of(catalog.packaged_model("small")))


class Echo:
    """Two models that repeat the question."""

    names, asked_with = ("original", "trained"), "a question"

    def ask(self, question, earlier):
        yield (f"old {question}", "")
        yield (f"old {question}", f"new {question} after {len(earlier)}")


def talk(monkeypatch, capsys, *lines: str) -> str:
    offered = [OfferedQuestion("Why?", "taught", "Because it rains."), OfferedQuestion("How?")]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    commands._talk(Echo(), offered)
    return capsys.readouterr().out


@pytest.mark.parametrize("ending", ["exit", "QUIT", "Bye", "/quit", " bye "])
def test_these_words_end_a_chat_in_the_terminal(ending, monkeypatch, capsys):
    answers = talk(monkeypatch, capsys, "Hello?", ending, "never asked")
    assert (
        "new Hello? after 0" in answers
        and "never asked" not in answers
        and "bye" not in answers.lower()
    )


def test_the_end_of_the_input_ends_a_chat_and_a_word_in_a_sentence_does_not(monkeypatch, capsys):
    assert "new Say bye now after 0" in talk(monkeypatch, capsys, "Say bye now")


def test_the_help_names_every_way_to_end_a_chat():
    assert commands.HELP.endswith("exit, quit, bye or ^D ends the chat.")


def test_the_answer_of_the_file_stands_beside_both_others(monkeypatch, capsys):
    asked = talk(monkeypatch, capsys, "/1", "/3", "/²", "Who?")
    first, others = asked.split("`/3` is not in the list.")
    assert "your file" in first and "Because it rains." in first and "new Why? after 0" in first
    assert (
        "`/²` is not in the list." in others
        and "new Who? after 1" in others
        and "your file" not in others
    )


def test_the_other_answer_is_announced_before_its_first_word():
    assert chat.unfinished(("", "")) == ("…", "(follows the other answer)")
    assert chat.unfinished(("A", "B")) == ("A", "B")
    assert chat.unfinished(("",)) == ("…",)


def test_questions_have_their_origin_and_their_rows_answer_and_those_of_rows_come_first(tmp_path):
    recipe = load(MUSEUM)[0]
    other, new, taught = (question for _, question in recipe.demo_questions[:3])
    rows = [
        {"question": new, "rows": "new", "expected": "N"},
        {"question": taught, "rows": "taught", "expected": "T"},
        {"question": "of an older recipe", "rows": "taught", "expected": "O"},
    ]
    (tmp_path / "demo_outputs").mkdir()
    (tmp_path / "demo_outputs" / "answers.json").write_text(json.dumps(rows))
    offered = introduction.questions(recipe, SimpleNamespace(path=tmp_path))
    assert offered[:3] == [
        OfferedQuestion(taught, "taught", "T"),
        OfferedQuestion(new, "new", "N"),
        OfferedQuestion(other),
    ]
    assert len(offered) == len(recipe.demo_questions)
    assert introduction.expected_answers(offered) == {taught: "T", new: "N"}
    assert [heading for heading, _ in introduction.by_origin(offered)] == [
        "Questions in the training rows",
        "Questions held back from training",
        "Other questions",
    ]
    assert introduction.by_origin([OfferedQuestion("Why?")]) == [("", [OfferedQuestion("Why?")])]


def folder(path, base_model, kind="run", substitutions=(), at="2026-11-28T12:00:00+00:00"):
    run = RunFolder(path, kind)
    run.mark("finished", recipe="museum", **run.made_with((), substitutions))
    Summary(
        base_model=str(base_model),
        proof={"kind": "conversations", "rows": 1054},
        answers=GradedAnswers(17, 20, 2, 10),
    ).write(path)
    RunManifest(at=at, model="HuggingFaceTB/SmolLM3-3B").write(path)
    return SimpleNamespace(path=path, run=run)


@pytest.mark.parametrize(
    ("base_model", "name"),
    [
        (SMALL, "SmolLM2-135M-Instruct"),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("/models/own", "own"),
        ("/runs/seven-b/pretrain/best_model", "the model of the stage `pretrain`"),
    ],
)
def test_a_chat_names_its_models_and_what_was_learned(base_model, name, tmp_path):
    assert introduction.about_models(folder(tmp_path, base_model)) == [
        f"original: {name}",
        "trained: on 1,054 rows, on 28 November 2026",
        "It answers 17 of 20 questions from your rows rightly, and 2 of 10 new ones.",
    ]


def test_the_twin_of_a_rehearsal_is_no_model_that_has_learned_answers(tmp_path):
    original, trained = introduction.about_models(
        folder(tmp_path, tmp_path / "scratch" / "twin", "rehearsal")
    )
    assert (
        original
        == "original: a tiny stand-in for HuggingFaceTB/SmolLM3-3B, so both answer in fragments"
    )
    assert trained.startswith("trained: on 1,054 rows")


def test_a_rehearsal_with_a_real_model_names_it(tmp_path):
    real = Override("model.base", None, "small", REAL, "a real model")
    lines = introduction.about_models(folder(tmp_path, SMALL, "rehearsal", [real]))
    assert lines[0] == "original: SmolLM2-135M-Instruct" and lines[2].startswith(
        "It answers 17 of 20"
    )


def test_a_run_without_records_has_nothing_to_tell(tmp_path):
    assert introduction.about_models(SimpleNamespace(path=tmp_path, run=RunFolder(tmp_path))) == []
