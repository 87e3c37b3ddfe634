"""The architecture that a pipeline recipe describes: its facts and its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.catalog import Model
from runner.recipe.recipe import Settings

if TYPE_CHECKING:
    from runner.recipe import sections


def model_facts(settings: Settings) -> Model:
    """The model that a recipe describes. Raises BrokenSetting where a size is refused by the schema."""
    shape: sections.Model = settings["model"]
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


def parameters(shape: sections.Model) -> int:
    """All parameters of a LLaMA model without biases, a count: embedding, LM head where it is not tied, and a layer's
    attention (query, key, value, output), feed-forward (gate, up, down) and two norms, and the last norm."""
    hidden, head = shape.hidden_size, shape.hidden_size // shape.attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * head * shape.key_value_heads
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return (1 if shape.tied else 2) * shape.vocabulary * hidden + shape.layers * layer + hidden
