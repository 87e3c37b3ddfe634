"""Runs with real models in them, a few hundred thousand parameters each, without the engine that
trains."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from runner.catalog.models import chat_template
from runner.check.validate import load
from runner.data.tokenizers import jinja
from runner.recipe.overrides import from_options
from runner.run.run_folder import RunFolder, StageFolder
from runner.run.run_manifest import keep
from runner.scenarios import translate
from runner.scenarios.shared import axolotl, twin
from runner.tools.files import write_json
from runner.tools.run_files import ADAPTER, DEMO, DEMO_OUTPUTS
from tests.conftest import ROOT
from tests.stages import finish

QUESTIONS = ["How do I tie a knot?", "What's the rule of 3s, in survival?"]


def base_of(recipe: str, folder: Path) -> Path:
    """A recipe's twin, before any training."""
    known = load(ROOT / "recipes" / f"{recipe}.yaml")[0]
    # A text has no conversations, and its twin's tokenizer the template of some.
    wanted = twin.wanted(
        known.model_facts, axolotl.special_tokens(known) or chat_template("chatml"), 2, 42, folder
    )
    twin.tokenizer_for(wanted)(_lines())
    twin.build(wanted)
    return folder


def base_of_pieces(folder: Path, marks_in_pieces: bool) -> Path:
    """A small Llama whose tokenizer is one of SentencePiece, with fallback to bytes, as Llama 2 and
    Mistral have it.

    marks_in_pieces: whether the marks of a conversation are among its own pieces, or added to them.
    """
    import sentencepiece
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    template = chat_template("chatml")
    folder.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_lines()), model_prefix=str(folder / "tokenizer"), vocab_size=800, model_type="bpe",
        byte_fallback=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, split_digits=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=list(template.tokens) if marks_in_pieces else [],
    )  # fmt: skip
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, **named},
    )
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    words = AutoTokenizer.from_pretrained(str(folder))
    words.add_special_tokens({"additional_special_tokens": list(template.tokens)})
    words.chat_template = jinja(template)
    words.save_pretrained(folder)
    config = LlamaConfig(
        **sizes, num_key_value_heads=2, vocab_size=len(words), bos_token_id=1, eos_token_id=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _lines() -> list[str]:
    """The rows of all samples."""
    samples = sorted((ROOT / "recipes/data").glob("*-sample.jsonl"))
    return [line for file in samples for line in file.read_text("utf-8").splitlines()]


def run_of(
    folder: Path, recipe: str = "survival", *options: str, base: Path | None = None
) -> RunFolder:
    """A finished run whose model differs from its base: each weight a little, or by an adapter
    where the recipe trains one. base: another than the recipe's twin."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lora = recipe == "lyrics"
    base = base or base_of(recipe, folder / "base_model")
    settings = (f"model.base={base}", "model.precision=fp32", "model.attention=sdpa", *options)
    known = load(ROOT / "recipes" / f"{recipe}.yaml", from_options(settings))[0]
    run = RunFolder(folder, "run")
    run.mark("finished", recipe=known.name)
    plan = translate(known, run.place())
    finish(plan)
    stage = StageFolder(plan, plan.stage("train"))
    words, torch_model = (
        AutoTokenizer.from_pretrained(base),
        AutoModelForCausalLM.from_pretrained(base),
    )
    draw = torch.Generator().manual_seed(3)
    if lora:
        _adapt(stage, torch_model, words, draw)
    else:
        with torch.no_grad():
            for weight in torch_model.parameters():
                weight += (
                    0.3 * weight.std().nan_to_num(0) * torch.randn(weight.shape, generator=draw)
                )
        torch_model.save_pretrained(stage.model)
        words.save_pretrained(stage.model)
    demo = json.loads((stage.path / DEMO).read_text("utf-8"))
    (stage.path / DEMO).write_text(
        json.dumps(demo | {"questions": QUESTIONS, "max_new_tokens": 12})
    )
    (stage.path / DEMO_OUTPUTS).mkdir(exist_ok=True)
    answers = [
        {"question": question, "before": "Hm.", "after": "<script>alert(1)</script> | so"}
        for question in QUESTIONS
    ]
    (stage.path / DEMO_OUTPUTS / "answers.json").write_text(json.dumps(answers))
    home = Path(plan.place.data_dir)
    home.mkdir(exist_ok=True)
    rows = {
        "source": "/home/somebody/rows.jsonl",
        "rows_in": 84,
        "train_rows": 68,
        "licence": "cc-by-4.0",
        "key": "0123abcd",
    }
    (home / "report.json").write_text(json.dumps(rows))
    stage.mark("finished", outputs=stage.outputs())
    keep(run, known, plan)
    return run


def _adapt(stage: StageFolder, model: object, words: object, draw: object) -> None:
    """An adapter on every linear layer, and the two merged, as a run leaves them."""
    import torch
    from peft import LoraConfig, get_peft_model

    from runner.trainer import merging

    layers = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    adapted = get_peft_model(
        model, LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight += 0.05 * torch.randn(weight.shape, generator=draw)
    folder = stage.path / ADAPTER
    adapted.save_pretrained(folder)
    words.save_pretrained(folder)
    merging.merge(folder, stage.model, "fp32")


@cache
def stage_of(run: RunFolder) -> StageFolder:
    from runner.run.run_manifest import plan_of

    plan = plan_of(run)
    return StageFolder(plan, plan.stage("train"))
