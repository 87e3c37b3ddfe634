"""The data stage of a pipeline: cleaned text, a tokenizer, packed blocks, and the rows of the later
stages."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.check.validate import changed as with_overrides
from runner.check.validate import load
from runner.data.prepared import PreparedRows, asked
from runner.entrypoints.prepare import carry_out
from runner.parts.pretrain import work as pretrain_work
from runner.parts.pretrain.architecture import Tokenizer
from runner.parts.proof import hooks
from runner.plan import Place, rows_key
from runner.recipe.overrides import from_options
from runner.scenarios import rehearsal, translate, work
from runner.tools.files import write_text
from runner.tools.problem import Stop
from runner.trainer.records import Proof
from tests.conftest import ROOT

pytestmark = pytest.mark.heavy

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"


def problems(*options: str) -> list[str]:
    with pytest.raises(Stop) as stop:
        load(SEVEN_B, from_options(options))
    return [f"{problem.message} {problem.hint}" for problem in stop.value.problems]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data stage's work on the sample, as the rehearsal has it."""
    folder = tmp_path_factory.mktemp("data")
    recipe, _, _ = load(SEVEN_B)
    recipe, _ = with_overrides(recipe, rehearsal("stages").before_data(recipe, None))
    place = Place(
        f"{folder}/config", f"{folder}/data", str(folder), f"{folder}/scratch", accelerator=False
    )
    stage = translate(recipe, place).stages[0]
    work(stage.config["work"])(stage.config, print)
    return folder / "data", stage.config


def test_preparing_alone_proves_nothing_and_needs_no_files_of_a_run(monkeypatch, tmp_path):
    from click.testing import CliRunner

    from runner.commands.run import prepare as command
    from runner.entrypoints import prepare

    asked = []
    monkeypatch.setattr(prepare, "carry_out", lambda work, tell: asked.append(work))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [str(SEVEN_B)], catch_exceptions=False)
    assert done.exit_code == 0 and asked[0]["proofs"] is None and asked[0]["work"] == "stages.data"


def test_each_stage_is_proven_with_the_models_shape_and_the_tokenizer_that_was_made(
    monkeypatch, tmp_path
):
    """And what is wrong ends the stage with the name of the one that it is about."""
    recipe, _, _ = load(SEVEN_B)
    plan = translate(
        recipe, Place(*(str(tmp_path / name) for name in ("config", "data", "run", "scratch")))
    )
    stage = plan.stages[0]
    for file in stage.files:
        write_text(Path(plan.place_of(stage).config_dir) / file.path, file.text)
    asked = []

    def judged(config, folder, model, tokenizer):
        asked.append((config["output_dir"], folder, model, tokenizer))
        if "dpo" in config["output_dir"]:
            raise Stop("Padding is trained.")
        return Proof(kind="conversations")

    monkeypatch.setattr(hooks, "prove_config", judged)
    monkeypatch.setattr("runner.scenarios.work", lambda name: lambda config, tell: None)
    monkeypatch.setattr("runner.entrypoints.prepare.require_columns", lambda part: None)
    with pytest.raises(Stop, match=r"^`dpo` cannot be trained like this\. Padding is trained\."):
        carry_out(stage.config, print)
    assert [folder.name for _, folder, _, _ in asked] == ["sft", "dpo"]
    facts = replace(recipe.facts, id="seven-b-pretrain")
    assert {(model, tokenizer) for _, _, model, tokenizer in asked} == {
        (facts, f"{tmp_path}/data/tokenizer")
    }


@pytest.mark.long
def test_the_data_stage_proves_what_is_trained_after_pretraining_and_ends_with_what_is_wrong(
    prepared, tmp_path, capsys, monkeypatch
):
    """Before a GPU is held: with the tokenizer that was made a moment ago, and a twin of a model
    that is not there yet."""
    shutil.copytree(prepared[0], tmp_path / "data")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe, _, _ = load(SEVEN_B)
    recipe, _ = with_overrides(recipe, rehearsal("stages").before_data(recipe, None))
    plan = translate(
        recipe,
        Place(f"{tmp_path}/config", f"{tmp_path}/data", str(tmp_path), f"{tmp_path}/scratch"),
    )
    stage = plan.stages[0]
    for file in stage.files:
        write_text(Path(plan.place_of(stage).config_dir) / file.path, file.text)
    carry_out(stage.config, print)
    told = capsys.readouterr().out
    for name in ("sft", "dpo", "lora"):
        assert f"proving what `{name}` will train" in told
        proof = Proof.read(tmp_path / "data" / "proof" / name)
        assert proof.rows == proof.judged > 50 and not proof.faults, name
        assert (proof.kind == "preferences") is (name == "dpo")
    assert Proof.read(tmp_path / "data" / "proof" / "sft").logits_moved == 0
    planted = (sys.executable, "-m", "tests.parts.proof.planting", "no_generation_prompt", "train")
    monkeypatch.setattr(hooks, "TRAIN", planted)
    with pytest.raises(
        Stop,
        match=r"^`sft` cannot be trained like this\. .*differs from what the model gets when it is asked",
    ):
        carry_out(stage.config, print)


