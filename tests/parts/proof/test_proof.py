"""What is trained, proven: on Axolotl's own rows, batches and trainer, and each fault that trains
without an error is named."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from runner import catalog
from runner.check.validate import changed, load
from runner.data import tokenizers
from runner.data.prepared import PreparedRows
from runner.parts.proof.judging import KINDS, Faults, Reader, _runs
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.recipe.recipe import CONVERSATIONS
from runner.run.launch import WITHOUT_GPU
from runner.scenarios import rehearsal, translate
from runner.scenarios.shared.axolotl import datasets
from runner.scenarios.shared.common import written
from runner.tools.files import write_text
from runner.trainer import fork_server
from runner.trainer.records import Proof
from tests.conftest import ROOT
from tests.parts.proof.planting import FAULTS

pytestmark = pytest.mark.heavy

SURVIVAL = ROOT / "recipes" / "survival.yaml"
PLANTING = "tests.parts.proof.planting"
# What a person must be told of; the words that name it.
NAMED = {
    "end_untrained": "end of an answer is not trained",
    "padding_trained": "Padding is trained",
    "rows_mixed": "Rows of one batch see each other",
    "no_generation_prompt": "differs from what the model gets when it is asked",
    "leak": "Validation rows are also in the training rows",
}


def with_config(recipe, stage, more):
    return written(recipe, replace(stage, config={**stage.config, **more}, files=()))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The survival recipe's own config of a rehearsal, with its rows and its twin beside it."""
    from runner.entrypoints.prepare import carry_out

    folder = tmp_path_factory.mktemp("proof")
    # Rows with padding; faults that join them do so themselves.
    recipe, _, _ = load(SURVIVAL, from_options(("train.packing=none",)))
    parts, place = rehearsal("last-layers"), Place(
        str(folder / "config"), str(folder / "data"), str(folder), str(folder / "scratch"), accelerator=False
    )  # fmt: skip
    first, _ = changed(recipe, parts.before_data(recipe, None))
    carry_out(
        with_config(
            recipe, translate(first, place).stages[0], parts.stands_in(recipe, folder)
        ).config,
        print,
    )
    second, _ = changed(first, parts.after_data(first, PreparedRows.read(folder / "data"), folder))
    (asked,) = parquet.read_table(folder / "data" / "train.parquet")["full-question"].to_pylist()[
        :1
    ]
    asked = asked.upper()
    stage = translate(second, place).stage("train")
    facts = stage.config["recipe_runner"]
    demo = facts["demo"] | {"questions": [*facts["demo"]["questions"], asked]}
    stage = with_config(second, stage, {"recipe_runner": facts | {"world_size": 1, "demo": demo}})
    file = folder / "config" / "axolotl.yaml"
    write_text(file, next(made.text for made in stage.files if made.path == stage.config_file))
    return file, asked


@pytest.fixture(scope="module")
def said(config, forked):
    """What the proof says of each planted fault, by its name; under "" of none."""
    fork_server.PROGRAMS[PLANTING] = fork_server.PROGRAMS["axolotl.cli.main"]
    done = forked(
        [sys.executable, "-m", PLANTING, "each", str(config[0])], ROOT, os.environ | WITHOUT_GPU
    )
    assert done.returncode == 0, done.stdout[-3000:]
    lines = [
        line.removeprefix("PROOF ")
        for line in done.stdout.splitlines()
        if line.startswith("PROOF ")
    ]
    return {name: Proof.of(facts) for name, facts in map(json.loads, lines)}


