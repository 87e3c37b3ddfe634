"""The memory of one GPU, part by part, at its peak. Bytes throughout."""

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from runner import catalog
from runner.catalog.hardware import GIB
from runner.parts.planner import constants, parameters
from runner.parts.planner.state import (
    State,
    by_length,
    copies,
    gradient,
    held,
    of_words,
    packed,
    weights_of,
)
from runner.parts.planner.workload import FULL, HALF, TABLES, Run, Workload

EVALUATION, LOADING = "evaluation", "loading"
# What may be the peak of training: before the first step, and the phases of a step, in order.
PHASES = (LOADING, "forward", "loss", "backward", "step")

# NCCL's channels, where GPUs talk to each other: published are 0.53 GiB among 2 A100 and 0.67 among
# 4 (NVIDIA/nccl, issue 964), and 1.45 to 1.6 over several machines (stas00/ml-engineering;
# NVIDIA/nccl, issue 864).
NCCL_LEAST = int(0.7 * GIB)
NCCL_A_PEER = int(0.07 * GIB)
NCCL_MOST = int(1.6 * GIB)


class Moment(NamedTuple):
    """A moment of training, in bytes on one GPU. base: state between steps, and gathered or loaded
    weights."""

    name: str
    base: int
    gradients: int
    activations: int
    logits: int = 0
    temporary: int = 0

    @property
    def size(self) -> int:
        return self.base + self.gradients + self.activations + self.logits + self.temporary


class Memory(NamedTuple):
    """Bytes on one GPU. state: held between steps. peak: the moment of training with the most
    tensors; moments: all of a step, in order. evaluation: the peak of tensors in evaluation.
    slack_share: what the allocator holds beyond tensors, as a share of them. shown: the figure of
    nvidia-smi, which is more than the run needs, because the allocator gives back only what others
    need."""

    state: State
    peak: Moment
    moments: tuple[Moment, ...]
    evaluation: int
    context: int
    slack_share: float
    shown: int

    @property
    def tensors(self) -> int:
        """PyTorch's allocated memory at the peak of training."""
        return self.peak.size

    @property
    def slack(self) -> int:
        return round(self.tensors * self.slack_share)

    @property
    def total(self) -> int:
        """The driver's used memory, the larger of training and evaluation."""
        return max(self.tensors + self.slack + self.context, self.in_evaluation)

    @property
    def in_evaluation(self) -> int:
        """The driver's used memory in evaluation."""
        return self.evaluation + round(self.evaluation * self.slack_share) + self.context

    @property
    def moment(self) -> str:
        """The moment of the largest total: of training, or evaluation."""
        if self.total == self.in_evaluation:
            return EVALUATION
        return self.peak.name

    def parts(self) -> dict[str, int]:
        """The parts of the total at the peak of training; all but the last two are tensors."""
        state = self.state
        peak = self.peak
        return {
            "weights": state.weights,
            "gradients": peak.gradients,
            "optimizer": state.optimizer,
            "activations": peak.activations,
            "logits": peak.logits,
            "temporary": peak.temporary
            + peak.base
            - state.weights
            - state.optimizer
            - state.buffers,
            "communication": state.buffers,
            "context": self.context,
            "slack": self.slack,
        }


def estimate(workload: Workload) -> Memory:
    """The memory of a language model on each of its GPUs."""
    return _estimate(workload, constants.constants(workload.machines.gpu))


@lru_cache(maxsize=1024)
def _estimate(workload: Workload, _: constants.Constants) -> Memory:
    """The constants of the card are part of the cache key, because `constants.taking` changes
    them."""
    state = held(workload)
    return at_peak(workload, state, _moments(workload, state), evaluation(workload, state))


def whole(run: Run, tensors: int) -> int:
    """The used bytes of a GPU with these bytes of tensors: with the context and the allocator's
    slack."""
    card_constants = constants.constants(run.machines.gpu)
    return (
        round(tensors * (1 + card_constants.slack))
        + card_constants.context
        + nccl(run.machines.world_size)
    )


