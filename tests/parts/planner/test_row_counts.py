"""Rows: counted and sampled in every kind of file, and what follows from how long they are."""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import catalog
from runner.catalog.tables import table as catalog_table
from runner.data import prepared
from runner.parts.planner import duration, memory, row_counts, samples
from runner.parts.planner.row_counts import RowLengths
from tests.parts.planner.test_estimate import work

TALK = {"question": "[question]", "answer": "[answer]", "share": 1.0}
WORDS = ("bread", "of", "cartwheel", "dynamo", "the")


def some(count: int = 3000) -> list[dict[str, str]]:
    """Rows of very different lengths, the short ones first."""
    drawn = random.Random(1)
    sizes = sorted(int(drawn.lognormvariate(3, 1)) + 1 for _ in range(count))
    return [
        {"question": f"{number}?", "answer": " ".join(drawn.choices(WORDS, k=size))}
        for number, size in enumerate(sizes)
    ]


def write(folder: Path, kind: str, many: list[dict[str, str]]) -> Path:
    """The rows as a file or folder of a kind."""
    import pyarrow as pa
    from openpyxl import Workbook
    from pyarrow import parquet

    file = folder / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in many))
    elif kind == "json":
        file.write_text(json.dumps(many, indent=1))
    elif kind in ("csv", "tsv"):
        with file.open("w", newline="") as opened:
            table = csv.DictWriter(opened, list(many[0]), delimiter="," if kind == "csv" else "\t")
            table.writeheader()
            table.writerows(many)
    elif kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(many), file, row_group_size=1000)
    elif kind == "xlsx":
        book = Workbook()
        book.active.append(list(many[0]))
        for row in many:
            book.active.append(list(row.values()))
        book.save(file)
    else:
        from datasets import Dataset, DatasetDict

        file = folder / "saved"
        made = Dataset.from_list(many)
        (
            DatasetDict({"train": made, "other": made.select(range(7))})
            if kind == "splits"
            else made
        ).save_to_disk(file)
    return file


KINDS = ("jsonl", "json", "csv", "tsv", "parquet", "xlsx", "saved", "splits")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_are_counted_and_their_lengths_taken_from_everywhere(tmp_path, kind):
    many = some()
    file = write(tmp_path, kind, many)
    found = row_counts.known(
        {"sets": [TALK | {"path": str(file), "split": "train"}], "validation_share": 0.1}, tmp_path
    )
    assert (found.training, found.validation) == (2700, 300)
    true = RowLengths.counted(
        [len("".join(row.values())) / row_counts.BYTES_A_TOKEN + 10 for row in many]
    )
    assert found.lengths.mean == pytest.approx(true.mean, rel=0.05)
    assert found.lengths.spread == pytest.approx(true.spread, rel=0.15)
    assert found.lengths.high == pytest.approx(true.high, rel=0.15)
    assert str(file) in found.source and "of which" not in found.source


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt"])
def test_of_a_large_file_a_part_is_enough(tmp_path, monkeypatch, kind):
    for name, size in {
        "READ": 200_000,
        "READ_OF_TABLE": 200_000,
        "MOST": 1000,
    }.items():
        monkeypatch.setattr(samples, name, size)
    many = some()
    random.Random(2).shuffle(many)
    if kind == "txt":
        file = tmp_path / "rows.txt"
        file.write_text("\n\n".join(row["answer"] for row in many))
    else:
        file = write(tmp_path, kind, many)
    there = samples.sample(file, text_column="text" if kind == "txt" else None)
    assert there.about and there.count == pytest.approx(3000, rel=0.1)
    assert 0 < len(there.rows) <= 1000


def test_rows_in_turns_are_both_looked_at(tmp_path):
    """As in files that have the better answer in one line and the worse in the next."""
    many = [
        {"question": "?", "answer": "no" if number % 2 else "yes " * 100}
        for number in range(40_000)
    ]
    there = samples.sample(write(tmp_path, "jsonl", many))
    assert there.count == 40_000 and 1000 < len(there.rows) <= samples.MOST
    assert sum(len(row["answer"]) > 2 for row in there.rows) == pytest.approx(
        len(there.rows) / 2, rel=0.02
    )


