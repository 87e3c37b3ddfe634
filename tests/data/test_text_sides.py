"""Whether a short text has blocks of tokens for training and for validation."""

from __future__ import annotations

import json

import pytest

from runner.check.validate import examine
from runner.data.text_sides import fitting_block, split, texts_of

PARAGRAPH = "The queen walked over comb number {}, and the drones looked on. "


def test_each_document_is_on_one_side_and_the_same_as_when_rows_are_prepared():
    texts = [PARAGRAPH.format(number) for number in range(200)]
    training, validation = split(texts, 0.1, 42)
    assert training.documents + validation.documents == 200
    assert 10 <= validation.documents <= 30
    assert training.size_bytes + validation.size_bytes == sum(map(len, texts))
    assert [side.name for side in split(texts, 0, 42)] == ["training"]


def test_blocks_are_as_long_as_the_shorter_side_allows():
    texts = [PARAGRAPH.format(number) for number in range(200)]
    sides = split(texts, 0.1, 42)
    length = fitting_block(sides, 1024)
    assert length is not None
    assert 2 * length <= sides[1].likely_tokens < 4 * length
    assert fitting_block(sides, 64) == 64
    assert fitting_block(split(texts[:1], 0.1, 42), 1024) is None


def test_a_large_file_is_not_read(tmp_path, monkeypatch):
    file = tmp_path / "text.txt"
    file.write_text(PARAGRAPH)
    assert texts_of(file, "text") == [PARAGRAPH]
    monkeypatch.setattr("runner.data.text_sides.MOST_BYTES", 10)
    assert texts_of(file, "text") is None
    assert texts_of(tmp_path / "missing.txt", "text") is None


@pytest.mark.parametrize(
    ("paragraphs", "sequence_len", "severity"), [(4, 1024, "note"), (40, 1024, "note"), (40, 64, "")]
)  # fmt: skip
def test_a_check_says_what_prepare_would_refuse(paragraphs, sequence_len, severity, tmp_path):
    texts = [PARAGRAPH.format(number) for number in range(paragraphs)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    recipe = {
        "scenario": "causal-lm",
        "name": "x",
        "model": {"base": "small", "sequence_len": sequence_len},
        "data": {"path": "text.txt"},
        "machines": {"gpu": "none"},
        "train": {},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    problems = examine(str(tmp_path / "recipe.yaml"))
    found = [problem for problem in problems if "too few for one block" in problem.message]
    assert [problem.severity for problem in found] == ([severity] if severity else [])