def at_peak(run: Run, state: State, moments: Iterable[Moment], evaluation: int) -> Memory:
    """The memory of a run from its state between steps, the moments that can be the peak of
    training, and the bytes of tensors in evaluation."""
    moments = sorted(moments, key=lambda moment: PHASES.index(moment.name))
    peak = max(moments, key=lambda moment: moment.size)
    card_constants = constants.constants(run.machines.gpu)
    context = card_constants.context + nccl(run.machines.world_size)
    most = max(peak.size, evaluation)
    whole_logits = isinstance(run, Workload) and run.whole_logits
    if run.expandable_segments:
        logits_kind = "expandable"
    elif whole_logits:
        logits_kind = "whole_logits"
    else:
        logits_kind = "small_logits"
    if run.sharding in ("none", "ddp"):
        slack: float = TABLES["slack"][logits_kind]["together"]
    else:
        slack = TABLES["slack"][logits_kind]["split"]
    reserved = round((1 + slack) * most) + context
    card = catalog.gpu(run.machines.gpu)
    if card:
        # A full card shows no more than it has.
        reserved = min(reserved, usable(card))
    return Memory(
        state,
        peak,
        moments=tuple(moment for moment in moments if moment.name != LOADING),
        evaluation=evaluation,
        context=context,
        slack_share=card_constants.slack,
        shown=max(whole(run, most), reserved),
    )


def nccl(gpus: int) -> int:
    """Bytes of NCCL's buffers on each of this many GPUs."""
    if gpus == 1:
        return 0
    buffers = int(0.39 * GIB) + NCCL_A_PEER * gpus
    return min(NCCL_MOST, max(NCCL_LEAST, buffers))


def _moments(workload: Workload, state: State) -> Iterator[Moment]:
    """The moments that can be the peak: the forward pass, the loss, each layer's backward pass, the
    embedding's, the step, and, before all of them, the loading of weights that are then split."""
    model = workload.model
    base = state.running
    tokens = workload.micro_batch_size * workload.answers * workload.most_tokens // workload.context
    trained = parameters.layers_trained(workload)
    lowest = parameters.first_trained(workload)
    copied = by_length(workload, tokens).copied
    by_trained = {}
    for is_trained in set(trained):
        activations = parameters.layer_activations(workload, is_trained) * tokens
        by_trained[is_trained] = activations + copied
    whole_layer = [by_trained[is_trained] for is_trained in trained]
    layer_input = parameters.boundary(workload) * tokens
    # Checkpointing keeps every layer's input, also below the first trained layer, if nothing else
    # is kept (torch/utils/checkpoint.py, without reentrance; seen in the trace).
    if workload.checkpointing:
        kept_by_layer = [layer_input] * len(trained)
    else:
        kept_by_layer = [0] * lowest + whole_layer[lowest:]
    activations = sum(kept_by_layer) + parameters.final_norm(workload) * tokens
    # With accumulation the gradients of the micro batches before are there from the start.
    if workload.accumulation > 1:
        earlier_gradients = state.gradients
    else:
        earlier_gradients = 0
    half_copies = copies(workload)
    if workload.checkpointing:
        kept_copies = 0
    else:
        kept_copies = half_copies
    base_at_loss = base - state.gathered + _gathered_at_loss(workload, state)
    at_loss = Moment(
        "loss", base_at_loss, earlier_gradients, activations, loss(workload, tokens), kept_copies
    )
    yield at_loss
    if workload.sharding == "fsdp":
        yield from _gathering(workload, state, at_loss, tokens)
    gathered = state.layer
    if not adapter_alone(workload):
        # While a layer runs, the two after it are gathered, each in one piece before it is copied
        # out.
        gathered *= 3
    yield Moment("forward", base, earlier_gradients, sum(kept_by_layer[:-1]), 0, gathered)
    if half_copies:
        yield at_loss._replace(logits=_forward_end(workload, tokens), temporary=half_copies)
    # A reward model has no LM head.
    if workload.objective != "reward":
        head = of_words(workload, parameters.head(model))
    else:
        head = 0
    yield _head_backward(workload, at_loss, tokens, head)
    yield from _layers_backward(
        workload, state, earlier_gradients, tokens, head, whole_layer, kept_by_layer
    )
    yield Moment("step", base - state.gathered, state.gradients, 0, 0, step(workload, state))
    at_once = workload.micro_batch_size * workload.accumulation
    if workload.generated:
        yield Moment("forward", base, 0, 0, 0, writing(workload, at_once))
    if workload.objective == "ebft":  # features come from the output of every layer
        width = workload.width * (model.num_hidden_layers + 1) * model.hidden_size
        features = width * at_once * workload.most_tokens
        yield Moment("forward", base, earlier_gradients, 0, 0, features)
    if workload.sharding == "fsdp" and packed(workload):
        # Every process has a model in 4 or 8 bits whole on its GPU, and keeps it until all shares
        # exist (Axolotl 0.19.0: loaders/model.py, `device_map`; fsdp2.py, `original_sd`; in 8 bits
        # transformers 5.16, quantizers/quantizer_bnb_8bit.py, `update_device_map`). Others wait in
        # main memory.
        yield Moment(LOADING, weights_of(workload) + state.weights, 0, 0)