def test_kept_documents_are_byte_for_byte_what_came(prepared):
    folder, _ = prepared
    source = [
        json.loads(line)["text"]
        for line in (ROOT / "recipes/data/seven-b-text.jsonl").open(encoding="utf-8")
    ]
    kept = [
        json.loads(line)["text"]
        for file in folder.glob("text/*.jsonl")
        for line in file.open(encoding="utf-8")
    ]
    assert len(kept) == len(set(kept)) == 420
    assert set(kept) <= set(source)


@pytest.mark.parametrize("part", ["sft", "dpo", "lora"])
def test_each_part_says_how_many_rows_it_has_and_what_they_were_made_for(prepared, part):
    folder, config = prepared
    rows = PreparedRows.read(folder / part)
    assert rows.train_rows and rows.validation_rows and rows.asked == asked(config[rows_key(part)])


def test_the_report_says_what_was_dropped_and_why(prepared):
    folder, _ = prepared
    report = json.loads((folder / "cleaning.json").read_text("utf-8"))
    assert report["documents_in"] == 469 and report["kept"] == 420
    assert report["dropped"]["exact duplicate of a kept document"] == 18
    assert report["dropped"]["near duplicate of a kept document"] == 16
    assert report["dropped"]["too few words"] == 9
    assert sum(report["dropped"].values()) == 469 - 420
    kinds = {file.stem for file in folder.glob("dropped/*.jsonl")}
    assert {"exact", "near", "filters", "repetition"} <= kinds


def test_blocks_hold_the_documents_one_after_the_other(prepared):
    from transformers import AutoTokenizer

    folder, _ = prepared
    words = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    seen: set[str] = set()
    for length in (512, 1024, 2048):
        blocks = np.load(folder / "blocks" / f"train-{length}.npy")
        assert blocks.shape[1] == length and blocks.dtype == np.uint16
        texts = words.decode(blocks.reshape(-1)).split("<|endoftext|>")[:-1]
        kept = {
            json.loads(line)["text"]
            for file in folder.glob("text/*.jsonl")
            for line in file.open(encoding="utf-8")
        }
        assert set(texts) <= kept and len(texts) > 10
        assert not seen & set(texts), "two lengths learn the same document"
        seen |= set(texts)
        assert not seen & set(
            words.decode(np.load(folder / "blocks" / f"validation-{length}.npy").reshape(-1)).split(
                "<|endoftext|>"
            )[:-1]
        )


def test_lora_mixes_seventy_to_thirty(prepared):
    from datasets import Dataset

    folder, _ = prepared
    mixed = len(Dataset.from_parquet(str(folder / "lora" / "train.parquet")))
    domain = len(Dataset.from_parquet(str(folder / "lora" / "own" / "train.parquet")))
    assert domain / mixed == pytest.approx(0.7, abs=0.01)


def test_a_tokenizer_that_is_larger_than_the_embedding_is_an_error(prepared):
    folder, config = prepared
    asked = Tokenizer(**config["tokenizer"] | {"base": str(folder / "tokenizer"), "most": 1000})
    with pytest.raises(Stop, match=r"1,024 entries\b.* 1,000\b"):
        pretrain_work.tokenizer_for(asked, (), folder / "other")


