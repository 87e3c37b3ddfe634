"""GGUF: llama.cpp's own converter and library, at their pinned version, on models of this
project."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.data import GENERAL_TEXT
from runner.parts.export import exporting, gguf, trained_model
from runner.run.run_folder import RunFolder
from runner.tools.files import read_record
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.export.runs import base_of_pieces, run_of, stage_of

pytestmark = pytest.mark.long

pytest.importorskip(
    "llama_cpp", reason="the extra `gguf`, which is compiled for many minutes, is not installed"
)

GENERAL = GENERAL_TEXT.read_text("utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def converter() -> Path:
    return gguf.converter()


@pytest.fixture(scope="module")
def exported(whole) -> Path:
    return exporting.export(trained_model.of(whole), "gguf", None, None, lambda line: None)


def file_in(folder: Path) -> Path:
    (file,) = folder.glob("*.gguf")
    return file


def far_from(model: Path, folder: Path) -> Path:
    """A copy of a model whose weights are as far from it as they are large."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, folder)
    weights = AutoModelForCausalLM.from_pretrained(model)
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in weights.parameters():
            spread = weight.std().nan_to_num(0)
            weight += spread * torch.randn(weight.shape, generator=draw)
    weights.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("recipe", ["survival", "lyrics", "gemma"])
def test_llama_cpp_says_the_same_tokens_as_transformers_in_fp32(recipe, tmp_path):
    """A whole model, one with an adapter merged into it, and one that goes on with texts and knows
    no conversations."""
    known = trained_model.of(run_of(tmp_path / "run", recipe))
    folder = exporting.export(known, "gguf", None, None, lambda line: None)
    proof = exporting.Export.read(folder).proof
    assert (
        proof["prompts"] == 2 and proof["tokens"] >= 4 and proof["same_tokens"] == proof["tokens"]
    )
    assert proof["largest_difference_nats"] < 1e-4 and proof["changed_tensors"] > 0
    assert {file.name for file in folder.iterdir()} == {
        f"{recipe}-f32.gguf",
        "Modelfile",
        "README.md",
        "export.json",
    }
    told = (folder / "Modelfile").read_text("utf-8")
    assert f"FROM ./{recipe}-f32.gguf" in told and ("SYSTEM" in told) == (
        "<|im_start|>" in told or "<|user|>" in told
    ) == (recipe != "gemma")
    assert f"llama-server -m {recipe}-f32.gguf" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "marks_in_pieces", [True, False], ids=["marks among its pieces", "marks added"]
)
def test_a_tokenizer_of_sentencepiece_reads_the_same_in_llama_cpp(tmp_path, marks_in_pieces):
    """Its file lies beside the base model, and is none of those that transformers 5 writes."""
    run = run_of(tmp_path / "run", base=base_of_pieces(tmp_path / "base", marks_in_pieces))
    known = trained_model.of(run)
    assert not (known.model / "tokenizer.model").exists()
    proof = exporting.Export.read(
        exporting.export(known, "gguf", None, None, lambda line: None)
    ).proof
    assert (
        proof["tokens"] >= 4
        and proof["same_tokens"] == proof["tokens"]
        and proof["largest_difference_nats"] < 1e-4
    )


def test_fewer_bits_take_less_room_and_say_what_they_lose(whole, exported):
    sizes = [file_in(exported).stat().st_size]
    for kind in ("q8_0", "q4_k_m"):
        folder = exporting.export(trained_model.of(whole), "gguf", kind, None, lambda line: None)
        made = exporting.Export.read(folder)
        assert folder.name == f"gguf-{kind}" and made.kind == kind
        assert 0 < made.proof["largest_difference_nats"] <= gguf.KINDS[kind]["allowed"]
        sizes.append(file_in(folder).stat().st_size)
    assert sizes == sorted(sizes, reverse=True)


def test_another_model_in_the_file_is_found_out(whole, exported, tmp_path):
    """The file of what was trained, held against the base model, and against a model that is as far
    from it as fewer bits must show: how far the base model is depends on the processor that warmed
    it up."""
    known = trained_model.of(whole)
    base = replace(known.chat, model=str(whole.path / "base_model"))
    far_away = replace(known.chat, model=str(far_from(known.model, tmp_path / "far")))
    for kind, other in (("f32", base), ("q8_0", far_away)):
        with pytest.raises(Stop, match="The export differs from the trained model"):
            gguf.prove(file_in(exported), kind, other, known.questions, GENERAL)
    assert gguf.prove(file_in(exported), "f32", known.chat, known.questions, GENERAL)["same_tokens"]