@pytest.mark.parametrize("kind", ["json", "parquet", "xlsx", "csv", "nothing"])
def test_what_cannot_be_read_is_said_and_no_traceback(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    file.write_bytes(b"\x00\xff{" * 10)
    found = row_counts.known({"sets": [TALK | {"path": str(file)}]}, tmp_path)
    assert found.training is None or kind == "csv"
    assert str(file) in found.source
    assert "--rows N" in found.source or kind == "csv"
    gone = row_counts.known({"sets": [TALK | {"path": str(tmp_path / "nowhere.jsonl")}]}, tmp_path)
    assert (
        gone.training is None and "the data file" in gone.source and "does not exist" in gone.source
    )


def test_rows_of_odd_values_end_in_no_traceback(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    deep = '{"messages": ' + "[" * 900 + "]" * 900 + "}"
    odd = [
        "{}",
        "[]",
        "1",
        "not JSON",
        '{"messages": null}',
        '{"messages": "\\ud83d"}',
        deep,
        "[" * 100_000,
    ]
    (tmp_path / "odd.jsonl").write_text("\n".join(odd))
    for name, count in (("empty", 0), ("odd", None)):
        for one in (TALK, {"form": "auto"}, {"form": "messages"}, {"text": "text"}):
            found = row_counts.known(
                {"sets": [{**one, "path": str(tmp_path / f"{name}.jsonl")}]}, tmp_path
            )
            assert count is None or found.training == count
    # An empty file beside another takes nothing from what is known of that.
    file = write(tmp_path, "jsonl", some(100))
    both = [TALK | {"path": str(path)} for path in (file, tmp_path / "empty.jsonl")]
    assert (
        row_counts.known({"sets": both}, tmp_path).lengths
        == row_counts.known({"sets": both[:1]}, tmp_path).lengths
    )
    (tmp_path / "state.json").write_text("[]")
    assert (
        "is not valid for its file extension"
        in row_counts.known({"sets": [TALK | {"path": str(tmp_path)}]}, tmp_path).source
    )


def test_what_is_counted_of_a_row_is_what_the_model_reads(tmp_path):
    row = {
        "id": "x" * 4200,
        "question": "q" * 42,
        "answer": "a" * 84,
        "lyrics": "word " * 84,
        "rejected": "r" * 42,
    }
    row |= {"instruction": "i" * 42, "output": "o" * 42, "text": "i" * 42 + "o" * 42}
    row["messages"] = [{"role": "", "content": "c" * 42}] * 3
    file = write(tmp_path, "jsonl", [row])

    def tokens(**data) -> RowLengths:
        one = {"path": str(file), **data.pop("one", {})}
        return row_counts.known({"sets": [one], **data}, tmp_path).lengths

    assert tokens(one=TALK).mean == pytest.approx(30 + 10)
    assert tokens(one=TALK, system_prompt="s" * 42).mean == pytest.approx(30 + 10 + 10 + 5)
    assert tokens(one={"form": "messages"}).mean == pytest.approx(30 + 15)
    assert tokens(one={"form": "auto"}).mean == pytest.approx(30 + 15)
    assert tokens(one={"form": "alpaca"}).mean == pytest.approx(20 + 10)
    assert tokens(one={"text": "question"}, kind="plain-text").mean == pytest.approx(10 + 1)
    # An answer and the other are two rows that the model reads.
    pair = {"prompt": "[question]", "chosen": "[answer]", "rejected": "[rejected]"}
    assert tokens(one=pair) == RowLengths.counted([30 + 10, 20 + 10])
    songs = {
        "lyrics": "lyrics",
        "instruction_form": "f" * 42,
        "min_words": 20,
        "max_words": 90,
        "count": 5,
    }
    assert tokens(songs=songs).mean == pytest.approx(100 + 10 + 10)
    # Columns that are not there: nothing is known of lengths.
    assert not tokens(one={"question": "[other]", "answer": "[answer]"})


def test_a_file_with_fewer_songs_than_are_asked_for_has_no_more(tmp_path):
    many = [{"lyrics": "la " * (10 if number % 2 else 30)} for number in range(100)]
    file = write(tmp_path, "jsonl", many)
    songs = {
        "lyrics": "lyrics",
        "instruction_form": "",
        "min_words": 20,
        "max_words": 90,
        "count": 5000,
    }
    assert (
        row_counts.known({"sets": [{"path": str(file)}], "songs": songs}, tmp_path).training == 50
    )
    assert (
        row_counts.known(
            {"sets": [{"path": str(file)}], "songs": songs | {"count": 20}}, tmp_path
        ).training
        == 20
    )


def test_images_are_counted_as_they_are_read(tmp_path):
    from runner.parts.planner.samples import CIFAR_RECORD

    (tmp_path / "batches.meta.txt").write_text("a\nb\n")
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(bytes(3 * CIFAR_RECORD))
    assert row_counts.known({"path": str(tmp_path), "kind": "images"}, tmp_path).training == 6
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in ("train-1", "train-2", "test-1"):
        shutil.move(write(parts, "parquet", some(10)), parts / f"{name}.parquet")
    assert row_counts.known({"path": str(parts), "kind": "images"}, tmp_path).training == 20
    assert not row_counts.known(
        {"path": str(parts / "train-1.parquet"), "kind": "images"}, tmp_path
    ).lengths


def test_a_count_given_by_hand_keeps_the_lengths_that_are_known(tmp_path):
    file = write(tmp_path, "jsonl", some())
    known = row_counts.known({"sets": [TALK | {"path": str(file)}]}, tmp_path)
    told = row_counts.known({"sets": [TALK | {"path": str(file)}]}, tmp_path, given_rows=50)
    assert told.training == 50 and told.lengths == known.lengths
    assert not row_counts.known(
        {"sets": [{"hub": "someone/unknown"}]}, tmp_path, given_rows=50
    ).lengths


def test_prepared_rows_count_as_long_as_the_file_is_the_same(tmp_path):
    file = write(tmp_path, "jsonl", some())
    data = {"sets": [TALK | {"path": str(file)}]}
    measured = RowLengths(100.0, 20.0, 170.0)
    made = prepared.PreparedRows(
        2500, 400, None, prepared.asked(data), measured, prepared.contents(data)
    )
    made.write(tmp_path)
    found = row_counts.known(data, tmp_path)
    assert (found.training, found.validation, found.lengths) == (2500, 400, measured)
    # Without a tokenizer nobody counts tokens: then the file's own lengths are better than the
    # whole sequence length.
    replace(made, lengths=RowLengths()).write(tmp_path)
    found = row_counts.known(data, tmp_path)
    assert (
        found.training == 2500
        and found.lengths == row_counts.known(data, tmp_path / "elsewhere").lengths
    )
    made.write(tmp_path)
    with file.open("a") as more:
        more.write('{"question": "new?", "answer": "yes"}\n')
    assert row_counts.known(data, tmp_path).training == 3001


def test_memory_is_that_of_the_longest_row_where_all_were_counted(tmp_path):
    file = write(tmp_path, "jsonl", some())
    data = {"sets": [TALK | {"path": str(file)}]}
    measured = RowLengths(500.0, 200.0, 1100.0)
    made = prepared.PreparedRows(
        2500, 400, None, prepared.asked(data), measured, prepared.contents(data), longest=1500
    )
    made.write(tmp_path)
    found = row_counts.known(data, tmp_path)
    assert found.longest == 1500
    # Without the count it is the longest of the rows that were examined.
    assert 0 < row_counts.known(data, tmp_path / "elsewhere").longest < 1500
    job = work(catalog.model("google/gemma-3-270m"), sequence_len=3072)
    told = replace(job, lengths=found.lengths, longest=found.longest)
    assert (job.most_tokens, told.most_tokens) == (3072, 1536)
    assert (
        replace(told, packing=True).most_tokens == replace(told, longest=9000).most_tokens == 3072
    )
    whole, less = memory.estimate(job), memory.estimate(told)
    assert less.peak.logits + less.peak.activations == pytest.approx(
        (whole.peak.logits + whole.peak.activations) / 2, rel=0.01
    )
    assert less.evaluation < whole.evaluation and less.state == whole.state


def test_lengths_of_the_catalog_hang_together():
    sets = catalog_table("datasets")
    assert len(sets) > 5
    for name, facts in sets.items():
        assert facts["rows"] and facts["source"], name
        if "characters" in facts:
            found = RowLengths(*(facts[part] for part in ("characters", "spread", "high")))
            # The 99th percentile is one that a distribution with this mean and spread can have.
            assert 2.3 < (found.high - found.mean) / found.spread < 3.98, name
            assert found.longest(1, 10**9) == pytest.approx(found.mean), name


def test_songs_are_nowhere_near_the_sequence_length():
    facts = catalog.dataset("rajtripathi/5M-Songs-Lyrics")
    data = {"songs": {"instruction_form": "x" * 70}, "system_prompt": "x" * 200}
    found = row_counts.of_catalog(facts, data)
    assert 400 < found.mean < 625 and 1060 < found.longest(24, 3072) < 1570 and found.high < 2240


# Against draws: rows of one length with a few others, of prose, with a long tail, and cut at a
# length.
DRAWS = {
    "alike": lambda drawn: drawn.gauss(160, 15),
    "prose": lambda drawn: drawn.gammavariate(4, 100),
    "a long tail": lambda drawn: drawn.lognormvariate(5, 0.9),
    "cut": lambda drawn: min(2048, drawn.gammavariate(1.6, 2000)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_longest_of_several_is_that_of_draws(name):
    drawn = random.Random(3)
    many = [DRAWS[name](drawn) for _ in range(8000)]
    found = RowLengths.counted(many)
    for count in (1, 2, 4, 8, 24):
        longest = sum(max(drawn.choices(many, k=count)) for _ in range(2000)) / 2000
        assert found.longest(count, 10**9) == pytest.approx(longest, rel=0.09), count


def test_padding_is_what_was_measured_of_the_survival_rows():
    """benchmarks/results/packing.txt: 500,416 tokens padded and 434,176 packed, of rows with 162 in
    the mean and 218 at most."""
    measured = RowLengths(161.5, 14.4, 200)
    padded = work(lengths=measured, micro_batch_size=8)
    assert padded.row_tokens == pytest.approx(500_416 / 2561, rel=0.05)
    packed = work(lengths=measured, rows=2561, packing=True, several=True)
    assert packed.packed(2561) == pytest.approx(434_176 / 1024, rel=0.02)


def test_a_preference_is_padded_to_the_longest_of_all_answers_and_to_no_multiple():
    pair = work(lengths=RowLengths(100.0, 0.0, 100.0), objective="dpo", micro_batch_size=2)
    assert pair.row_tokens == 100
    wide = RowLengths(400, 200, 1000)
    assert replace(pair, lengths=wide).row_tokens == pytest.approx(wide.longest(4, 1024))
    assert work(lengths=RowLengths(100.0, 0.0, 100.0)).row_tokens == 128


def test_rows_that_stand_in_one_do_not_see_each_other():
    lengths = RowLengths(200, 100, 500)
    packed = work(packing=True, several=True, lengths=lengths)
    assert packed.attended == 250 < packed.row_tokens == 1024
    blocks = replace(packed, several=False)
    assert blocks.attended == 1024
    assert duration.operations(packed, 1).linear == duration.operations(blocks, 1).linear
    assert duration.operations(packed, 1).attention < duration.operations(blocks, 1).attention / 4


def test_long_rows_leave_room_in_packed_ones():
    half = RowLengths(600, 10, 620)
    assert half.packed(1024) == pytest.approx(1, rel=0.01) and half.packed(1300) == pytest.approx(
        2, rel=0.01
    )
    assert RowLengths(10, 0, 10).packed(1000) == pytest.approx(100)


lengths = st.builds(
    lambda mean, share, far: RowLengths(mean, mean * share, mean * (1 + share * far)),
    st.floats(1, 5000),
    st.floats(0, 2),
    st.floats(0, 6),
)


@given(lengths, st.integers(1, 256), st.integers(64, 8192))
@settings(max_examples=30, deadline=None)
def test_more_rows_are_never_shorter_and_none_is_longer_than_allowed(some, count, limit):
    one, more = some.longest(1, limit), some.longest(count, limit)
    assert 0 < one <= limit * 1.0001 and more <= limit * 1.0001
    assert more >= one * 0.97
    assert one <= max(some.mean, 1) * 1.0001
    padded = some.longest(count, limit, 64)
    assert more - 1e-6 <= padded <= min(limit, more + 64) + 1e-6
    assert some.packed(limit) * one <= limit * 1.02
    assert math.isfinite(some.attended(limit))
    whole = RowLengths.mixed([(3, some), (1, some)])
    assert whole.mean == pytest.approx(max(some.mean, 1), rel=0.02)


def test_a_mixture_has_the_mean_and_the_tail_of_both():
    both = RowLengths.mixed([(900, RowLengths(100, 10, 124)), (100, RowLengths(1000, 100, 1240))])
    assert both.mean == pytest.approx(190, rel=0.01)
    assert both.spread == pytest.approx(272, rel=0.05) and both.high == pytest.approx(
        1128, rel=0.05
    )
