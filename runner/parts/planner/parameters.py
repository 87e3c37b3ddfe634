"""Parameters: every weight of a model by name and shape, and what its layers keep for the backward
pass."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

from runner import catalog
from runner.catalog import Model, UnknownArchitecture
from runner.parts.planner.workload import FULL, HALF, Adapter, Workload, matches


@dataclass(frozen=True)
class Family:
    """What one architecture adds to the LLaMA layer (families.toml in the catalog). fused: one
    layer for q, k, v and one for gate, up. qkv_bias: biases on q, k, v. head_norms: norms on q and
    k heads; joint_norms: each over all heads at once. norms: norms of a layer. layer: the shapes of
    another kind of layer, whose memory and time have no formulas. experts: weights of experts in a
    layer. rest: weights beside the layers. towers: the parts that see or hear."""

    fused: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    joint_norms: bool = False
    norms: Sequence[str] = ("input_layernorm", "post_attention_layernorm")
    final_norm: str = "norm"
    layer: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    experts: Sequence[str] = ()
    rest: Mapping[str, str] = field(default_factory=dict)
    towers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def architecture(model_type: str) -> Family:
    """The facts about an architecture, LLaMA's for one that the catalog does not have."""
    facts = catalog.table("families").get(model_type, {})
    names = {fact.name for fact in fields(Family)}
    return Family(**{name: fact for name, fact in facts.items() if name in names})


def has_formulas(model_type: str) -> bool:
    return model_type in catalog.model_types() and not architecture(model_type).layer


def family(model: Model) -> Family:
    """The architecture of a model. Raises UnknownArchitecture if there are no formulas for models
    of that type."""
    if not has_formulas(model.model_type):
        raise UnknownArchitecture(model.model_type)
    return architecture(model.model_type)


def _size(model: Model, counts: Mapping[str, int], text: str) -> int:
    """A size of a weight: a sum of products of counts and settings."""
    size = 0
    for term in text.split("+"):
        product = 1
        for word in term.split("*"):
            product *= _factor(model, counts, word.strip())
        size += product
    return size


def _factor(model: Model, counts: Mapping[str, int], word: str) -> int:
    """A number, a count, a setting of the model, of its half for text (`text.`), one of these
    divided by another, or 1 where it is 0 or false (`!`)."""
    if word.isdigit():
        return int(word)
    if word in counts:
        return int(counts[word])
    if word.startswith("!"):
        return int(not _factor(model, counts, word[1:]))
    whole, _, divisor = word.partition("//")
    if divisor:
        return _factor(model, counts, whole) // _factor(model, counts, divisor)
    return int(getattr(model, word.removeprefix("text.")))


def linear(model: Model) -> dict[str, tuple[int, int]]:
    """The linear layers inside one transformer layer: name to (in, out) features."""
    facts = family(model)
    hidden = model.hidden_size
    inner = model.intermediate_size
    heads = model.num_attention_heads * model.head_dim
    groups = model.num_key_value_heads * model.head_dim
    if facts.fused:
        into_heads = {"qkv_proj": (hidden, heads + 2 * groups)}
        widening = {"gate_up_proj": (hidden, 2 * inner)}
    else:
        into_heads = {
            "q_proj": (hidden, heads),
            "k_proj": (hidden, groups),
            "v_proj": (hidden, groups),
        }
        widening = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner)}
    return into_heads | {"o_proj": (heads, hidden)} | widening | {"down_proj": (inner, hidden)}


