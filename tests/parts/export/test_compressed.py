"""FP8 and four bits for vLLM: llm-compressor itself, on models of this project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from runner.parts.evaluate import evaluate
from runner.parts.export import compressed, exporting, trained_model
from runner.parts.export.trained_model import TrainedModel, words_of
from runner.run.run_folder import RunFolder
from runner.tools.files import read_record
from runner.tools.problem import Stop
from tests.parts.export.runs import run_of, stage_of

HERE = all(map(compressed.find_spec, compressed.PACKAGES))
with_compressor = pytest.mark.skipif(
    not HERE, reason=f"llm-compressor is not installed: {compressed.INSTALL}"
)
VLLM = os.environ.get("RECIPE_TEST_VLLM")
ANSWER = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    folder, dtype, prompts, most = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    model = LLM(folder, dtype=dtype, enforce_eager=True, max_model_len=512)
    asked = SamplingParams(temperature=0, max_tokens=most, detokenize=False)
    said = model.generate([{"prompt_token_ids": numbers} for numbers in prompts], asked)
    print("SAID", json.dumps([list(one.outputs[0].token_ids) for one in said]))
"""


@pytest.fixture(scope="module", autouse=True)
def alone() -> None:
    """Without the pretended GPUs of a trace in this process, with which the compressor would share
    its work."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> TrainedModel:
    return trained_model.of(run_of(tmp_path_factory.mktemp("whole") / "run"))


def silent(line: str) -> None:
    pass


def without_rows(source: TrainedModel) -> TrainedModel:
    """The same model where its training rows are not here; those of these runs are no real
    files."""
    stage = source.folder.stage
    config = {name: value for name, value in stage.config.items() if name != "datasets"}
    return source._replace(folder=replace(source.folder, stage=replace(stage, config=config)))


@pytest.mark.long
@with_compressor
@pytest.mark.parametrize("form", compressed.FORMATS)
@pytest.mark.parametrize("recipe", ["survival", "lyrics", "gemma"])
def test_fewer_bits_take_less_room_and_answer_as_the_trained_model(recipe, form, tmp_path):
    """A whole model, one with an adapter merged into it, and one that goes on with texts and knows
    no conversations."""
    known, told = without_rows(trained_model.of(run_of(tmp_path / "run", recipe))), []
    folder = exporting.export(known, form, None, None, told.append)
    made, config = exporting.Export.read(folder), read_record(folder / "config.json")
    assert folder.name == made.format == form and made.proof["changed_tensors"] > 0
    # A model as small as these has many near ties, which four bits decide otherwise; the loss below
    # is the measure.
    share = {"fp8": 0.8, "int4": 0.5}[form]
    assert (
        made.proof["prompts"] == 2
        and made.proof["same_tokens"] >= share * made.proof["answer_tokens"] > 0
    )
    assert made.proof[f"loss_in_{form}"] - made.proof["loss"] <= compressed.FORMATS[form]["loss"]
    assert made.proof["bytes"] < 0.7 * made.proof["bytes_before"], "its embedding stays as it is"
    bits = [
        group["weights"]["num_bits"]
        for group in config["quantization_config"]["config_groups"].values()
    ]
    assert bits == [{"fp8": 8, "int4": 4}[form]] and f"In {form} its loss is " in told[-1]
    for name in ("generation_config.json", "tokenizer.json"):
        assert name in made.files
    assert "eos_token_id" in read_record(folder / "generation_config.json")
    card = (folder / "README.md").read_text("utf-8")
    assert "compressed-tensors" in card and f"vllm serve . --served-model-name {recipe}" in card
    assert known.folder.changed_outputs() == []


@pytest.mark.long
@with_compressor
@pytest.mark.skipif(not VLLM, reason="no vLLM here; RECIPE_TEST_VLLM names a Python that has it")
@pytest.mark.parametrize(("form", "dtype"), [("fp8", "float32"), ("int4", "bfloat16")])
def test_vllm_serves_them_with_the_answers_of_transformers(form, dtype, whole, tmp_path):
    """vLLM's kernel for four bits takes 16 bits beside them, so a near tie may turn out otherwise
    there."""
    folder = exporting.export(without_rows(whole), form, None, tmp_path / form, silent)
    chat, words = replace(whole.chat, model=str(folder)), words_of(whole.chat)
    answers = list(compressed.gguf.answers(chat, words, whole.questions))
    prompts = json.dumps([answer.prompt for answer in answers])
    script = tmp_path / "answer.py"
    script.write_text(ANSWER)
    command = [str(VLLM), str(script), str(folder), dtype, prompts, str(len(answers[0].said))]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SAID ")] or [
        done.stderr[-2000:]
    ]
    for said, answer in zip(json.loads(line.removeprefix("SAID ")), answers, strict=True):
        sure = next((at for at, gap in enumerate(answer.gaps) if gap < 0.1), len(answer.said))
        assert tuple(said[:sure]) == answer.said[:sure] and sure >= 1


@pytest.mark.long
@with_compressor
def test_scales_of_another_model_are_found_out(whole, tmp_path):
    """Those of two layers, changed for each other in the file."""
    from safetensors.torch import load_file, save_file

    folder = exporting.export(whole, "fp8", None, tmp_path / "fp8", silent)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("weight_scale")]:
        weights[name] = weights[name].flip(0) * 4
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(Stop, match="The export differs from the trained model"):
        compressed.prove(whole, folder, "fp8", whole.questions, whole.chat)


def with_rows(source: TrainedModel, table: pa.Table, folder: Path) -> TrainedModel:
    """The same model, trained on these rows."""
    pq.write_table(table, folder / "train.parquet")
    stage = source.folder.stage
    config = {**stage.config, "datasets": [{"path": str(folder / "train.parquet")}]}
    return source._replace(folder=replace(source.folder, stage=replace(stage, config=config)))


def test_layers_are_measured_with_training_rows_and_without_them_with_the_general_text(
    whole, tmp_path
):
    words = words_of(whole.chat)
    asked = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]
    (row,) = compressed._training_rows(with_rows(whole, pa.table({"messages": [asked]}), tmp_path))
    assert "How?" in words.decode(row) and "So." in words.decode(row)
    many = pa.table(
        {"input_ids": [[number] * 5000 for number in range(2000)], "labels": [[0]] * 2000}
    )
    rows = list(compressed._training_rows(with_rows(whole, many, tmp_path)))
    assert (
        len(rows) == compressed.ROWS
        and {len(row) for row in rows} == {compressed.TOKENS}
        and rows[-1][0] > 1900
    )
    (tmp_path / "train.parquet").unlink()
    assert list(compressed._training_rows(without_rows(whole))) == [
        row for row, _ in evaluate.general_rows(words)
    ]


def refusal(whole: TrainedModel, tmp_path: Path, form: str, **changes: object) -> str:
    """What an export says of a model with another configuration."""
    run = tmp_path / "run"
    shutil.copytree(whole.folder.run.path, run)
    stage = stage_of(RunFolder(run))
    config = stage.model / "config.json"
    config.write_text(json.dumps(read_record(config) | changes))
    stage.mark("finished", outputs=stage.outputs())
    with pytest.raises(Stop) as stop:
        exporting.export(trained_model.of(RunFolder(run)), form, None, tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()
    return str(stop.value.text)


MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "decoder_sparse_step": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "changes"),
    [("int4", {"intermediate_size": 200}), ("fp8", MIXTURE)],
    ids=["widths that no group divides", "experts in one tensor"],
)
def test_what_llm_compressor_would_leave_as_it_is_is_refused(
    form, changes, whole, tmp_path, monkeypatch, golden_message
):
    monkeypatch.setattr(compressed, "find_spec", lambda name: name)
    golden_message(refusal(whole, tmp_path, form, **changes))


def test_without_llm_compressor_the_command_that_installs_it_is_said(
    whole, tmp_path, monkeypatch, golden_message
):
    monkeypatch.setattr(compressed, "find_spec", lambda name: None)
    golden_message(refusal(whole, tmp_path, "fp8"))
