"""Blocks: no token lost, none twice, every block full, and memory that does not grow with the
text."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import AutoTokenizer

from runner import catalog
from runner.data import blocks, data_sets, rows, tokenizers
from runner.data.tokenizers import Pretrained
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.data.test_conversation_formats import spreadsheet

sys.path.insert(0, str(ROOT / "benchmarks"))
import blocks_speed  # the benchmark's own pieces, on less text

SAMPLE = ROOT / "recipes" / "data" / "gemma-sample.txt"
DOCUMENTS = SAMPLE.read_text("utf-8").strip().split("\n\n")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.train(
        DOCUMENTS,
        tmp_path_factory.mktemp("tokenizer"),
        catalog.model("google/gemma-3-270m"),
        catalog.chat_template("chatml"),
        1024,
    )


ONE = data_sets.TextSet(
    hub=None, revision="main", subset=None, split="train", path=str(SAMPLE), text="text"
)
SETTINGS = data_sets.PlainText(
    sets=(ONE,), validation_share=None, max_lost_share=1, seed=42, tokenizer=Pretrained("google/gemma-3-270m"), sequence_len=64,
    effective_batch_size=4, epochs=1, warmup_steps=0, eval_steps=None,
)  # fmt: skip


def changed(**settings):
    """The settings with others in their place, of the one data set or of all."""
    of_set = {name: settings.pop(name) for name in list(settings) if hasattr(ONE, name)}
    return replace(SETTINGS, sets=(replace(ONE, **of_set),), **settings)


def column(file, name="input_ids") -> list[list[int]]:
    return parquet.read_table(file)[name].to_pylist()


def straight(documents, tokenizer) -> list[int]:
    """All tokens in one Python list, as nobody should do it with more than a page."""
    return [
        token
        for text in documents
        for token in [
            *tokenizer(text, add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
    ]


def test_blocks_are_the_documents_tokens_in_order_and_only_the_rest_is_dropped(tokenizer, tmp_path):
    counts = blocks.write(DOCUMENTS, tokenizer, 64, tmp_path / "b.parquet")
    line = straight(DOCUMENTS, tokenizer)
    rows = column(tmp_path / "b.parquet")
    assert {len(row) for row in rows} == {64}
    assert [token for row in rows for token in row] == line[: len(rows) * 64]
    assert (counts.documents, counts.tokens, counts.blocks) == (
        len(DOCUMENTS),
        len(line),
        len(line) // 64,
    )
    assert counts.dropped == len(line) % 64 == counts.tokens - counts.blocks * 64
    assert column(tmp_path / "b.parquet", "labels") == rows
    assert column(tmp_path / "b.parquet", "attention_mask") == [[1] * 64] * len(rows)


def test_a_document_longer_than_a_block_is_not_cut_off(tokenizer, tmp_path):
    long = " ".join(DOCUMENTS)
    counts = blocks.write([long], tokenizer, 32, tmp_path / "b.parquet")
    assert counts.blocks > 50
    assert [token for row in column(tmp_path / "b.parquet") for token in row] == straight(
        [long], tokenizer
    )[: counts.blocks * 32]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 700), max_size=30),
    block_len=st.sampled_from([1, 2, 7, 64]),
    group=st.integers(1, 300),
)
def test_any_portions_make_the_same_blocks(sizes, block_len, group):
    """Also across the edges of the groups of rows in which the file is written."""
    line = np.arange(sum(sizes), dtype=np.int32)
    known, blocks.GROUP_TOKENS = blocks.GROUP_TOKENS, group
    counts = blocks.BlockCounts()
    try:
        portions = np.split(line, np.cumsum(sizes))
        made = [part.tolist() for part in blocks.cut(portions, block_len, counts)]
    finally:
        blocks.GROUP_TOKENS = known
    assert counts.blocks == len(line) // block_len
    assert [token for group in made for row in group for token in row] == list(
        range(counts.blocks * block_len)
    )


def test_documents_stay_in_order_whatever_thread_tokenises_them(tokenizer, monkeypatch):
    monkeypatch.setattr(blocks, "BATCH_CHARACTERS", 10)
    documents = [f"document {number}" for number in range(500)]
    found = list(blocks.tokenise(documents, tokenizer, tokenizer.eos_token_id))
    assert [tokenizer.decode(tokens[:-1]) for tokens in found] == documents
    assert {int(tokens[-1]) for tokens in found} == {tokenizer.eos_token_id}


def test_the_source_is_read_only_as_far_as_the_blocks_go(tokenizer, tmp_path):
    """A rehearsal takes the first blocks of a text without end."""

    def endless():
        while True:
            yield from DOCUMENTS

    counts = blocks.write(endless(), tokenizer, 64, tmp_path / "b.parquet", most_blocks=10)
    assert counts.blocks == 10
    assert len(column(tmp_path / "b.parquet")) == 10


def test_a_failure_leaves_no_file(tokenizer, tmp_path):
    def broken():
        yield DOCUMENTS[0]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        blocks.write(broken(), tokenizer, 8, tmp_path / "b.parquet")
    assert list(tmp_path.iterdir()) == []


def test_the_blocks_are_those_of_datasets_map_with_python_lists(tmp_path):
    from transformers import AutoTokenizer

    blocks_speed.make_text(tmp_path / "t.jsonl", 1)
    blocks_speed.make_tokenizer(tmp_path / "t.jsonl", tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))
    found = {}
    for way in (blocks_speed.blocks, blocks_speed.lists):
        folder = tmp_path / way.__name__
        folder.mkdir()
        way(tmp_path / "t.jsonl", tokenizer, folder)
        found[way.__name__] = {
            name: column(folder / "blocks.parquet", name) for name in ("input_ids", "labels")
        }
    assert len(found["blocks"]["input_ids"]) > 50
    assert found["blocks"] == found["lists"]


@pytest.mark.long
def test_four_times_the_text_takes_no_more_memory(tmp_path):
    """The benchmark does it with 10 and 100 MB."""
    for size in (1, 4):
        blocks_speed.make_text(tmp_path / f"{size}.jsonl", size)
    blocks_speed.make_tokenizer(tmp_path / "1.jsonl", tmp_path / "tokenizer")
    small, large = (
        blocks_speed.in_a_process("blocks", tmp_path / f"{size}.jsonl", tmp_path / "tokenizer")
        for size in (1, 4)
    )
    assert large["tokens"] > 3.5 * small["tokens"]
    assert large["peak_mb"] <= 1.1 * small["peak_mb"]


def texts_of(file, tokenizer) -> str:
    return tokenizer.decode([token for row in column(file) for token in row])


@pytest.mark.parametrize(
    "ending", ["txt", "jsonl", "json", "csv", "tsv", "parquet", "xlsx", "texts", "saved"]
)
def test_every_kind_of_file_gives_the_same_blocks(ending, tokenizer, tmp_path):
    from datasets import Dataset

    rows = Dataset.from_dict({"id": list(range(len(DOCUMENTS))), "text": DOCUMENTS})
    file = tmp_path / f"d.{ending}"
    if ending == "txt":
        file.write_text("\n\n\n".join(DOCUMENTS) + "\n")
    elif ending == "json":
        file.write_text(json.dumps(rows.to_list()))
    elif ending == "tsv":
        rows.to_csv(str(file), sep="\t")
    elif ending == "xlsx":
        spreadsheet(file, [["id", "text"], *(list(row.values()) for row in rows)])
    elif ending == "texts":
        file = tmp_path / "texts"
        for number, document in enumerate(DOCUMENTS):
            name = file / f"part-{number // 10}" / f"{number:03}.{'md' if number % 2 else 'txt'}"
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_text(document)
        (file / "notes.json").write_text("[]")
    elif ending == "saved":
        file = tmp_path / "saved"
        rows.save_to_disk(str(file))
    else:
        {"jsonl": rows.to_json, "csv": rows.to_csv, "parquet": rows.to_parquet}[ending](str(file))
    report = blocks.prepare(
        changed(path=str(file)), tmp_path / "out", tokenizer_for=lambda texts: tokenizer
    )
    assert report.train["documents"] == len(DOCUMENTS)
    line = straight(DOCUMENTS, tokenizer)
    assert column(tmp_path / "out" / "train.parquet") == [
        line[start : start + 64] for start in range(0, len(line) - 63, 64)
    ]


def test_a_text_in_a_folder_that_is_no_utf_8_is_named_and_an_empty_folder_is_said(
    tokenizer, tmp_path, golden_message
):
    folder = tmp_path / "texts"
    folder.mkdir()
    settings = changed(path=str(folder))
    with pytest.raises(Stop) as stop:
        blocks.prepare(settings, tmp_path / "out", tokenizer_for=lambda texts: tokenizer)
    golden_message(str(stop.value).replace(str(tmp_path), "<folder>"))
    (folder / "a.txt").write_text("\n".join(DOCUMENTS))
    (folder / "b.md").write_bytes(b"\xff\xfe\x00")
    report = blocks.prepare(settings, tmp_path / "out", tokenizer_for=lambda texts: tokenizer)
    assert report.bad_lines == [(2, "b.md is not text in UTF-8")]


def test_texts_of_a_folder_are_read_in_their_own_encodings(tmp_path):
    (tmp_path / "a.txt").write_text("Die Königin verlässt den Stock im Frühling.", "cp1252")
    (tmp_path / "b.txt").write_text("Die Königin bleibt im Winter.", "utf-8")
    texts = [row["text"] for _, row in rows.TextFolder("text").rows(tmp_path)]
    assert texts == [
        "Die Königin verlässt den Stock im Frühling.",
        "Die Königin bleibt im Winter.",
    ]


def test_a_share_of_the_documents_is_kept_for_validation(tokenizer, tmp_path):
    report = blocks.prepare(
        changed(validation_share=0.3, sequence_len=8),
        tmp_path,
        tokenizer_for=lambda texts: tokenizer,
    )
    sides = [report.train["documents"], report.validation["documents"]]
    assert sum(sides) == len(DOCUMENTS)
    assert 0.07 <= sides[1] / len(DOCUMENTS) <= 0.6
    train, validation = (
        texts_of(tmp_path / f"{side}.parquet", tokenizer) for side in ("train", "validation")
    )
    for text in DOCUMENTS:
        opening = text[:40]
        assert (opening in train) != (opening in validation)


def test_a_changed_tokenizer_of_the_same_size_makes_new_blocks(tokenizer, tmp_path):
    folder = tmp_path / "tokenizer"
    tokenizer.save_pretrained(folder)
    keys = []
    for end in ("", "\n"):
        file = folder / "tokenizer.json"
        file.write_text(file.read_text("utf-8") + end, "utf-8")
        again = AutoTokenizer.from_pretrained(folder)
        keys.append(
            blocks.prepare(
                changed(), tmp_path / "out", tokenizer_for=lambda texts, own=again: own
            ).key
        )
    assert keys[0] != keys[1]


def test_one_more_document_does_not_redraw_the_others(tokenizer, tmp_path):
    report = blocks.TextReport()
    before = list(blocks.documents(changed(validation_share=0.3), "validation", report))
    more = tmp_path / "more.txt"
    more.write_text("Something new.\n\n" + SAMPLE.read_text("utf-8"))
    after = list(
        blocks.documents(changed(validation_share=0.3, path=str(more)), "validation", report)
    )
    assert set(before) <= set(after)


def test_without_validation_data_there_is_no_validation_file(tokenizer, tmp_path, golden_message):
    (tmp_path / "validation.parquet").write_bytes(b"of an earlier run")
    report = blocks.prepare(SETTINGS, tmp_path, tokenizer_for=lambda texts: tokenizer)
    assert not (tmp_path / "validation.parquet").exists()
    assert report.validation == {}
    golden_message("\n".join(line for line in report.lines() if "validation" in line))


def test_rows_without_text_are_counted_and_bad_lines_are_named(tokenizer, tmp_path, golden_message):
    file = tmp_path / "d.jsonl"
    good = [json.dumps({"text": text}) for text in DOCUMENTS]
    file.write_text("\n".join([*good, '{"text": ""}', '{"other": 1}', '{"text": [1]}', "{broken"]))
    report = blocks.prepare(
        changed(path=str(file)), tmp_path / "out", tokenizer_for=lambda texts: tokenizer
    )
    assert list(report.skipped.values()) == [1, 1, 1, 1]
    golden_message("\n".join(report.skipped))
    assert report.bad_lines[0][0] == len(DOCUMENTS) + 4


def test_preparing_again_changes_nothing_and_another_length_changes_all(tokenizer, tmp_path):
    def prepare(**settings):
        blocks.prepare(changed(**settings), tmp_path, tokenizer_for=lambda texts: tokenizer)
        return (tmp_path / "train.parquet").stat().st_mtime_ns

    first = prepare()
    assert prepare() == first
    assert prepare(sequence_len=32) != first
    assert {len(row) for row in column(tmp_path / "train.parquet")} == {32}


def test_too_little_text_says_how_much_there_is(tokenizer, tmp_path, golden_message):
    file = tmp_path / "d.txt"
    file.write_text("Only a word or two.")
    with pytest.raises(Stop) as stop:
        blocks.prepare(
            changed(path=str(file)), tmp_path / "out", tokenizer_for=lambda texts: tokenizer
        )
    assert f" {len(straight(['Only a word or two.'], tokenizer))} tokens" in stop.value.text
    golden_message(stop.value)


def test_where_no_text_is_left_the_reasons_are_shown(tokenizer, tmp_path, golden_message):
    file = tmp_path / "d.jsonl"
    file.write_text('{"text": ["a list"]}\n' + '{"text": "broken \\ud83d"}\n')
    with pytest.raises(Stop) as stop:
        blocks.prepare(
            changed(path=str(file)), tmp_path / "out", tokenizer_for=lambda texts: tokenizer
        )
    assert "column `text`" in stop.value.text and "line 2: " in stop.value.text
    golden_message(stop.value)


def test_a_parquet_file_of_no_rows_has_too_little_text(tokenizer, tmp_path):
    file = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), file)
    with pytest.raises(Stop, match=" 0 tokens"):
        blocks.prepare(
            changed(path=str(file)), tmp_path / "out", tokenizer_for=lambda texts: tokenizer
        )


def test_too_little_text_for_validation_says_how_to_give_more(tokenizer, tmp_path, golden_message):
    file = tmp_path / "d.txt"
    file.write_text("\n\n".join(["The same words each time. " * 20] * 5))
    with pytest.raises(Stop) as stop:
        blocks.prepare(
            changed(path=str(file), validation_share=0.001),
            tmp_path / "out",
            tokenizer_for=lambda texts: tokenizer,
        )
    assert "validation text" in stop.value.text and "`data.validation_share`" in stop.value.text
    golden_message(stop.value)


def test_a_tokenizer_learns_from_a_long_word_in_parts(tmp_path):
    """From one of a million characters it would learn for hours."""
    words = tokenizers.train(["l" * 5000], tmp_path, None, catalog.chat_template("chatml"), 1024)
    # And the space before it.
    assert max(map(len, words.get_vocab())) <= tokenizers.LONGEST_WORD + 1
    assert words.decode(words("l" * 5000)["input_ids"]) == "l" * 5000


def test_the_report_says_when_the_intervals_do_not_fit_the_text(
    tokenizer, tmp_path, golden_message
):
    report = blocks.prepare(
        changed(warmup_steps=500, eval_steps=500, validation_share=0.3),
        tmp_path,
        tokenizer_for=lambda texts: tokenizer,
    )
    notes = "\n".join(report.notes)
    assert "`train.warmup_steps` is 500" in notes and "`train.eval_steps` is 500" in notes
    golden_message(notes)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=200))
def test_a_histogram_has_every_count_in_one_of_a_few_equal_bins(counts):
    bins = blocks.histogram(np.array(counts))
    assert (
        1 <= len(bins) <= 24
        and bins[0][0] == min(counts)
        and len({last - first for first, last, _ in bins}) == 1
    )
    assert [first for first, _, _ in bins[1:]] == [last + 1 for _, last, _ in bins[:-1]]
    assert [sum(first <= count <= last for count in counts) for first, last, _ in bins] == [
        rows for *_, rows in bins
    ]
    assert bins[-1][2] > 0