def layer(model: Model, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one transformer layer's parameters. Raises UnknownArchitecture if they
    are unknown for its type, or for a model without all of its settings."""
    facts = architecture(model.model_type)
    prefix = f"{model.layers_path}.{index}"
    if facts.layer:
        try:
            counts = model.own
            for part in model.kinds(index):
                for name, sizes in facts.layer.get(part, {}).items():
                    shape = _shape(model, counts, sizes)
                    if all(shape):
                        yield f"{prefix}.{name}", shape
        except (AttributeError, IndexError):
            raise UnknownArchitecture(model.model_type) from None
        return
    for name, (fan_in, fan_out) in linear(model).items():
        path = model.linear_path(index, name)
        yield f"{path}.weight", (fan_out, fan_in)
        if facts.qkv_bias and name in ("q_proj", "k_proj", "v_proj"):
            yield f"{path}.bias", (fan_out,)
    if facts.head_norms:
        query_norm = key_norm = model.head_dim
        if facts.joint_norms:
            query_norm *= model.num_attention_heads
            key_norm *= model.num_key_value_heads
        yield f"{prefix}.self_attn.q_norm.weight", (query_norm,)
        yield f"{prefix}.self_attn.k_norm.weight", (key_norm,)
    for name in facts.norms:
        yield f"{prefix}.{name}.weight", (model.hidden_size,)


def named(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all parameters, as in `named_parameters()`; tied ones once."""
    yield model.embedding, (model.vocab_size, model.hidden_size)
    for index in range(model.num_hidden_layers):
        yield from layer(model, index)
    facts = architecture(model.model_type)
    yield f"{model.root}.{facts.final_norm}.weight", (model.hidden_size,)
    for name, sizes in facts.rest.items():
        shape = _shape(model, model.own, sizes)
        if all(shape):
            yield f"{model.root}.{name}", shape
    if not model.tied:
        yield model.lm_head, (model.vocab_size, model.hidden_size)
    yield from of_towers(model)


def of_towers(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of the parts that see or hear."""
    for part, settings in model.tower_settings.items():
        tower = architecture(model.model_type).towers[part]
        for name, sizes in tower["once"].items():
            yield name, _shape(model, settings, sizes)
        shapes = {name: _shape(model, settings, sizes) for name, sizes in tower["each"].items()}
        for index in range(settings[tower["count"]]):
            for name, shape in shapes.items():
                yield f"{tower['layers']}.{index}.{name}", shape


def _shape(model: Model, counts: Mapping[str, int], sizes: str) -> tuple[int, ...]:
    return tuple(_size(model, counts, size) for size in sizes.split(","))


def trained(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Name and shape of the base model's trained parameters."""
    if workload.adapter:
        return {}
    return _trained(workload.model, workload.unfrozen)


@lru_cache(maxsize=256)
def _trained(model: Model, unfrozen: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in named(model) if matches(unfrozen, name)}


class Numbers(NamedTuple):
    """How many numbers parameters have in linear layers, and in norms, embedding and head, maybe of
    other precision."""

    inside: int
    outside: int

    @property
    def whole(self) -> int:
        return self.inside + self.outside


@lru_cache(maxsize=256)
def numbers(model: Model, unfrozen: tuple[str, ...] = ()) -> Numbers:
    """The numbers of the base model's parameters that match these patterns; without patterns, of
    all."""
    return _counted(_trained(model, unfrozen).items())


@lru_cache(maxsize=256)
def of_layers(model: Model, unfrozen: tuple[str, ...]) -> tuple[Numbers, ...]:
    """The same of each layer."""
    layers = (layer(model, index) for index in range(model.num_hidden_layers))
    return tuple(
        _counted((name, shape) for name, shape in weights if matches(unfrozen, name))
        for weights in layers
    )


@lru_cache(maxsize=256)
def tower(model: Model) -> Numbers:
    """How many numbers the parts have that see or hear, which text neither uses nor trains."""
    return _counted(of_towers(model))


def tower_linear(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The linear layers of these parts, which are packed as all others."""
    for name, shape in of_towers(model):
        if len(shape) == 2 and name.endswith(".weight") and "pos" not in name:
            yield name, shape


def _counted(weights: Iterable[tuple[str, tuple[int, ...]]]) -> Numbers:
    inside_count = 0
    outside_count = 0
    for name, shape in weights:
        if outside(name):
            outside_count += prod(shape)
        else:
            inside_count += prod(shape)
    return Numbers(inside_count, outside_count)


def outside(name: str) -> bool:
    """Whether a parameter of that name is a norm, the embedding or the head."""
    return "norm" in name or "embed_tokens" in name or "lm_head" in name


def total(model: Model) -> int:
    return numbers(model).whole


def in_linear(model: Model) -> int:
    """Numbers in the linear layers of one transformer layer."""
    return sum(map(prod, linear(model).values()))


def head(model: Model) -> str:
    """The name of the weight that the LM head multiplies with."""
    if model.tied:
        return model.embedding
    return model.lm_head


def adapter(workload: Workload) -> int:
    """Parameters of the adapter: rank × (in + out) for each linear layer that it names (arXiv
    2106.09685, 4.1), as much for each expert, and with DoRA one more for each output."""
    lora = workload.adapter
    if not lora:
        return 0
    count = 0
    for shape in adapted(workload.model, lora):
        matrices = prod(shape[:-2])
        count += matrices * lora.rank * sum(shape[-2:])
        if lora.dora:
            count += matrices * shape[0]
    return count


@lru_cache(maxsize=256)
def adapted(model: Model, adapter: Adapter) -> tuple[tuple[int, ...], ...]:
    """The shapes of all weights that an adapter's matrices are beside."""

    def has(name: str, dimensions: int) -> bool:
        path, _, parameter = name.rpartition(".")
        if dimensions == 2 and parameter == "weight":
            module = path.rpartition(".")[2]
            is_chosen = not adapter.pattern or re.fullmatch(adapter.pattern, path)
            return bool(is_chosen) and module in adapter.targets
        return dimensions == 3 and name.endswith(adapter.parameters)

    weights: list[tuple[str, tuple[int, ...]]] = []
    for index in range(model.num_hidden_layers):
        weights.extend(layer(model, index))
    return tuple(shape for name, shape in weights if has(name, len(shape)))


def of_experts(model: Model) -> int:
    """Numbers in the experts of a model; 0 if it has none."""
    experts = tuple(architecture(model.model_type).experts)
    return sum(prod(shape) for name, shape in named(model) if name.endswith(experts))


def trainable(workload: Workload) -> int:
    if workload.adapter:
        return adapter(workload)
    return numbers(workload.model, workload.unfrozen).whole


def layer_activations(workload: Workload, trained: bool) -> int:
    """Bytes a token that one transformer layer keeps. trained: whether its own weights are
    trained."""
    model = workload.model
    wide = workload.width
    facts = family(model)
    heads = model.num_attention_heads * model.head_dim
    groups = model.num_key_value_heads * model.head_dim
    kept = sum(_norm(workload, model.hidden_size, trained, facts) for _ in facts.norms)
    if facts.head_norms:
        kept += _norm(workload, heads, trained, facts) + _norm(workload, groups, trained, facts)
    kept += _attention(workload, heads, groups)
    kept += 3 * wide * model.intermediate_size  # gate, its activation, up
    if workload.adapter:
        return kept + _adapted(workload, workload.adapter)
    if trained:
        # Inputs of the linear layers. The output of attention is kept already; in an fp32 stream
        # every linear layer makes its own copy in half precision.
        if workload.stream_width == wide or facts.fused:
            copies = 1 + 1
        else:
            copies = 3 + 2
        kept += copies * wide * model.hidden_size + wide * model.intermediate_size
    return kept


def _norm(workload: Workload, size: int, trained: bool, facts: Family) -> int:
    """An RMS norm keeps its input in fp32, and, if its weight is trained, the input of the
    multiplication."""
    # Gemma's and OLMo 2's multiply before they leave fp32.
    if facts.joint_norms or len(facts.norms) == 4:
        scaled_width = FULL
    else:
        scaled_width = workload.stream_width
    kept = FULL * size + FULL
    if trained:
        kept += scaled_width * size
    return kept


def _attention(workload: Workload, heads: int, groups: int) -> int:
    """FlashAttention and SDPA keep q, k, v, the output and a log-sum-exp (arXiv 2205.14135, section
    3.1); plain attention keeps the softmax in fp32 and in half precision, and k and v repeated for
    every head."""
    model = workload.model
    wide = workload.width
    if repeated(workload):
        return wide * 4 * heads + FULL * model.num_attention_heads
    # Where q, k and v are one linear layer, keeping v keeps the whole of its output.
    if family(model).fused:
        value = heads + 2 * groups
    else:
        value = groups
    if workload.attention == "eager":
        score_width = FULL
        if wide == HALF:
            score_width += HALF
        scores = model.num_attention_heads * workload.most_tokens * score_width
        return wide * (heads + 3 * heads) + scores
    log_sum_exp = FULL * model.num_attention_heads
    return wide * (2 * heads + groups + value) + log_sum_exp


def repeated(workload: Workload) -> bool:
    """Whether SDPA gets a mask for padding, beside which transformers repeats keys and values for
    every head (5.16, `use_gqa_in_sdpa`): PEFT's published runs at 4 × 768 tokens hold 1 GiB more by
    that."""
    rows = workload.micro_batch_size * workload.answers
    grouped = workload.model.num_key_value_heads < workload.model.num_attention_heads
    padded = rows > 1 and not workload.packing and not workload.joined
    return workload.attention == "sdpa" and padded and grouped


def _adapted(workload: Workload, adapter: Adapter) -> int:
    """What the adapter's two small matrices keep beside each linear layer (peft 0.20.0,
    lora/layer.py, lora/bnb.py). Beside a plain layer each keeps an input of its own, in half
    precision after a detour through fp32; beside a 4-bit layer the input is shared, unless dropout
    makes each its own. Dropout keeps a byte a number. An 8-bit layer itself keeps its input."""
    wide = workload.width
    shapes = linear(workload.model)
    reads_shared_input = adapter.packed or workload.precision == "fp32"
    has_own_input = adapter.dropout > 0 or adapter.dora or not reads_shared_input
    own_input_width = wide
    if adapter.dropout:
        own_input_width += 1
    kept = len(adapter.targets) * wide * adapter.rank
    shared_inputs = dict[str, int]()
    for name in adapter.targets:
        fan_in, fan_out = shapes[name]
        # DoRA keeps the outputs of the layer and of the matrices, which the lengths multiply
        # (lora/dora.py); beside a 4-bit layer its result stays in fp32, and so does what follows
        # (traces of Llama and Qwen).
        if adapter.dora:
            outputs = 3.2 if adapter.packed else 2
            kept += round(outputs * wide * fan_out)
        if has_own_input:
            kept += own_input_width * fan_in
        if name == "o_proj":  # attention keeps its output already
            continue
        if not has_own_input or adapter.eight_bit:
            shared_inputs[_INPUTS.get(name, "attention")] = fan_in
    return kept + wide * sum(shared_inputs.values())


# The inputs of linear layers, by layer; the others read that of attention.
_INPUTS = {
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "gate_up_proj": "mlp",
    "down_proj": "down",
}


def boundary(workload: Workload) -> int:
    """Bytes a token between two layers: all that checkpointing keeps of a layer."""
    return workload.stream_width * workload.model.hidden_size


def backward(workload: Workload) -> int:
    """Bytes a token in flight at the widest point of a layer's backward pass, in the feed-forward
    part: the gradients of the product, of gate and of up, and of the stream."""
    count = 3
    adapter = workload.adapter
    fused = family(workload.model).fused
    # An adapter's own, before both are summed; what is kept without checkpointing is gone by then.
    # Beside 4-bit weights it reads what they read, and needs no copy of it.
    if adapter and workload.checkpointing and (adapter.dora or not adapter.packed):
        beside_down = "down_proj" in adapter.targets
        if beside_down and adapter.dropout:
            count += 3  # dropout has a gradient on each of its sides
        elif fused and (beside_down or "gate_up_proj" in adapter.targets):
            count += 2
        elif beside_down:
            count += 1
    product = workload.width * workload.model.intermediate_size
    return count * product + 2 * boundary(workload)


def first_trained(workload: Workload) -> int:
    """The first layer whose activations are kept: 0 where the embedding or an adapter in it is
    trained."""
    model = workload.model
    if workload.adapter or workload.trains(model.embedding):
        return 0
    trained = layers_trained(workload)
    if any(trained):
        return trained.index(True)
    return model.num_hidden_layers


def layers_trained(workload: Workload) -> tuple[bool, ...]:
    """For each layer, whether any of its own weights is trained."""
    if workload.adapter:
        return (False,) * workload.model.num_hidden_layers
    return _layers_trained(workload.model, workload.unfrozen)


@lru_cache(maxsize=256)
def _layers_trained(model: Model, unfrozen: tuple[str, ...]) -> tuple[bool, ...]:
    return tuple(numbers.whole > 0 for numbers in of_layers(model, unfrozen))


def final_norm(workload: Workload) -> int:
    """Bytes a token of the last norm, and of the LM head's input where the head is trained."""
    model = workload.model
    root = model.layers_path.rpartition(".")[0]
    norm_is_trained = workload.trains(f"{root}.norm.weight")
    kept = _norm(workload, model.hidden_size, norm_is_trained, family(model))
    if workload.trains(head(model)):
        kept += workload.width * model.hidden_size
    return kept
