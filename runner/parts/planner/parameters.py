"""Parameters: every weight of a model by name and shape, from its geometry alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

from runner.catalog import Model
from runner.parts.planner.workload import Workload, matches


@dataclass(frozen=True)
class Family:
    """What one architecture adds to the LLaMA layer, as its modelling file in transformers 5.16.1 has it.

    fused: one layer for q, k, v and one for gate, up. qkv_bias: biases on q, k, v. head_norms: norms on q and k heads;
    joint_norms: each over all heads at once. norms: norms of a layer.
    """

    fused: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    joint_norms: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")


_GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    # Its multipliers scale by constants, which no backward pass keeps.
    "granite": Family(),
    "smollm3": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(head_norms=True),
    "olmo2": Family(
        head_norms=True, joint_norms=True, norms=("post_attention_layernorm", "post_feedforward_layernorm")
    ),
    "phi3": Family(fused=True),
    "gemma2": Family(norms=_GEMMA_NORMS),
    "gemma3_text": Family(head_norms=True, norms=_GEMMA_NORMS),
}


class UnknownArchitecture(Exception):
    """There are no formulas for models of this type."""


def family(model: Model) -> Family:
    """The architecture of a model. Raises UnknownArchitecture where none of that type is known."""
    if model.model_type not in FAMILIES:
        raise UnknownArchitecture(model.model_type)
    return FAMILIES[model.model_type]


def linear(model: Model) -> dict[str, tuple[int, int]]:
    """The linear layers inside one transformer layer: name to (in, out) features."""
    kind, hidden, inner = family(model), model.hidden_size, model.intermediate_size
    heads, groups = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    if kind.fused:
        return {
            "qkv_proj": (hidden, heads + 2 * groups),
            "o_proj": (heads, hidden),
            "gate_up_proj": (hidden, 2 * inner),
            "down_proj": (inner, hidden),
        }
    return {
        "q_proj": (hidden, heads),
        "k_proj": (hidden, groups),
        "v_proj": (hidden, groups),
        "o_proj": (heads, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def layer(model: Model, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one transformer layer's parameters."""
    kind, at = family(model), f"{model.layers_path}.{index}"
    attention = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"}
    for name, (fan_in, fan_out) in linear(model).items():
        path = f"{at}.{'self_attn' if name in attention else 'mlp'}.{name}"
        yield f"{path}.weight", (fan_out, fan_in)
        if kind.qkv_bias and name in ("q_proj", "k_proj", "v_proj"):
            yield f"{path}.bias", (fan_out,)
    if kind.head_norms:
        for name, heads in (("q_norm", model.num_attention_heads), ("k_norm", model.num_key_value_heads)):
            yield f"{at}.self_attn.{name}.weight", (model.head_dim * (heads if kind.joint_norms else 1),)
    for name in kind.norms:
        yield f"{at}.{name}.weight", (model.hidden_size,)


def named(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all parameters, as `named_parameters()` gives them; tied ones once."""
    yield model.embedding, (model.vocab_size, model.hidden_size)
    for index in range(model.num_hidden_layers):
        yield from layer(model, index)
    root = model.layers_path.rpartition(".")[0]
    yield f"{root}.norm.weight", (model.hidden_size,)
    if not model.tied:
        yield model.lm_head, (model.vocab_size, model.hidden_size)


@cache
def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The same as a table."""
    return dict(named(model))


def trained(workload: Workload) -> dict[str, tuple[int, ...]]:
    """The base model's trained parameters: name to shape."""
    return {} if workload.adapter else _trained(workload.model, workload.unfrozen)


@lru_cache(maxsize=256)
def _trained(model: Model, unfrozen: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes(model).items() if matches(unfrozen, name)}


@dataclass(frozen=True)
class Numbers:
    """How many numbers parameters hold: inside, those of linear layers; outside, those of norms, embedding and head, which may
    have another precision."""

    inside: int
    outside: int

    @property
    def whole(self) -> int:
        return self.inside + self.outside


@lru_cache(maxsize=256)
def numbers(model: Model, unfrozen: tuple[str, ...] = ()) -> Numbers:
    """Of the base model's parameters that are trained where these are; of none, all."""
    return _counted(_trained(model, unfrozen).items())


@lru_cache(maxsize=256)
def of_layers(model: Model, unfrozen: tuple[str, ...] = ()) -> tuple[Numbers, ...]:
    """The same of each layer."""
    trained = _trained(model, unfrozen)
    layers = ([one for one in layer(model, index) if one[0] in trained] for index in range(model.num_hidden_layers))
    return tuple(map(_counted, layers))


def _counted(named: Iterable[tuple[str, tuple[int, ...]]]) -> Numbers:
    counted = [(outside(name), prod(shape)) for name, shape in named]
    return Numbers(sum(count for out, count in counted if not out), sum(count for out, count in counted if out))


def outside(name: str) -> bool:
    """Whether a parameter of that name is a norm, the embedding or the head."""
    return "norm" in name or "embed_tokens" in name or "lm_head" in name


def total(model: Model) -> int:
    return numbers(model).whole


def adapter(workload: Workload) -> int:
    """Parameters of the adapter: rank × (in + out) for each linear layer that it names (arXiv 2106.09685, 4.1)."""
    if not workload.adapter:
        return 0
    shapes = linear(workload.model)
    per_layer = sum(workload.adapter.rank * sum(shapes[name]) for name in workload.adapter.targets if name in shapes)
    return per_layer * workload.model.num_hidden_layers


def trainable(workload: Workload) -> int:
    return adapter(workload) if workload.adapter else numbers(workload.model, workload.unfrozen).whole
