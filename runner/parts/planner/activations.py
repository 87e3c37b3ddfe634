"""Activations: what autograd keeps of a forward pass, tensor by tensor, in bytes a token.

The list follows the modelling files of transformers 5.16.1 under PyTorch's rules of what each operation keeps: a linear
layer keeps its input only where its weight is trained, a product keeps both factors that need gradients, a norm keeps
its input in fp32. It is the same reckoning as Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), for today's layers.
"""

from functools import lru_cache

from runner.catalog import Model
from runner.parts.planner import parameters
from runner.parts.planner.workload import FULL, HALF, Adapter, Workload, matches


def layer(workload: Workload, trained: bool) -> int:
    """Bytes a token that one transformer layer keeps. trained: whether its own weights are trained."""
    model, wide = workload.model, workload.widths
    kind = parameters.family(model)
    heads, groups = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    kept = sum(_norm(workload, model.hidden_size, trained, kind) for _ in kind.norms)
    if kind.head_norms:
        kept += _norm(workload, heads, trained, kind) + _norm(workload, groups, trained, kind)
    kept += _attention(workload, heads, groups)
    kept += 3 * wide.linear * model.intermediate_size  # gate, its activation, up
    if workload.adapter:
        return kept + _adapted(workload, workload.adapter)
    if trained:
        # Inputs of the linear layers. The output of attention is kept already; in an fp32 stream every linear layer
        # makes its own copy in half precision.
        copies = (1 + 1) if wide.stream == wide.linear or kind.fused else (3 + 2)
        kept += copies * wide.linear * model.hidden_size + wide.linear * model.intermediate_size
    return kept


def _norm(workload: Workload, size: int, trained: bool, kind: parameters.Family) -> int:
    """An RMS norm keeps its input in fp32, and what its weight multiplies where the weight is trained."""
    if workload.adapter:
        trained = False
    # Gemma's and OLMo 2's multiply before they leave fp32.
    scaled = FULL if kind.joint_norms or len(kind.norms) == 4 else workload.widths.stream
    return FULL * size + FULL + (scaled * size if trained else 0)


def _attention(workload: Workload, heads: int, groups: int) -> int:
    """FlashAttention and SDPA keep q, k, v, the output and a log-sum-exp (arXiv 2205.14135, section 3.1); plain
    attention keeps the softmax in fp32 and in half precision, and k and v repeated for every head."""
    model, wide = workload.model, workload.widths.linear
    if repeated(workload):
        return wide * 4 * heads + FULL * model.num_attention_heads
    # Where q, k and v are one linear layer, keeping v keeps the whole of its output.
    value = heads + 2 * groups if parameters.family(model).fused else groups
    if workload.attention == "eager":
        scores = model.num_attention_heads * workload.most_tokens * (FULL + (wide if wide == HALF else 0))
        return wide * (heads + 3 * heads) + scores
    return wide * (2 * heads + groups + value) + FULL * model.num_attention_heads


def repeated(workload: Workload) -> bool:
    """Whether SDPA gets a mask for padding, beside which transformers repeats keys and values for every head (5.16,
    `use_gqa_in_sdpa`): PEFT's published runs at 4 × 768 tokens hold 1 GiB more by that."""
    rows = workload.micro_batch_size * workload.answers
    grouped = workload.model.num_key_value_heads < workload.model.num_attention_heads
    padded = rows > 1 and not workload.packing and not workload.joined
    return workload.attention == "sdpa" and padded and grouped


def _adapted(workload: Workload, adapter: Adapter) -> int:
    """What the adapter's two small matrices keep beside each linear layer (peft 0.20.0, lora/layer.py, lora/bnb.py).

    Beside a plain layer each keeps an input of its own, in half precision after a detour through fp32; beside a 4-bit
    layer the input is shared, unless dropout makes each its own.
    Dropout keeps a byte a number.
    """
    wide, shapes = workload.widths.linear, parameters.linear(workload.model)
    kept, shared = 0, set()
    for name in adapter.targets:
        fan_in = shapes[name][0]
        kept += wide * adapter.rank
        raised_first = not adapter.four_bit and workload.precision != "fp32"
        own = adapter.dropout > 0 or raised_first
        if own:
            kept += (wide + (1 if adapter.dropout else 0)) * fan_in
        else:
            shared.add(_input(name))
    sizes = {
        "attention": workload.model.hidden_size,
        "mlp": workload.model.hidden_size,
        "down": workload.model.intermediate_size,
        "output": 0,  # attention keeps it already
    }
    return kept + wide * sum(sizes[source] for source in shared)


def _input(name: str) -> str:
    """Which activation a linear layer reads."""
    if name in ("q_proj", "k_proj", "v_proj", "qkv_proj"):
        return "attention"
    return {"o_proj": "output", "down_proj": "down"}.get(name, "mlp")


def boundary(workload: Workload) -> int:
    """Bytes a token between two layers, which is all that checkpointing keeps of a layer."""
    return workload.widths.stream * workload.model.hidden_size


def backward(workload: Workload) -> int:
    """Bytes a token that are in flight while a layer's backward pass is at its widest, in the feed-forward part: the
    gradients of the product, of gate and of up, and of the stream."""
    wide, count = workload.widths, 3
    adapted = workload.adapter and {"gate_proj", "up_proj", "gate_up_proj"} & set(workload.adapter.targets)
    if adapted and workload.checkpointing and not (workload.adapter and workload.adapter.four_bit):
        # An adapter's own, before both are summed; what is kept without checkpointing is gone by then. Beside 4-bit weights it
        # reads what they read, and needs no copy of it.
        count += 2 if parameters.family(workload.model).fused else 1
    return count * wide.linear * workload.model.intermediate_size + 2 * wide.stream * workload.model.hidden_size


def first_trained(workload: Workload) -> int:
    """The first layer whose activations are kept: 0 where the embedding or an adapter in it is trained."""
    model = workload.model
    if workload.adapter or workload.trains(model.embedding):
        return 0
    trained = layers_trained(workload)
    return trained.index(True) if any(trained) else model.num_hidden_layers


def layers_trained(workload: Workload) -> tuple[bool, ...]:
    """For each layer, whether any of its own weights is trained."""
    layers = workload.model.num_hidden_layers
    return (False,) * layers if workload.adapter else _layers_trained(workload.model, workload.unfrozen)


@lru_cache(maxsize=256)
def _layers_trained(model: Model, unfrozen: tuple[str, ...]) -> tuple[bool, ...]:
    layers = range(model.num_hidden_layers)
    return tuple(any(matches(unfrozen, name) for name, _ in parameters.layer(model, index)) for index in layers)


def final_norm(workload: Workload) -> int:
    """The last norm, and the LM head's input where the head is trained; bytes a token."""
    model, wide = workload.model, workload.widths
    head = model.embedding if model.tied else model.lm_head
    root = model.layers_path.rpartition(".")[0]
    kept = _norm(workload, model.hidden_size, workload.trains(f"{root}.norm.weight"), parameters.family(model))
    return kept + (wide.linear * model.hidden_size if workload.trains(head) else 0)
