"""The tokenizer of Mistral's own package: rows are counted as it writes them, and training, proof
and answers use it."""

import json
from pathlib import Path

import pytest

from runner import catalog, scenarios
from runner.catalog.tables import table as table_of
from runner.check.validate import examine, load
from runner.data import tokenizers
from runner.parts.export import gguf
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.scenarios import place, prepare
from runner.scenarios.shared import axolotl
from runner.tools.problem import Stop
from runner.tools.text import tokens
from tests.catalog.axolotls_own import validated
from tests.conftest import ROOT, setting_of
from tests.data.test_chat_data import table

LORA = ROOT / "recipes" / "minimal" / "lora.yaml"
MISTRAL = (
    "model.base=mistralai/Mistral-7B-Instruct-v0.3",
    "data.chat_template=mistral_common",
    "model.sequence_len=200",
)
TALK = [
    {"role": "user", "content": "How do I tie a bowline?"},
    {"role": "assistant", "content": "Make a loop; the rabbit comes out of its hole."},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "It goes round the tree, and back."},
]
CALL = {"id": "123456789", "type": "function", "function": {"name": "tide", "arguments": "{}"}}


def words(count: int = 30) -> list[list[dict]]:
    return [
        [{**turn, "content": f"{turn['content']} {number}"} for turn in TALK]
        for number in range(count)
    ]


def rows(folder: Path, talks: list[list[dict]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in talks))
    return file


def own(file: Path) -> tuple[str, ...]:
    old = ("hub", "songs", "question", "answer", "sample")
    return (f"data.path={file}", "data.form=messages", *(f"data.{name}=" for name in old), *MISTRAL)


def recipe(folder: Path, talks: list[list[dict]]):
    return load(LORA, from_options([*own(rows(folder, talks)), "data.max_lost_share=0.2"]))[0]


def prepared(folder: Path, talks: list[list[dict]], tokenizer):
    made = scenarios.translate(asked := recipe(folder, talks), place(asked)).stages[-1].data
    return prepare(made, folder / "out", tokenizer_for=lambda _: tokenizer)


@pytest.fixture
def tokenizer(tmp_path):
    template = axolotl.special_tokens(recipe(tmp_path, words()))
    text = [turn["content"] for talk in words() for turn in talk]
    return tokenizers.train(text, tmp_path / "twin", None, template, 400)


def test_a_twins_tokenizer_is_one_that_mistral_common_reads(tokenizer, tmp_path):
    from axolotl.utils.mistral import HFMistralTokenizer

    assert [file.name for file in (tmp_path / "twin").iterdir()] == ["tekken.json"]
    engines = HFMistralTokenizer.from_pretrained(str(tmp_path / "twin"))
    for text in ("The rabbit — 37 ropes.\n", "Ünïcödé 🐇"):
        assert engines.decode(engines.encode(text, add_special_tokens=False)) == text
    asked = tokens(tokenizer, TALK[:3], asking=True)
    assert (
        tokens(engines, TALK, asking=False)[: len(asked)]
        == asked
        == tokens(engines, TALK[:3], asking=True)
    )
    assert engines.decode(asked, skip_special_tokens=False).startswith("<s>[INST]How do I tie")


def test_rows_are_counted_as_training_reads_them(tokenizer, tmp_path):
    from axolotl.utils.mistral import HFMistralTokenizer

    engines = HFMistralTokenizer.from_pretrained(str(tmp_path / "twin"))
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    talks = [
        *words(),
        system,
        [*TALK, *TALK, *TALK, {**TALK[0], "content": "long " * 200}, TALK[1]],
    ]
    report = prepared(tmp_path, talks, tokenizer)
    lengths = [len(tokens(engines, talk, asking=False)) for talk in talks[:-1]]
    assert (report.token_lengths["min"], report.longest_kept) == (min(lengths), max(lengths))
    assert report.dropped == {"longer than 200 tokens": 1}


def test_rows_that_it_cannot_write_are_left_out_by_line(tokenizer, tmp_path):
    orphan = [{"role": "tool", "content": "17:04", "tool_call_id": "x"}, *TALK]
    calling = [TALK[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}, *TALK[1:2]]
    report = prepared(tmp_path, [*words(), orphan, calling], tokenizer)
    bad = dict(report.bad_lines)
    assert set(bad) == {31, 32} and bad[31].startswith("Tool call id was x but must be")
    assert (
        bad[32]
        == "it has `tool_calls`, which cannot be learned with `chat_template: mistral_common`"
    )
    kept = [
        row["messages"] for side in ("train", "validation") for row in table(tmp_path / "out", side)
    ]
    assert len(kept) == 30