def writing(workload: Workload, rows: int) -> int:
    """Bytes while a GPU writes this many answers: keys and values of every token, those of one
    layer twice while they grow (transformers 5.16, DynamicLayer), and the logits of the next token
    in fp32, their softmax and a copy. vLLM takes its share of the card, and gives it back for
    training."""
    if workload.by_vllm:
        card = catalog.gpu(workload.machines.gpu)
        if card:
            return round(workload.by_vllm * usable(card))
        return 0
    model = workload.model
    keys = model.num_key_value_heads * model.head_dim
    layer = 2 * workload.width * rows * workload.most_tokens * keys
    logits = FULL * rows * model.vocab_size
    return (model.num_hidden_layers + 1) * layer + 3 * logits


def adapter_alone(workload: Workload) -> bool:
    """Whether an adapter's matrices are units of their own beside their layers', as in Axolotl
    0.19.0 under FSDP (monkeypatch/accelerate/fsdp2.py, _process_lora_module_for_fsdp)."""
    return workload.adapter is not None and workload.sharding == "fsdp"


def _gathered_at_loss(workload: Workload, state: State) -> int:
    """Gathered weights at the loss. The piece of a layer remains until the next one is gathered,
    which an adapter's matrices soon are; and preferences are compared outside of the model, when
    all of it is split again."""
    if workload.sharding == "fsdp" and workload.objective != "sft":
        return 0
    if adapter_alone(workload):
        return state.root
    return state.gathered


def _gathering(workload: Workload, state: State, at_loss: Moment, tokens: int) -> Iterator[Moment]:
    """When a forward pass begins, weights outside the layers and the first layer's are gathered,
    each into one piece, and copied out of it; the former again when the backward pass begins,
    because `reshard_after_forward` splits them after the forward pass. In addition there is what
    the loss keeps for its own backward pass."""
    base = state.running
    gradients = at_loss.gradients
    kept = at_loss.activations
    logits = FULL * tokens * workload.model.vocab_size
    if workload.passes_beside:  # the second model's
        yield Moment("forward", base, gradients, kept, logits, state.gathered)
    else:
        yield Moment(
            "forward", base, gradients, parameters.boundary(workload) * tokens, 0, state.gathered
        )
    if workload.fused_loss in ("fused", "cut"):
        logits = workload.width * tokens * workload.model.hidden_size
    yield Moment("backward", base - state.layer, gradients, kept, logits, state.root)


def _head_backward(workload: Workload, at_loss: Moment, tokens: int, head: int) -> Moment:
    """The LM head's backward pass: gradient of the logits in the head's precision, of its weight
    (head), and of its input, beside the copies that the loss has."""
    wide = workload.width
    if workload.fused_loss == "none":
        logits = wide * workload.compared(tokens) * workload.model.vocab_size
    else:
        logits = 0
    if workload.in_fp32(parameters.head(workload.model)):
        head += head // 2  # first in half precision, then in fp32
    fresh = head + wide * tokens * workload.model.hidden_size
    return at_loss._replace(name="backward", logits=logits, temporary=at_loss.temporary + fresh)