def test_one_layer_that_is_wrong_is_found_out(whole, exported, tmp_path):
    """Two halves of one layer's weights, changed for each other in the file."""
    raw = bytearray(file_in(exported).read_bytes())
    end = len(raw) - 64 * 1024
    raw[end - 32768 : end - 16384], raw[end - 16384 : end] = (
        raw[end - 16384 : end],
        raw[end - 32768 : end - 16384],
    )
    (tmp_path / "model.gguf").write_bytes(raw)
    known = trained_model.of(whole)
    with pytest.raises(Stop, match="The export differs from the trained model"):
        gguf.prove(tmp_path / "model.gguf", "f32", known.chat, known.questions, GENERAL)


def test_a_template_or_an_end_that_was_lost_is_found_out(whole, exported, converter, tmp_path):
    known = trained_model.of(whole)
    shutil.copytree(known.model, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").unlink()
    gguf.write(tmp_path / "model", tmp_path / "model.gguf", None, None, converter)
    with pytest.raises(Stop, match="the chat template in the file is not the trained one"):
        gguf.prove(tmp_path / "model.gguf", "f32", known.chat, known.questions, GENERAL)
    with pytest.raises(Stop, match=r"no answer would end with `<\|im_start\|>`"):
        gguf.prove(
            file_in(exported),
            "f32",
            replace(known.chat, turn_end="<|im_start|>"),
            known.questions,
            GENERAL,
        )


def test_text_that_is_cut_otherwise_is_found_out(whole, converter, tmp_path):
    """A pre-tokenizer of another name, as one would get by the base model's: digits in threes, and
    'S like 's."""
    known, file = trained_model.of(whole), tmp_path / "model.gguf"
    code = (
        "import sys\n"
        "from runner.parts.export import gguf as module\nteach = module.teach\n"
        "def other(turn_end):\n    teach(turn_end)\n    from conversion.base import TextModel\n"
        "    TextModel.get_vocab_base_pre = lambda model, tokenizer: 'llama-bpe'\n"
        "module.teach = other\nmodule.run_converter(*sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, converter, known.model, file, "f32"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(Stop, match=r"llama\.cpp cuts text into other tokens"):
        gguf.prove(file, "f32", known.chat, known.questions, GENERAL)


def test_a_file_that_is_cut_short_does_not_load(whole, exported, tmp_path):
    (tmp_path / "model.gguf").write_bytes(file_in(exported).read_bytes()[:-100_000])
    known = trained_model.of(whole)
    with pytest.raises(Stop, match=r"llama\.cpp cannot load"):
        gguf.prove(tmp_path / "model.gguf", "f32", known.chat, known.questions, GENERAL)


def test_an_architecture_that_the_converter_does_not_know_is_refused_with_those_that_it_does(
    whole, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(whole.path, run)
    stage = stage_of(RunFolder(run))
    config = stage.model / "config.json"
    config.write_text(
        json.dumps(read_record(config) | {"architectures": ["SomethingNewForCausalLM"]})
    )
    stage.mark("finished", outputs=stage.outputs())
    with pytest.raises(Stop) as stop:
        exporting.export(
            trained_model.of(RunFolder(run)), "gguf", None, tmp_path / "out", lambda line: None
        )
    text = stop.value.text
    assert (
        "does not know the architecture `SomethingNewForCausalLM`" in text
        and not (tmp_path / "out").exists()
    )
    assert {
        "SmolLM3ForCausalLM,",
        "Phi3ForCausalLM,",
        "Gemma3ForCausalLM,",
        "LlamaForCausalLM,",
    } <= set(text.split())


def test_the_converter_is_held_against_its_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf, "SHA256", "0" * 64)
    with pytest.raises(Stop, match=r"llama\.cpp's converter cannot be downloaded"):
        gguf.converter()
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_the_pinned_version_is_the_one_that_is_installed():
    import importlib.metadata
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["gguf"] == [f"llama-cpp-python=={gguf.VERSION}"]
    assert importlib.metadata.version("llama-cpp-python") == gguf.VERSION