def test_rows_are_not_counted_with_a_tokenizer_that_training_would_not_take(tokenizer, tmp_path):
    """On a cluster, only the tokenizer itself shows whose it is."""
    other = tokenizers.train(
        ["some words"], tmp_path / "other", None, catalog.chat_template("chatml"), 300
    )
    with pytest.raises(Stop, match="which mistral-common reads"):
        prepared(tmp_path, words(), other)
    wanted = load(LORA, from_options([*own(rows(tmp_path, words())), "data.chat_template=auto"]))[0]
    with pytest.raises(Stop, match="which takes no other chat template"):
        prepare(
            scenarios.translate(wanted, place(wanted)).stages[-1].data,
            tmp_path / "o",
            tokenizer_for=lambda _: tokenizer,
        )


def test_axolotl_gets_its_tokenizer_and_no_template(tmp_path):
    made = recipe(tmp_path, words())
    config = dict(scenarios.translate(made, place(made)).stages[-1].config)
    assert config["tokenizer_use_mistral_common"] is True
    assert not {"chat_template", "special_tokens", "eot_tokens"} & config.keys()
    assert validated(config, catalog.gpu("NVIDIA-L40S"), 1)["tokenizer_use_mistral_common"] is True


@pytest.mark.parametrize("key", table_of("axolotl-refusals")["tokens_of_mistral"]["settings"])
def test_its_tokens_cannot_be_changed(key, tmp_path):
    value = (
        ["<x>"]
        if key == "tokens"
        else {"eos_token": "<x>"}
        if key == "special_tokens"
        else {5: "<x>"}
    )
    made = recipe(tmp_path, words())
    config = dict(scenarios.translate(made, place(made)).stages[-1].config)
    with pytest.raises(ValueError, match="not supported with mistral-common"):
        validated(config | {key: value}, catalog.gpu("NVIDIA-L40S"), 1)
    found = list(
        examine(
            LORA,
            [
                *from_options(own(rows(tmp_path, words()))),
                Override(f"advanced.axolotl.{key}", None, value, ""),
            ],
        )
    )
    assert "that of mistral-common cannot be changed" in next(
        one.message for one in found if one.severity == "error"
    )


def saying(folder: Path, *options: str) -> dict[str, str]:
    found = examine(LORA, from_options([*own(rows(folder, words())), *options]))
    return {setting_of(one): one.message for one in found if one.severity == "error"}


def test_what_cannot_have_it_is_refused(tmp_path):
    assert not saying(tmp_path)
    assert saying(tmp_path, "model.base=HuggingFaceTB/SmolLM3-3B") == {
        "data.chat_template": "mistral-common knows no models of type `smollm3`."
    }
    assert saying(tmp_path, "data.train_on=all") == {
        "data.train_on": "mistral-common writes conversations that end with an answer, so Axolotl cannot find the turns before it to "
        "train them."
    }
    model = tmp_path / "model"
    model.mkdir()
    facts = catalog.model("mistralai/Mistral-7B-Instruct-v0.3").sizes | {"model_type": "mistral"}
    (model / "config.json").write_text(json.dumps(facts))
    (model / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    named = f"model.base={model}"
    assert saying(tmp_path, named)["data.chat_template"] == (
        f"`{model}` has no file `tekken.json`, which mistral-common reads."
    )
    (model / "tekken.json").write_text("{}")
    assert not saying(tmp_path, named)
    assert saying(tmp_path, named, "data.chat_template=auto")["data.chat_template"] == (
        f"`{model}` has a file `tekken.json`, so its tokenizer is that of mistral-common, which takes no other chat template."
    )
    preferences = (
        "data.form=preferences",
        "data.prompt=[a]",
        "data.chosen=[b]",
        "data.rejected=[c]",
    )
    assert "cannot be `mistral_common`" in saying(tmp_path, *preferences)["data.chat_template"]


def test_a_gguf_file_cannot_hold_it(tmp_path):
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(Stop, match="which a GGUF file cannot hold with its template"):
        gguf.write(tmp_path, tmp_path / "m.gguf", None, None, tmp_path)


@pytest.mark.long
def test_a_rehearsal_trains_proves_and_answers_with_it(tmp_path, recipe_command):
    options = (*own(rows(tmp_path, words(160))), "data.train_on=last", "train.epochs=2")
    sets = [part for option in options for part in ("--set", option)]
    done = recipe_command("rehearse", LORA, "--out", tmp_path / "run", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "in 144 rows every answer starts where the model will answer, and is trained to its end"
        in done.stdout
    )
    run = tmp_path / "run"
    assert (run / "best_model" / tokenizers.TEKKEN).is_file()
    assert "after" in (run / "demo_outputs" / "answers.json").read_text()