def _layers_backward(
    workload: Workload,
    state: State,
    earlier: int,
    tokens: int,
    head: int,
    layer_bytes: list[int],
    kept_by_layer: list[int],
) -> Iterator[Moment]:
    """The backward pass of each layer, the last one first, and of the embedding. earlier: gradients
    of the micro batches before; head: the gradient of the LM head's weight. layer_bytes:
    activations of each layer in its own backward pass; kept_by_layer: until then."""
    model = workload.model
    wide = workload.width
    base = state.running
    trained = parameters.layers_trained(workload)
    lowest = parameters.first_trained(workload)
    dora = by_length(workload, tokens)
    half_copies = copies(workload)
    split_adapter = adapter_alone(workload)
    # A tied head's gradient waits for the embedding's, beside those of the micro batches before.
    if model.tied and not state.root:
        tied_head = head
    else:
        tied_head = 0
    in_flight = parameters.backward(workload) * tokens + dora.in_flight
    backward_pass = max(in_flight, dora.measuring)
    if packed(workload) and workload.checkpointing:
        # A packed weight is unpacked for its backward pass (bitsandbytes, MatMul4Bit), when one of
        # those is gone.
        unpacked = HALF * max(map(prod, parameters.linear(model).values()))
        backward_pass += max(0, unpacked - HALF * model.intermediate_size * tokens)
    layers = parameters.of_layers(model, workload.unfrozen)
    for index in reversed(range(lowest, model.num_hidden_layers)):
        if workload.adapter:
            layer_gradient = state.gradients // len(layers)
        else:
            layer_gradient = gradient(workload, layers[index])
        remaining_gradient = layer_gradient
        if workload.sharding == "fsdp" and not workload.adapter:
            # What a layer leaves behind is its shard, in fp32.
            remaining_gradient = layer_gradient * FULL // (wide * workload.machines.world_size)
        produced = head + remaining_gradient * (model.num_hidden_layers - index)
        gradients_so_far = max(earlier, min(state.gradients, produced))
        kept = sum(kept_by_layer[: index + 1])
        layers_with_copies = index + 1
        if workload.checkpointing:
            kept += layer_bytes[index]
            layers_with_copies = 1
        temporary = backward_pass
        # The next layer is on its way, unless an adapter's matrices come before it.
        if trained[index]:
            # The down-projection's input is gone when gate's and up's gradients are there.
            temporary -= wide * model.intermediate_size * tokens
            # This layer's gradients are whole twice while they are summed and split.
            temporary += 3 * state.layer
        elif not split_adapter:
            temporary += state.layer
        temporary += half_copies * layers_with_copies // model.num_hidden_layers
        if workload.accumulation > 1:
            temporary += layer_gradient // 2 + tied_head
        yield Moment("backward", base, gradients_so_far, kept, 0, temporary)
        if workload.checkpointing or index == model.num_hidden_layers - 1:
            continue
        if trained[index] == trained[index + 1]:
            break  # the layers below are like this one and hold less
    embedding = of_words(workload, model.embedding)
    temporary = parameters.boundary(workload) * tokens + tied_head
    if workload.accumulation > 1:
        temporary += embedding
    if state.root and embedding:
        # Gradients of what is outside the layers are whole twice; a tied embedding's come from both
        # ends.
        whole_gradients = 3 if model.tied else 2
        temporary += state.root * whole_gradients - state.layer
    yield Moment("backward", base, state.gradients, 0, 0, temporary)


def _forward_end(workload: Workload, tokens: int, training: bool = True) -> int:
    """Bytes of logits and loss, and of autocast's copies, at the end of the forward pass. In
    preference training the loss comes after it, and the logits are in both precisions."""
    if workload.objective != "sft":
        return (HALF + FULL) * workload.compared(tokens) * workload.model.vocab_size
    return loss(workload, tokens, training and workload.fused_loss != "none")


