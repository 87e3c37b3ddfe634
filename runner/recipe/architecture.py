"""The architecture that a pipeline recipe describes: its facts, its size, and whether its parts fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from runner import catalog
from runner.catalog import Model
from runner.problem import Problem
from runner.recipe.recipe import Recipe, Settings


def model_facts(settings: Settings) -> Model:
    """The model that a recipe describes. Raises BrokenSetting where a size is refused by the schema."""
    shape = settings.model
    return Model(
        id=settings.get("name", "model"),
        model_type=shape.architecture,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.hidden_size // shape.attention_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        tied=shape.tied,
        layer_class="LlamaDecoderLayer",
        linear=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        parameters=parameters(shape),
        source="the recipe",
    )


def parameters(shape: Settings) -> int:
    """All parameters of a LLaMA model without biases, a count: embedding, LM head where it is not tied, and a layer's
    attention (query, key, value, output), feed-forward (gate, up, down) and two norms, and the last norm."""
    hidden, head = shape.hidden_size, shape.hidden_size // shape.attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * head * shape.key_value_heads
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return (1 if shape.tied else 2) * shape.vocabulary * hidden + shape.layers * layer + hidden


def shape(recipe: Recipe) -> Iterator[Problem]:
    """Heads that divide each other, and a tokenizer that fits the embedding."""
    model, tokenizer = recipe.model, recipe.tokenizer
    if model.hidden_size % model.attention_heads:
        yield recipe.document.problem(
            ("model", "attention_heads"),
            f"`hidden_size` {model.hidden_size:,} cannot be shared by {model.attention_heads} heads.",
            "Choose a count that divides it.",
        )
    if model.attention_heads % model.key_value_heads:
        yield recipe.document.problem(
            ("model", "key_value_heads"),
            f"{model.attention_heads} attention heads cannot share {model.key_value_heads} key and value heads.",
            "Choose a count that divides `attention_heads`.",
        )
    if not tokenizer.base and tokenizer.vocabulary > model.vocabulary:
        yield recipe.document.problem(
            ("tokenizer", "vocabulary"),
            f"The tokenizer has {tokenizer.vocabulary:,} entries, and the embedding has rows for {model.vocabulary:,}.",
            "Lower `tokenizer.vocabulary`, or raise `model.vocabulary`.",
        )


def fp8_gpu(recipe: Recipe) -> Iterator[Problem]:
    """FP8 is asked for only where the GPU has it."""
    gpu = catalog.gpu(recipe.machines.gpu)
    if recipe.model.precision == "fp8" and gpu and not gpu.fp8:
        yield recipe.document.problem(
            ("model", "precision"),
            f"{gpu.title} cannot do `fp8`; it takes compute capability 9.0, and this GPU has {gpu.compute_capability}.",
            "Write `precision: bf16`, or `auto`.",
        )


RULES = (shape, fp8_gpu)
