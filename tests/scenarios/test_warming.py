"""Warming up: what a twin reads before it is trained, and what it leaves to be learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runner import catalog, scenarios
from runner.check.validate import changed, load
from runner.parts.evaluate.evaluate import general_documents
from runner.plan import Place
from runner.scenarios import rehearsal, translate
from runner.scenarios.shared import twin
from runner.tools import text
from tests import taught
from tests.conftest import ROOT

KNOT = "Lead the end around the post. Then pull it tight and look at it."


def test_an_apostrophe_inside_a_word_is_part_of_it():
    assert text.words("The dogs' clothesline’s o'clock, isn't 'it'?") == [
        "the", "dogs", "clothesline’s", "o'clock", "isn't", "it",
    ]  # fmt: skip
    assert twin.in_a_row("Don't stop me") == {("don't", "stop", "me")} and not twin.in_a_row(
        "Two words"
    )


def test_a_sentence_with_three_words_in_a_row_of_the_rows_is_left_out_and_so_is_code():
    documents = [
        f"{KNOT}\n\ndef knot(rope):\n    return rope\n\nShort.",
        "A knot that slips is no knot at all, she said.",
    ]
    assert list(twin.paragraphs(documents, set())) == [KNOT, documents[1]]
    taken = twin.in_a_row("They lead the END, around it goes")
    assert list(twin.paragraphs(documents, taken)) == [
        "Then pull it tight and look at it.",
        documents[1],
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The survival sample's rows as a rehearsal prepares them, and settings of a small twin with
    its tokenizer."""
    folder = tmp_path_factory.mktemp("warming")
    recipe = load(ROOT / "recipes" / "survival.yaml")[0]
    first = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))[0]
    place = Place(
        *(str(folder / name) for name in ("config", "data", "run", "scratch")), accelerator=False
    )
    wanted = twin.wanted(
        recipe.facts, catalog.chat_template("chatml"), 2, 42, folder / "base_model"
    )
    data = translate(first, place).stages[0].config["data"]
    scenarios.prepare(
        data,
        folder / "data",
        tokenizer_for=twin.tokenizer_for(wanted, general_documents()),
        sample_rows=240,
    )
    return folder, wanted


def warmed(prepared, monkeypatch) -> tuple[list[str], bytes]:
    """What a twin reads in a few steps, and its weights after them."""
    folder, wanted = prepared
    monkeypatch.setattr(twin, "STEPS", 12)
    read: list[str] = []

    def listening(model, *, tokenizer) -> None:
        model.register_forward_pre_hook(
            lambda module, arguments, named: read.extend(
                map(tokenizer.decode, named["input_ids"].tolist())
            ),
            with_kwargs=True,
        )
        twin.warm_up(
            model, tokenizer=tokenizer, documents=general_documents(), rows=folder / "data", seed=1
        )

    base = Path(wanted["folder"])
    for name in ("config.json", "model.safetensors"):
        (base / name).unlink(missing_ok=True)
    twin.build(wanted, listening)
    return read, (base / "model.safetensors").read_bytes()


def test_a_twin_reads_what_training_rows_ask_and_nothing_of_their_answers_or_of_validation_rows(
    prepared, monkeypatch
):
    read, weights = warmed(prepared, monkeypatch)
    folder = prepared[0]
    told = set().union(*map(twin.in_a_row, read))
    answers = [text for side in ("train", "validation") for text in taught.texts(folder, side)]
    asked = {
        side: set().union(*map(twin.in_a_row, questions(folder, side)))
        for side in ("train", "validation")
    }
    assert len(read) == 12 * twin.BLOCKS and len(told & asked["train"]) > 50
    assert not told & (asked["validation"] - asked["train"])
    # Only where one text ends and another begins may three words meet by chance.
    assert len(told & set().union(*map(twin.in_a_row, answers)) - asked["train"]) <= 3
    assert warmed(prepared, monkeypatch) == (read, weights), (
        "the same rows and seed make the same twin"
    )


def questions(folder: Path, side: str) -> list[str]:
    from pyarrow import parquet

    rows = parquet.read_table(folder / "data" / f"{side}.parquet").to_pylist()
    return [
        turn["content"]
        for row in rows
        for turn in row["messages"]
        if turn["role"] in ("user", "system")
    ]


def test_rows_that_are_the_general_text_itself_leave_the_weights_as_they_are_drawn(
    prepared, monkeypatch, tmp_path
):
    import pyarrow as pa
    from pyarrow import parquet

    documents = ["Every word of this sentence stands in the rows as well."]
    turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": documents[0]}]
    for side in ("train", "validation"):
        parquet.write_table(pa.table({"messages": [turns]}), tmp_path / f"{side}.parquet")
    import torch
    from transformers import AutoTokenizer

    layer = torch.nn.Linear(4, 4)
    before = json.dumps(layer.weight.tolist())
    tokenizer = AutoTokenizer.from_pretrained(prepared[1]["folder"])
    twin.warm_up(layer, tokenizer=tokenizer, documents=documents, rows=tmp_path, seed=1)
    assert json.dumps(layer.weight.tolist()) == before


def test_the_random_weights_of_a_whole_model_are_drawn_once_and_no_two_rows_are_alike():
    drawn = torch.Tensor.normal_
    with twin._drawing_once():
        weights = torch.nn.Linear(1024, 1500, dtype=torch.bfloat16).weight
        torch.nn.init.normal_(weights, std=0.02)
    assert torch.Tensor.normal_ is drawn
    assert weights.numel() > 5 * twin.DRAWN and len(torch.unique(weights.detach(), dim=0)) == 1500
    assert abs(float(weights.float().std()) - 0.02) < 0.001
    flat = weights.flatten()
    assert torch.equal(flat[: twin.DRAWN], flat[twin.DRAWN : 2 * twin.DRAWN])