def loss(workload: Workload, tokens: int, training: bool = True) -> int:
    """Bytes of logits and loss at their widest.

    Plain cross-entropy (transformers, loss_utils.py) holds the log-softmax, the gradient that
    reaches it and the one that leaves it, each in fp32: 12 bytes a token and vocabulary entry.
    Evaluation holds the logits in half precision, in fp32 and the log-softmax: 10. Chunked still
    holds the logits in half precision and twice in fp32, its own and accelerate's copy: 10. Liger
    (arXiv 2410.10989, section 3.2) holds a chunk of the rows, as small a share as hidden size over
    vocabulary, rounded up to a power of two of rows (0.8.1), and the gradients of input and weight,
    in training only; Cut Cross-Entropy (arXiv 2411.09009) always holds one chunk."""
    model = workload.model
    fused_loss = workload.fused_loss
    numbers = workload.compared(tokens) * model.vocab_size
    head_numbers = model.vocab_size * model.hidden_size
    if workload.objective != "sft":
        phase = "training" if training else "evaluation"
        times: float = TABLES["logits"][workload.objective][phase]
        return round(times * FULL * numbers)
    if fused_loss == "cut" or (fused_loss == "fused" and training):
        wide = workload.width
        chunks = -(-model.vocab_size // model.hidden_size)
        at_once = -(-tokens // max(1, chunks))
        if not training:
            return wide * at_once * model.vocab_size
        weight = of_words(workload, parameters.head(model))
        if fused_loss == "fused":
            at_once = min(tokens, 1 << (at_once - 1).bit_length())
            # While Liger adds a chunk's gradient of a head in half precision, it also holds the
            # product and its copy in fp32 (0.8.1 without `accum_dtype`); a head in fp32 is added in
            # place.
            if weight == HALF * head_numbers:
                weight += (HALF + FULL) * head_numbers
        chunk = wide * at_once * model.vocab_size
        return chunk + wide * tokens * model.hidden_size + weight
    holds_gradient = training and fused_loss == "none"
    if workload.precision == "fp32":
        size = 3 * FULL if holds_gradient else 2 * FULL
        return size * numbers
    size = 12 if holds_gradient else 10
    raised = 0
    if workload.in_fp32(parameters.head(model)):
        raised = HALF * head_numbers
    return size * numbers + raised


def step(workload: Workload, state: State) -> int:
    """Temporaries of the optimizer's step: plain ones work on lists of tensors, and AdamW's holds
    the roots of all second moments at once (torch/optim/adam.py, foreach); fused and 8-bit ones
    update in place. DeepSpeed joins a GPU's share of the gradients into one tensor and copies that
    to fp32 (0.18.9, runtime/zero/stage_1_and_2.py, step), in stage 3 by groups (stage3.py,
    _prepare_fp32_grad_for_sub_group); its optimizer's temporaries come when the half ones are
    gone."""
    if not workload.sharding.startswith("zero"):
        rule = workload.rule
        largest = max(map(prod, parameters.trained(workload).values()), default=0)
        return rule.lists * state.gradients + rule.largest * FULL * largest
    if workload.offload.optimizer:
        return 0
    share = parameters.trainable(workload) // workload.machines.world_size
    if workload.sharding == "zero3":
        share = min(share, workload.group)
    joined_width = workload.width
    if joined_width != FULL:
        joined_width += FULL
    return share * joined_width


def evaluation(workload: Workload, state: State) -> int:
    """The peak of evaluation: state, logits, and one layer in flight; no gradients, nothing
    kept."""
    at_once = workload.evaluation_batch_size * workload.answers
    tokens = at_once * workload.most_tokens // workload.context
    edge = parameters.boundary(workload) * tokens
    # Gate, its activation and up; an adapter's share is beside its layer's, and their sum.
    if not workload.adapter:
        wide = 3
    elif parameters.family(workload.model).fused:
        wide = 6
    else:
        wide = 5
    layer = wide * workload.width * workload.model.intermediate_size * tokens
    layer += by_length(workload, tokens).measuring
    if workload.attention == "eager":  # the scores, masked, and their softmax in fp32
        scores = tokens * workload.most_tokens * workload.model.num_attention_heads
        layer = max(layer, 2 * FULL * scores)
    at_loss = loss(workload, tokens, training=False)
    halves = copies(workload)
    if halves:
        at_loss = max(at_loss, _forward_end(workload, tokens, training=False) + halves)
    base = state.weights + state.optimizer + state.buffers
    if workload.generated:
        at_loss = max(at_loss, writing(workload, workload.evaluation_batch_size))
    # Beside a layer there are its input, its norm's output, the sum around attention, and the
    # embeddings, which a variable holds.
    if workload.sharding != "fsdp":
        in_layer = layer + 3 * state.layer + 4 * edge
        running = state.gathered + max(at_loss + edge, in_layer)
        gathering_root = 2 * state.root + state.root // workload.machines.world_size
        return base + max(running, gathering_root)
    # Weights are gathered into one piece and copied out of it, which the next layer's comes beside;
    # those outside the layers with the first layer's, in preference training beside the first
    # model's logits.
    if adapter_alone(workload):
        piece = 0
    else:
        piece = state.layer
    if workload.passes_beside:
        raised_logits = FULL * tokens * workload.model.vocab_size
    else:
        raised_logits = 0
    return base + max(
        _gathered_at_loss(workload, state) + at_loss + edge,
        state.gathered + piece + layer + 4 * edge,
        state.gathered + piece + state.layer + 2 * edge,
        2 * state.gathered + edge + raised_logits,
    )


def usable(gpu: catalog.Gpu) -> int:
    """Bytes of a card that PyTorch can use."""
    return round(gpu.usable_gib * GIB)


def cards(need: int, runs: Collection[Run]) -> list[catalog.Gpu]:
    """The cards of the catalog with `need` usable bytes that support all of `runs`, the smallest
    first."""
    able = []
    for name in catalog.gpu_names():
        card = catalog.gpu(name)
        if card and usable(card) >= need and all(run.runs_on(card) for run in runs):
            able.append(card)
    return sorted(able, key=lambda card: card.usable_gib)
