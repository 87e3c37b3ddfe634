"""Adapters of models that also see: a merge and a server must have a place for every tensor."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner import catalog
from runner.data import tokenizers
from runner.parts.export import gguf, trained_model
from runner.parts.serve.serving import _not_beside
from runner.scenarios.language.translation import in_text
from runner.scenarios.shared import twin
from runner.tools import vllm
from runner.tools.model_classes import language_class_of
from runner.tools.problem import Stop
from runner.tools.process import without_gpu_kernels
from runner.trainer import merging

GEMMA = "google/gemma-3-4b-it"


def adapter_of(model, folder, pattern):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=pattern, init_lora_weights=False)
    )
    adapted.save_pretrained(str(folder))


def loaded(folder):
    without_gpu_kernels()
    twin.bare(replace(catalog.model(GEMMA), vocab_size=256), folder)
    return language_class_of(str(folder), False).from_pretrained(str(folder))


def test_an_adapter_of_the_class_for_text_is_not_merged_into_a_model_that_also_sees(tmp_path):
    """PEFT only warns that none of its tensors has a place."""
    from transformers import AutoModelForCausalLM

    model = loaded(tmp_path / "base")
    text = AutoModelForCausalLM.from_config(model.config.get_text_config())
    adapter_of(text, tmp_path / "adapter", ["q_proj", "v_proj"])
    named_base = (str(tmp_path / "base"), None)
    with pytest.raises(ValueError, match="8 tensors for layers that Gemma3ForConditional"):
        merging.merge(tmp_path / "adapter", tmp_path / "out", named_base=named_base)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        GEMMA,
        "Qwen/Qwen3.5-0.8B",
        "Qwen/Qwen3.5-35B-A3B",
        "zai-org/GLM-4.6V-Flash",
        "zai-org/GLM-4.6V",
    ],
)
def test_llama_cpps_converter_writes_every_number_of_the_half_for_text(name, tmp_path):
    """Downloads the converter once, which needs no llama.cpp."""
    model = catalog.model(name)
    template = catalog.chat_template(model.chat_template)
    words = tokenizers.train(["one two three four"] * 9, tmp_path, model, template, 400)
    twin.bare(replace(model, vocab_size=len(words)), tmp_path)
    numbers = trained_model.numbers_for_text((str(tmp_path), None), False)
    converter = gguf.converter()
    (architecture,) = json.loads((tmp_path / "config.json").read_text("utf-8"))["architectures"]
    assert architecture in gguf.architectures(converter)
    gguf.write(tmp_path, tmp_path / "model.gguf", "f32", None, converter, numbers)
    with pytest.raises(Stop, match="layers are missing"):
        gguf.write(tmp_path, tmp_path / "less.gguf", "f32", None, converter, numbers + 1)
    assert numbers and not (tmp_path / "less.gguf").exists()


def test_every_layer_of_our_adapters_has_a_name_that_the_server_knows(tmp_path):
    for name in catalog.model_ids():
        facts = catalog.model(name)
        if facts.sees:
            assert not vllm.ignored([f"{facts.layers_path}.0.self_attn.q_proj"]), name
    assert vllm.ignored(["model.layers.0.self_attn.q_proj"])


def test_an_adapter_within_the_half_for_text_may_be_beside_its_base_model():
    facts = catalog.model(GEMMA)
    pattern = in_text(facts, list(facts.linear))
    assert vllm.names_in_pattern(pattern) == list(facts.linear)
    assert _not_beside({"lora_target_modules": pattern, "lora_r": 16}) == ""
    strange = in_text(facts, ["in_proj_qkv"])
    assert "in_proj_qkv" in _not_beside({"lora_target_modules": strange, "lora_r": 16})
    assert _not_beside({"lora_target_modules": r".*\.q_proj", "lora_r": 16})
