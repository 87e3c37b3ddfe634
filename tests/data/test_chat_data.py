"""Questions and answers: every row accounted for, no duplicates, no question on both sides."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import catalog
from runner.check.validate import load
from runner.data.conversation_formats import Conversation, pair, rendered
from runner.data.items import drawn, hashes
from runner.data.report import rows_of
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import prepare, translate
from runner.tools.problem import Stop
from tests.conftest import ROOT

REAL = (
    Path(os.environ.get("RECIPE_SHARED", ROOT.parent / "shared")) / "data" / "survival" / "qa.jsonl"
)
ROWS = [
    {"topic": "Knots", "question": "How do I tie a bowline?", "answer": "Make a loop."},
    {
        "topic": "Knots",
        "question": "How do I tie a bowline?",
        "answer": "The rabbit comes out of its hole.",
    },
    {"topic": "Knots", "question": "How  do I tie a BOWLINE?", "answer": "With patience."},
    {"topic": "Knots", "question": "What is a bight?", "answer": "A bend in the rope."},
    {"topic": "Fire", "question": "What is tinder?", "answer": "Dry, fine fuel."},
    {"topic": "Fire", "question": "What is tinder?", "answer": "Dry, fine fuel."},
    {"topic": "Fire", "question": "What is kindling?", "answer": " "},
    {"topic": "Fire", "question": "How do I put it out?", "answer": "With water, twice."},
]


def one_set(path=None, **other):
    """A data set as a preparer of conversations reads it."""
    return {
        "form": "columns",
        "hub": None,
        "revision": "main",
        "subset": None,
        "split": "train",
        "path": str(path) if path else None,
        "question": "For [topic], [question]",
        "answer": "[answer]",
    } | other


def wanted(path=None, **other):
    """What a preparer of conversations reads, of one data set; `other` is of the set or of all."""
    of_set = one_set(path)
    return {
        "kind": "chat",
        "special_tokens": asdict(catalog.chat_template("chatml")),
        "sets": [
            of_set
            | {
                name: other.pop(name)
                for name in list(other)
                if name in (*of_set, "drop_system", "thinking_field", "answered_by")
            }
        ],
        "system_prompt": "You know.",
        "validation_share": 0.2,
        "max_lost_share": 1.0,
        "seed": 42,
        "sequence_len": 1024,
    } | other


def written(tmp_path, name: str, rows=ROWS) -> Path:
    path = tmp_path / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        from datasets import Dataset

        Dataset.from_list(rows).to_parquet(str(path))
    return path


def table(folder: Path, side: str):
    from datasets import Dataset

    return Dataset.from_parquet(str(folder / f"{side}.parquet"), cache_dir=str(folder / "cache"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    report = prepare(wanted(written(tmp_path, name)), tmp_path / "out")
    assert (report.rows_in, report.duplicates, dict(report.dropped)) == (
        8,
        1,
        {"the question or the answer is empty": 1},
    )
    assert report.distinct == 4
    assert report.train_rows + report.validation_rows == 6
    rows = [*table(tmp_path / "out", "train"), *table(tmp_path / "out", "validation")]
    assert set(rows[0]) == {"full-question", "answer", "messages"}
    assert {row["full-question"] for row in rows} >= {
        "For Knots, How do I tie a bowline?",
        "For Fire, What is tinder?",
    }
    assert rows[0]["messages"] == [
        {"role": "system", "content": "You know."},
        {"role": "user", "content": rows[0]["full-question"]},
        {"role": "assistant", "content": rows[0]["answer"]},
    ]


def test_a_dataset_repository_is_read_like_the_hub(tmp_path, monkeypatch):
    """A folder `owner/name` is what the datasets library takes for a repository when there is no
    network."""
    repository = tmp_path / "owner" / "questions"
    repository.mkdir(parents=True)
    written(repository, "train.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    report = prepare(wanted(hub="owner/questions"), tmp_path / "out")
    assert (report.rows_in, report.duplicates, report.source) == (
        8,
        1,
        "owner/questions on the hub",
    )


def test_single_files_of_a_repository_are_read(tmp_path, monkeypatch):
    repository = tmp_path / "owner" / "questions"
    (repository / "more").mkdir(parents=True)
    written(repository, "train.jsonl")
    (repository / "more" / "other.jsonl").write_text('{"nothing": 1}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    report = prepare(wanted(hub="owner/questions", files=("train.*",)), tmp_path / "out")
    assert (report.rows_in, report.duplicates) == (8, 1)


def test_a_dataset_that_cannot_be_had_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Stop, match="`owner/none-such` cannot be loaded"):
        prepare(wanted(hub="owner/none-such"), tmp_path / "out")


def test_a_bad_line_is_named_by_its_number_and_kept_out(tmp_path, golden_message):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    lines[2:2] = ["{broken", "[1, 2]", '{"topic": "x"}', ""]
    path.write_text("\n".join(lines))
    report = prepare(wanted(path), tmp_path / "out")
    assert [number for number, _ in report.bad_lines] == [3, 4, 5]
    assert report.rows_in == 11
    golden_message("\n".join(line for line in report.lines() if " line " in line))


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_half_a_character_is_a_bad_line(tmp_path, ending, golden_message):
    """JSON allows the escape of half a character; no tokenizer takes it, and no file can be written
    with it."""
    path = tmp_path / f"rows.{ending}"
    lines = [json.dumps(row) for row in ROWS]
    lines[1:1] = [
        json.dumps(ROWS[0] | {"question": "How \ud83d?"}),
        json.dumps(ROWS[0] | {"question": "How \U0001f600?"}),
    ]
    path.write_text("\n".join(lines) if ending == "jsonl" else f"[{','.join(lines)}]")
    report = prepare(wanted(path), tmp_path / "out")
    ((number, reason),) = report.bad_lines
    assert (number, "\\ud83d" in reason) == (2, True)
    golden_message(reason)
    assert report.distinct == 5


def test_a_bad_csv_line_is_named_by_its_number(tmp_path, golden_message):
    path = tmp_path / "rows.csv"
    path.write_text('topic,question,answer\nA,"one\ntwo",x\nB,only two\nC,three,y\nD,four,z\n')
    report = prepare(wanted(path), tmp_path / "out")
    ((number, reason),) = report.bad_lines
    assert number == 4
    golden_message(reason)
    assert report.train_rows + report.validation_rows == 3


def test_too_few_rows_are_an_error_with_the_report(tmp_path, golden_message):
    with pytest.raises(Stop, match="Too few rows") as stop:
        prepare(wanted(written(tmp_path, "rows.jsonl", ROWS[:2])), tmp_path / "out")
    golden_message(stop.value)
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_prepared_data_is_not_prepared_again_unless_something_changed(tmp_path):
    path = written(tmp_path, "rows.jsonl")
    prepare(wanted(path), tmp_path / "out")
    before = (tmp_path / "out" / "train.parquet").stat().st_mtime_ns
    prepare(wanted(path), tmp_path / "out")
    assert (tmp_path / "out" / "train.parquet").stat().st_mtime_ns == before
    prepare(wanted(path, seed=1), tmp_path / "out")
    assert (tmp_path / "out" / "train.parquet").stat().st_mtime_ns != before


def test_a_recipe_says_whose_tokens_are_counted():
    def asked(*options: str) -> dict:
        recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(options))
        return translate(recipe, Place("c", "d", "r", "s")).stages[-1].data["tokenizer"]

    bases = [
        asked(),
        asked("model.base=Qwen/Qwen2.5-7B-Instruct"),
        asked(f"model.revision={'c0ffee' * 6}c0ff"),
    ]
    assert all(bases.count(base) == 1 for base in bases), bases


@pytest.mark.parametrize("change", ["name", "revision", "file"])
def test_rows_counted_with_another_tokenizer_are_prepared_anew(change, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "tokenizer.json").write_text("{}")
    bases = {"file": str(tmp_path / "local")}
    asked = {"tokenizer": {"base": bases.get(change, "a/b"), "revision": "main"}}
    other = {
        "tokenizer": asked["tokenizer"]
        | {"name": {"base": "a/c"}, "revision": {"revision": "v2"}}.get(change, {})
    }
    file = written(tmp_path, "rows.jsonl")

    class Letters:
        name_or_path, length = "letters", 1

        def __call__(self, texts, add_special_tokens):
            return {"input_ids": [list(text) * self.length for text in texts]}

    letters = Letters()

    def longest(wanted_rows):
        return prepare(
            wanted_rows, tmp_path / "out", tokenizer_for=lambda texts: letters
        ).token_lengths["max"]

    first = longest(wanted(file, **asked))
    letters.length = 2
    assert longest(wanted(file, **asked)) == first
    if change == "file":
        (tmp_path / "local" / "tokenizer.json").write_text("{ }")
    assert longest(wanted(file, **other)) == 2 * first


def test_somebody_elses_parquet_is_never_written_over(tmp_path, golden_message):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.parquet").write_bytes(b"precious")
    with pytest.raises(Stop, match="Parquet") as stop:
        prepare(wanted(written(tmp_path, "rows.jsonl")), tmp_path / "out")
    golden_message(stop.value)
    assert (tmp_path / "out" / "train.parquet").read_bytes() == b"precious"


def test_rows_longer_than_the_sequence_are_left_out_and_counted(tmp_path):
    class Words:
        """Counts words, as a tokenizer counts tokens."""

        name_or_path = "words"

        def __call__(self, texts, add_special_tokens):
            return {"input_ids": [text.split() for text in texts]}

    report = prepare(
        wanted(written(tmp_path, "rows.jsonl"), sequence_len=18),
        tmp_path / "out",
        tokenizer_for=lambda texts: Words(),
    )
    assert report.dropped["longer than 18 tokens"] >= 1
    # Training reads rows at most as long as the longest that is kept, which memory is planned by.
    assert rows_of(report, {}).longest == 16 < 18 < report.token_lengths["max"]
    assert report.train_rows + report.validation_rows == 6 - report.dropped["longer than 18 tokens"]


def split(rows, share, seed):
    is_validation = drawn(hashes([row.group for row in rows], f"{seed}\n"), share)
    train = [row for row, other in zip(rows, is_validation, strict=True) if not other]
    return train, [row for row, other in zip(rows, is_validation, strict=True) if other]


def made(question: str, answer: str) -> Conversation:
    return Conversation(pair(question, answer))


pairs = st.lists(
    st.builds(
        made,
        st.sampled_from(["a", "A ", " a", "b", "c", "d  e", "D e", "f", "g", "h"]),
        st.text(max_size=3),
    ),
    min_size=2,
)


@given(pairs, st.floats(0.01, 0.5), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_no_question_is_on_both_sides_and_no_row_is_lost(rows, share, seed):
    train, validation = split(rows, share, seed)
    assert not {pair.group for pair in train} & {pair.group for pair in validation}
    assert sorted(map(str, train + validation)) == sorted(map(str, rows))
    if len({pair.group for pair in rows}) > 1:
        assert train and validation


def test_the_split_takes_the_asked_share():
    rows = [made(f"q{index}", "a") for index in range(1000)]
    train, validation = split(rows, 0.1, 42)
    assert (len(train), len(validation)) == (900, 100)
    assert split(rows, 0.1, 42) == (train, validation)
    assert split(rows, 0.1, 43) != (train, validation)


def test_one_more_row_does_not_redraw_the_split():
    rows = [made(f"q{index}", "a") for index in range(1000)]
    before = {pair.group for pair in split(rows, 0.1, 42)[1]}
    after = {pair.group for pair in split([*rows, made("another", "a")], 0.1, 42)[1]}
    assert len(before & after) >= 98


def test_chatml_is_what_axolotls_template_gives():
    from axolotl.utils.chat_templates import get_chat_template
    from jinja2 import Template

    conversation = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]
    axolotls = Template(get_chat_template("chatml")).render(
        messages=conversation, add_generation_prompt=False
    )
    assert rendered(catalog.chat_template("chatml"), conversation).strip() == axolotls.strip()


@pytest.mark.skipif(not REAL.is_file(), reason="the real rows are not on this machine")
def test_the_real_set_is_what_it_is_known_to_be(tmp_path):
    report = prepare(wanted(REAL, validation_share=0.1), tmp_path / "out")
    assert (report.rows_in, report.duplicates, report.distinct) == (2845, 0, 1727)
    assert report.train_rows + report.validation_rows == 2845
    assert 270 <= report.validation_rows <= 285


def test_conversations_come_back_from_the_spool_as_they_went_in(tmp_path):
    """In a process of its own, which must not load pandas: every process that reads rows would."""
    code = (
        "import sys; from pathlib import Path; import numpy as np; from runner.data import chat, items;"
        "from runner.data.conversation_formats import Conversation, Turn, pair;"
        "said = [Conversation(pair('wie heißt 水?', '🔥 \\0')), Conversation(pair('plain', 'text')),"
        " Conversation((Turn('system', 'é'), Turn('user', 'q'), Turn('assistant', '', '{}')), '[]')];"
        f"spool = items.spool([(one, 1, 0) for one in said], 42, Path({str(tmp_path / 'rows')!r}));"
        "assert 'pandas' not in sys.modules;"
        "assert list(spool.items(np.arange(3))) == said; assert list(spool.items(np.array([1]))) == said[1:2]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_survival_sample_is_like_the_rows_that_it_replaces():
    """As long as the catalog counted the real rows, with their topics; and none of them is
    copied."""
    sample, real = read_lines(ROOT / "recipes" / "data" / "survival-sample.jsonl"), read_lines(REAL)
    facts = catalog.dataset("cahlen/offline-practical-skills-qa-synthetic")
    lengths = [len(f"For {row['topic']}, {row['question']}{row['answer']}") for row in sample]
    assert statistics.mean(lengths) == pytest.approx(facts["characters"], rel=0.1)
    assert statistics.pstdev(lengths) == pytest.approx(facts["spread"], rel=0.2)
    assert max(lengths) < facts["high"]
    assert len({row["question"] for row in sample}) < 0.8 * len(sample)
    if real:
        answers, theirs = ([len(row["answer"]) for row in rows] for rows in (sample, real))
        assert statistics.mean(answers) == pytest.approx(statistics.mean(theirs), rel=0.05)
        assert {row["topic"] for row in sample} == {row["topic"] for row in real}
        long_answers = {row["answer"] for row in real if len(row["answer"]) > 60}
        assert not long_answers & {row["answer"] for row in sample}


def read_lines(file: Path) -> list[dict[str, str]]:
    """The rows of a JSONL file; none if it is not here."""
    return (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if file.is_file()
        else []
    )