def test_rows_as_the_engine_makes_them_are_proven(said):
    proof = said[""]
    assert not proof.faults
    assert proof.rows == proof.judged > 50 and proof.batches > 3 and proof.padding > 100
    assert proof.trained > 3000 and proof.seen > 5000 and proof.cut == proof.rows_cut == 0
    assert (proof.joined, proof.attention) == ("padded", "sdpa")
    assert proof.logits_moved == 0
    assert (
        proof.loss_at_once == pytest.approx(proof.loss_accumulated, abs=1e-5)
        and proof.loss_at_once > 1
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_named(said, fault):
    assert [found["kind"] for found in said[fault].faults] == FAULTS[fault]


def test_rows_that_are_joined_are_asked_together(said):
    assert said["rows_joined"].logits_moved == 0
    assert said["rows_mixed"].logits_moved > 1e-4


def test_a_question_that_is_asked_later_is_named(config, said):
    assert said[""].asked == (config[1],)


def test_what_a_person_reads(said, golden_message):
    for fault in FAULTS:
        if FAULTS[fault]:
            proof, text = said[fault], said[fault].complaint
            # Every processor has warmed up another twin; what it measured of it is in the sentence,
            # rounded.
            measured = (
                {"by up to <moved>": f"by up to {proof.logits_moved:.2g}"}
                if "rows_mixed" in FAULTS[fault]
                else {}
            )
            if "accumulation" in FAULTS[fault]:
                measured["<losses>"] = f"{proof.loss_at_once:.6f} and {proof.loss_accumulated:.6f}"
            for name, figures in measured.items():
                assert text.count(figures) == 1
                text = text.replace(figures, name)
            golden_message(text, fault)


def test_every_kind_of_fault_has_its_sentence_and_its_remedy():
    assert {kind for kinds in FAULTS.values() for kind in kinds} <= KINDS.keys()
    faults = Faults()
    for number in range(5):
        faults.add("leak", f"row {number}")
    (only,) = faults
    assert "(5 times)" in only["message"] and only["message"].count("\n  row") == 3


def test_stretches_of_trained_tokens():
    assert list(_runs([-100, 1, 2, -100, -100, 3])) == [(1, 3), (5, 6)]
    assert list(_runs([-100, -100])) == []
    assert list(_runs([4])) == [(0, 1)]


@pytest.mark.long
@pytest.mark.parametrize("fault", NAMED)
def test_each_planted_fault_ends_the_rehearsal(fault, tmp_path, monkeypatch, capfd):
    from runner.commands import cli
    from runner.run import launch

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)

    def planted(stage, place):
        config = f"{place.config_dir}/{stage.config_file}"
        return [
            sys.executable,
            "-m",
            "tests.parts.proof.planting",
            fault,
            "train",
            config,
            "--launcher",
            "python",
        ]

    monkeypatch.setitem(launch.ENGINES, "axolotl", planted)
    assert launch.ENGINES is launch.ENGINES
    assert (
        cli._code(
            ["rehearse", str(SURVIVAL), "--set", "machines.nodes=1", "--set", "train.packing=none"]
        )
        == 1
    )
    assert NAMED[fault] in capfd.readouterr().err
    assert not Path("runs/survival-rehearsal/training_summary.json").exists()


def conversations():
    """A question, several turns behind a system prompt, and the same with the last answer trained
    alone."""
    system = {"role": "system", "content": "You are a patient teacher."}
    asked, said = (
        {"role": "user", "content": "What floats?"},
        {"role": "assistant", "content": "Wood floats.\n\nSo does ice."},
    )
    again, more = (
        {"role": "user", "content": "And what sinks?"},
        {"role": "assistant", "content": "A stone sinks."},
    )
    yield "one", [asked, said], "assistant"
    yield "several", [system, asked, said, again, more], "assistant"
    yield (
        "last",
        [{**turn, "training": turn is more} for turn in (system, asked, said, again, more)],
        "last",
    )
    yield "all", [system, asked, said, again, more], "all"


@pytest.mark.long
@pytest.mark.parametrize("base", catalog.model_ids())
def test_no_model_of_the_catalog_is_complained_of(base, tmp_path):
    from axolotl.prompt_strategies import load as strategy
    from axolotl.utils.chat_templates import get_chat_template
    from axolotl.utils.dict import DictDefault
    from transformers import AutoTokenizer

    model = catalog.model(base)
    if not model.chat_template:
        pytest.skip("nobody has looked at how it is asked")
    template = catalog.chat_template(model.chat_template)
    texts = [turn["content"] for _, turns, _ in conversations() for turn in turns]
    words = tokenizers.train(texts, tmp_path, model, template, 600)
    settings = {"chat_template": template.axolotl, "sequence_len": 512}
    if template.axolotl == "jinja":
        settings["chat_template_jinja"] = tokenizers.jinja(template)
    if template.end != model.eos_token:
        settings["eot_tokens"] = [template.end]
    for name, turns, train_on in conversations():
        row, data = {"messages": turns}, datasets("", CONVERSATIONS, train_on)["datasets"][0]
        cfg = DictDefault(settings | {"datasets": [data]})
        made = strategy("chat_template", words, cfg, DictDefault(data)).tokenize_prompt(row)
        kept = AutoTokenizer.from_pretrained(str(tmp_path))
        if template.axolotl not in ("tokenizer_default", "jinja"):
            kept.chat_template = get_chat_template(template.axolotl)
        ends = frozenset(kept.convert_tokens_to_ids([kept.eos_token, template.end]))
        reader = Reader(
            kept, frozenset(data["roles_to_train"]), data.get("message_field_training"), ends
        )
        faults, talk = Faults(), reader.talk(row, "messages")
        assert list(talk.tokens) == made["input_ids"], name
        reader.judge(made["input_ids"], made["labels"], talk, faults)
        assert not list(faults), f"{name}: {list(faults)}"
        reader.judge(
            made["input_ids"],
            [-100 if token in ends else token for token in made["labels"]],
            talk,
            faults,
        )
        assert "end_not_trained" in faults.counts, name
