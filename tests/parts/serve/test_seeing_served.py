"""A real vLLM serves models that also see: it answers with our adapters as transformers does."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runner import catalog
from runner.data import tokenizers
from runner.scenarios.language.translation import in_text
from runner.scenarios.shared import twin
from runner.tools.files import write_json
from runner.tools.model_classes import language_class_of
from runner.tools.process import without_gpu_kernels
from tests.conftest import ROOT

PYTHON = os.environ.get("RECIPE_TEST_VLLM")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not PYTHON, reason="no vLLM here; RECIPE_TEST_VLLM names a Python that has it"
    ),
]

HALF = [0.5, 0.5, 0.5]
# What prepares images, without which vLLM does not start; and the tokens that it looks for.
PROCESSORS = {
    "google/gemma-3-4b-it": (
        {
            "processor_class": "Gemma3Processor",
            "image_seq_length": 256,
            "image_processor": {
                "image_processor_type": "Gemma3ImageProcessor",
                "image_mean": HALF,
                "image_std": HALF,
                "size": {"height": 224, "width": 224},
            },
        },
        {
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    "mistralai/Ministral-3-3B-Instruct-2512-BF16": (
        {
            "processor_class": "PixtralProcessor",
            "patch_size": 14,
            "spatial_merge_size": 2,
            "image_processor": {
                "image_processor_type": "PixtralImageProcessor",
                "image_mean": HALF,
                "image_std": HALF,
                "patch_size": {"height": 14, "width": 14},
                "size": {"longest_edge": 56},
            },
        },
        {
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        },
    ),
}


def adapted(model, folder, layers):
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    settings = LoraConfig(r=8, lora_alpha=64, target_modules=layers, init_lora_weights=False)
    with_adapter = get_peft_model(model, settings)
    with_adapter.save_pretrained(str(folder))
    return with_adapter.eval()


def answer(model, prompt: list[int]) -> list[int]:
    import torch

    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(12):
            likeliest = model(input_ids=tokens).logits[:, -1].argmax(-1)
            tokens = torch.cat([tokens, likeliest[None]], 1)
    return tokens[0, len(prompt) :].tolist()


def built(name: str, folder: Path):
    """A tiny model with what vLLM needs beside it, and its tokenizer."""
    import torch

    model = catalog.model(name)
    processor, image_tokens = PROCESSORS[name]
    template = catalog.chat_template(model.chat_template)
    template = replace(template, tokens=(*template.tokens, *image_tokens.values()))
    words = tokenizers.train(["what floats and what sinks"] * 9, folder, model, template, 512)
    twin.bare(replace(model, vocab_size=512), folder)
    without_gpu_kernels()
    weights = language_class_of(str(folder), False).from_pretrained(str(folder))
    with torch.no_grad():
        for path, weight in weights.named_parameters():
            # Far from zero, so that the likeliest token is clear.
            if weight.dim() > 1 and not model.is_of_tower(path):
                weight.mul_(3)
    weights.save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["image_token_index"] = words.convert_tokens_to_ids(image_tokens["image_token"])
    write_json(folder / "config.json", config)
    write_json(folder / "processor_config.json", processor)
    # As attributes, which transformers reads under these names.
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    write_json(folder / "tokenizer_config.json", settings | {"extra_special_tokens": image_tokens})
    return weights.eval(), words


@pytest.mark.parametrize("name", PROCESSORS)
def test_vllm_answers_with_our_adapter_as_transformers_does(name, tmp_path):
    from transformers import AutoModelForCausalLM

    facts = catalog.model(name)
    (tmp_path / "base").mkdir()
    model, words = built(name, tmp_path / "base")
    prompt = words("what floats", add_special_tokens=False)["input_ids"]
    write_json(tmp_path / "tokens.json", prompt)
    text = AutoModelForCausalLM.from_config(model.config.get_text_config())
    adapted(text, tmp_path / "of the class for text", list(facts.linear))
    base_answer = answer(model, prompt)
    our_answer = answer(
        adapted(model, tmp_path / "ours", in_text(facts, list(facts.linear))), prompt
    )
    assert our_answer != base_answer
    program = ROOT / "tests" / "parts" / "serve" / "serve_adapters.py"
    done = subprocess.run(
        [PYTHON, str(program), str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    served = json.loads((tmp_path / "answers.json").read_text("utf-8"))
    assert (served["base"], served["ours"]) == (base_answer, our_answer)
    # vLLM 0.32 ignores such an adapter in silence, of Gemma 3.
    if facts.model_type == "gemma3":
        assert served["of the class for text"] == base_answer
