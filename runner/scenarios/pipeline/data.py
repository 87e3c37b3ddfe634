"""What the stages `data` and `init` of a pipeline must do, as plain settings for `runner.scenarios.pipeline.work`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from runner import catalog
from runner.plan import Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common

if TYPE_CHECKING:
    from runner.recipe.sections import LoraData, SftData

# What the data stage leaves for others, by folder, and which of its settings each part is made from.
PARTS = {
    "tokenizer": ("text", "tokenizer"),
    "blocks": ("text", "tokenizer", "lengths"),
    "sft": ("text", "tokenizer", "sft"),
    "dpo": ("dpo",),
    # A part of its rows are those of SFT.
    "lora": ("text", "tokenizer", "sft", "lora"),
}


def everything(recipe: Recipe, place: Place, lengths: list[tuple[int, int]]) -> dict[str, Any]:
    """Clean text, tokenizer, blocks for each context length, and the rows of every later stage.

    lengths: tokens of a block, and tokens that training reads of that length.
    """
    parts: dict[str, Any] = {
        "work": "pipeline.data",
        "out": place.data_dir,
        "text": text(recipe, place),
        "tokenizer": tokenizer(recipe, place),
        "lengths": [list(length) for length in lengths],
        "sft": conversations(recipe, place, recipe.sft.data, recipe.sft.sequence_len),
        "dpo": preferences(recipe, place),
    }
    if recipe.data.get("cleaning"):
        parts["cleaning"] = recipe.data.cleaning.plain()
    if lora := recipe.lora:
        parts["lora"] = conversations(recipe, place, lora.data, lora.sequence_len) | {"domain_share": lora.domain_share}
    return parts


def text(recipe: Recipe, place: Place) -> dict[str, Any]:
    data = recipe.data
    return {
        **common.source(recipe, place, data),
        "packed": common.data_file(recipe, place, data.packed),
        "column": data.column,
        "limit": data.limit,
        "language": data.language,
        "min_words": data.min_words,
        "max_words": data.max_words,
        "drop_repetitive": data.drop_repetitive,
        "drop_low_quality": data.drop_low_quality,
        "deduplicate": data.deduplicate,
        "validation_share": data.validation_share,
        "seed": data.seed,
    }


def tokenizer(recipe: Recipe, place: Place) -> dict[str, Any]:
    """vocabulary: entries to train; most: rows of the embedding, which no tokenizer may exceed."""
    chosen = recipe.tokenizer
    local = chosen.base and (recipe.folder / chosen.base).is_dir()
    return {
        "base": common.data_file(recipe, place, chosen.base) if local else chosen.base,
        "revision": chosen.revision,
        "vocabulary": chosen.vocabulary,
        "most": recipe.model.vocabulary,
    }


def conversations(recipe: Recipe, place: Place, data: SftData | LoraData, sequence_len: int) -> dict[str, Any]:
    """What `runner.data.chat` must prepare."""
    return {
        "kind": "chat",
        **common.source(recipe, place, data),
        "question": data.question,
        "answer": data.answer,
        "system_prompt": data.system_prompt,
        "validation_share": data.validation_share,
        "seed": data.seed,
        "sequence_len": sequence_len,
        "special_tokens": asdict(catalog.chat_template("chatml")),
    }


def preferences(recipe: Recipe, place: Place) -> dict[str, Any]:
    """What `runner.scenarios.pipeline.preferences` must prepare."""
    data = recipe.dpo.data
    return {
        "kind": "preferences",
        **common.source(recipe, place, data),
        "prompt": data.prompt,
        "chosen": data.chosen,
        "rejected": data.rejected,
        "system_prompt": data.system_prompt,
        "validation_share": data.validation_share,
        "seed": data.seed,
        "sequence_len": recipe.dpo.sequence_len,
    }


def first_weights(recipe: Recipe, place: Place) -> dict[str, Any]:
    """The architecture whose first weights are drawn, as a LLaMA config of transformers has it."""
    model = recipe.model
    return {
        "work": "pipeline.init",
        "out": place.below("init").best_model_dir,
        "tokenizer": f"{place.data_dir}/tokenizer",
        "seed": model.seed,
        "architecture": {
            "model_type": model.architecture,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.attention_heads,
            "num_key_value_heads": model.key_value_heads,
            "vocab_size": model.vocabulary,
            "max_position_embeddings": model.context,
            "tie_word_embeddings": model.tied,
        },
        "parameters": recipe.facts.parameters,
        "dtype": "float32" if model.precision == "fp32" or model.master_weights != "bf16" else "bfloat16",
    }
