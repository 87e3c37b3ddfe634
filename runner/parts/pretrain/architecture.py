"""The architecture that a pipeline recipe describes: its facts and its size; its stages, and their precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner import catalog
from runner.catalog import Model
from runner.recipe.recipe import CONVERSATIONS, PREFERENCES, TEXT, Recipe, Settings

if TYPE_CHECKING:
    from runner.recipe import sections


def model_facts(settings: Settings) -> Model:
    """The model that a recipe describes. Raises BrokenSetting if a size is refused by the schema."""
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
        usual_glu=True,
        chat_template="chatml",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        parameters=parameters(shape),
        source="the recipe",
    )


def parameters(shape: sections.Model) -> int:
    """The parameters of a LLaMA model without biases: embedding, LM head if it is not tied, a layer's attention
    (query, key, value, output), feed-forward (gate, up, down) and two norms, and the last norm."""
    hidden, head = shape.hidden_size, shape.hidden_size // shape.attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * head * shape.key_value_heads
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return (1 if shape.tied else 2) * shape.vocabulary * hidden + shape.layers * layer + hidden


AFTER = ("sft", "dpo", "lora")  # the stages after pretraining, each a section of its own
TRAINED = ("pretrain", *AFTER)  # the sections of all stages that train something
# The rows that each of them learns from.
ROWS = {"pretrain": TEXT, "sft": CONVERSATIONS, "dpo": PREFERENCES, "lora": CONVERSATIONS}


def trained_names(recipe: Recipe) -> list[str]:
    """The stages that train something, in their order."""
    return [*(length.name for length in curriculum(recipe)), *(kind for kind in AFTER if recipe.settings.get(kind))]


def warmup_steps(recipe: Recipe) -> int:
    pretrain = recipe.pretrain
    computed = round((pretrain.warmup_ratio or 0) * pretrain.steps)
    return computed if pretrain.warmup_steps is None else pretrain.warmup_steps


@dataclass(frozen=True)
class Length:
    """One context length of pretraining: blocks of `sequence_len` tokens, from after `first_step` to `last_step`."""

    name: str
    sequence_len: int
    first_step: int
    last_step: int

    def tokens(self, batch: int) -> int:
        """Tokens that it trains on, for `batch` blocks a step."""
        return (self.last_step - self.first_step) * batch * self.sequence_len


def curriculum(recipe: Recipe) -> list[Length]:
    lengths, first = [], 0
    for part in recipe.pretrain.curriculum:
        last = round(part.until * recipe.pretrain.steps)
        lengths.append(Length(f"pretrain-{part.sequence_len}", part.sequence_len, first, last))
        first = last
    return lengths


# Axolotl 0.19.0 passes FP8 only to its own trainer, which DPO does not use; and with an adapter, FP8 would have to
# convert the frozen weights again at every step.
FP8_STAGES = ("pretrain", "sft")


def precision_of(recipe: Recipe, kind: str) -> str:
    """fp8, bf16 or fp32: the precision of a stage's products, by its own line or the model's, and by the GPU."""
    section = recipe.settings.get(kind)
    stated = (section and section.get("precision")) or recipe.model.precision
    if stated == "fp32":
        return "fp32"
    gpu = catalog.gpu(recipe.machines.gpu)
    can = kind in FP8_STAGES and (stated == "fp8" or (gpu is not None and gpu.fp8))
    if stated in ("auto", "fp8") and can:
        return "fp8"
    return gpu.precision(fp16=False) if gpu and stated == "auto" else "bf16"


def compile_mode(recipe: Recipe, kind: str) -> str | None:
    """The mode of torch.compile, or None. Autotuning pays on Hopper; under FP8 its search gains nothing."""
    stated = recipe.speed.compile
    if stated != "auto":
        return None if stated == "off" else stated
    gpu = catalog.gpu(recipe.machines.gpu)
    hopper = gpu is not None and gpu.capability[0] == 9
    return "max-autotune" if hopper and precision_of(recipe, kind) != "fp8" else "default"