def test_packed_files_are_taken_as_they_are(prepared, tmp_path):
    from transformers import AutoTokenizer

    folder, _ = prepared
    words = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    counts = pretrain_work.take_packed(folder / "blocks", [512, 1024], words, tmp_path / "out")
    assert counts["train-512"]["blocks"] == len(np.load(folder / "blocks" / "train-512.npy"))
    assert (tmp_path / "out" / "train-512.npy").read_bytes() == (
        folder / "blocks" / "train-512.npy"
    ).read_bytes()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 100), np.uint16), "must have .blocks, 512"),
        (np.zeros((3, 512), np.float32), "tokens are whole numbers"),
        (np.zeros((0, 512), np.uint16), "must have .blocks, 512"),
        (np.full((3, 512), 2000, np.uint16), "contains the token 2,000"),
    ],
    ids=["length", "kind", "empty", "vocabulary"],
)
def test_packed_files_that_do_not_fit_are_refused(prepared, tmp_path, array, words):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(prepared[0] / "tokenizer"))
    for side in ("train", "validation"):
        np.save(tmp_path / f"{side}-512.npy", array)
    with pytest.raises(Stop, match=words):
        pretrain_work.take_packed(tmp_path, [512], tokenizer, tmp_path / "out")


def packed_recipe(prepared, folder: Path) -> list[str]:
    """What makes of seven-b a recipe that takes the blocks in `folder`."""
    settings = {
        "stages.0.data.hub": "",
        "stages.0.data.packed": folder,
        "stages.0.tokenizer.base": prepared[0] / "tokenizer",
        "stages.1.data.hub": "",
        "stages.1.data.path": "data/seven-b-questions.jsonl",
        "stages.2.data.hub": "",
        "stages.2.data.path": "data/seven-b-preferences.jsonl",
        "stages.3.data.hub": "",
        "stages.3.data.path": "data/seven-b-domain.jsonl",
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.long  # its proof of three stages takes minutes
def test_a_recipe_with_packed_files_is_checked_planned_and_its_data_stage_takes_them(
    prepared, recipe_command, tmp_path
):
    packed = tmp_path / "packed"
    shutil.copytree(prepared[0] / "blocks", packed)
    sets = packed_recipe(prepared, packed)
    for command in (
        ("check", SEVEN_B, *sets),
        ("render", SEVEN_B, *sets, "--out", tmp_path / "rendered"),
    ):
        done = recipe_command(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    planned = recipe_command("plan", SEVEN_B, *sets)
    assert "\npretrain-2048 " in planned.stdout, planned.stdout + planned.stderr
    out = tmp_path / "run"
    done = recipe_command(
        "run", SEVEN_B, *sets, "--until", "data", "--out", out, env={"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for file in packed.glob("*.npy"):
        assert (out / "data" / "blocks" / file.name).read_bytes() == file.read_bytes()
    assert not (out / "data" / "cleaning.json").exists()
    rows = len(np.load(packed / "train-512.npy"))
    assert f"train-512            {rows:>11,}   blocks" in done.stdout
    np.save(packed / "train-512.npy", np.full((3, 512), 2000, np.uint16))
    done = recipe_command(
        "run", SEVEN_B, *sets, "--until", "data", "--out", out, env={"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 1
    assert "data: runs again (text.packed: " in done.stdout
    first = next(line for line in done.stderr.splitlines() if "train-512.npy" in line)
    assert "train-512.npy` contains the token 2,000" in first and "1,024 entries" in first
    assert "The stage" not in done.stderr, "what is wrong with the data is told as it is"


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 100), np.uint16), "(3, 100)"),
        (np.zeros((3, 1024), np.float32), "`<f4`"),
        (np.zeros((0, 1024), np.uint16), "(0, 1024)"),
        (np.zeros(1024, np.int32), "(1024,)"),
        (None, "not a NumPy array"),
    ],
    ids=["length", "kind", "empty", "flat", "text"],
)
def test_check_looks_into_packed_files(tmp_path, array, words, golden_message):
    for length in (512, 1024, 2048):
        for side in ("train", "validation"):
            np.save(tmp_path / f"{side}-{length}.npy", np.zeros((3, length), np.uint16))
    settings = (
        "stages.0.data.hub=",
        f"stages.0.data.packed={tmp_path}",
        "stages.0.tokenizer.base=openai-community/gpt2",
    )
    load(SEVEN_B, from_options(settings))
    if array is None:
        (tmp_path / "train-1024.npy").write_text("1 2 3")
    else:
        np.save(tmp_path / "train-1024.npy", array)
    (said,) = problems(*settings)
    assert said.startswith(f"`{tmp_path}/train-1024.npy` ") and words in said
    golden_message(said)
