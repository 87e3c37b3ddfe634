"""Stand-ins for code for GPUs alone, which allocate the same memory; losses on preferences; the
count of live bytes."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import bitsandbytes as bnb
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.pytorch_utils import Conv1D

from runner.catalog import Optimizer
from runner.parts.planner.parameters import outside
from runner.tools.process import without_gpu_kernels

# GPT-2 and its relatives have a linear class of their own.
LINEAR = (nn.Linear, Conv1D)
ATTENTION, PADDED = "recipe_stand_in", "recipe_stand_in_padded"
# PyTorch's allocator for GPUs hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp,
# kMinBlockSize).
BLOCK = 512
BETA = 0.1  # of losses on preferences
# The models of transformers 5.16.1 that have the gated delta rule.
WITH_DELTA_RULE = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
# Operations of each pass of the attention below, which PyTorch's counter does not see; cleared
# before each count.
counted: list[int] = []


class _Flash(torch.autograd.Function):
    """FlashAttention 2's memory: forward keeps q, k, v, the output and the log-sum-exp; backward
    has an fp32 accumulator for dq, and dk, dv for all heads before they are summed into groups
    (`mha_bwd`, csrc/flash_api.cpp). Operations: 2 a pair and channel for each of the two products
    forward, and 2.5 times as many backward (arXiv 2307.08691, section 4.1)."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pairs: int
    ) -> Any:
        output = torch.empty_like(query)
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.operations = 4 * pairs * query.shape[0] * query.shape[2] * query.shape[3]
        counted.append(ctx.operations)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, _, lse = ctx.saved_tensors
        accumulator = torch.empty_like(query, dtype=torch.float32)
        delta = torch.empty_like(lse)
        if query.shape[2] != key.shape[2]:
            wide = [torch.empty_like(query) for _ in range(2)]
        else:
            wide = []
        gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del accumulator, delta, wide
        counted.append(ctx.operations * 5 // 2)
        return *gradients, None


def flash(
    module: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **options: object,
) -> tuple[Any, None]:
    """Attention in transformers' interface: query (batch, heads, tokens, head size); output (batch,
    tokens, heads, …). Values narrower than queries are padded, and the output cut, as transformers
    does it (`flash_attention_forward`)."""
    width = query.shape[-1]
    narrow = value.shape[-1]
    if narrow != width:
        value = torch.nn.functional.pad(value, [0, width - narrow])
    # The (query, key) pairs of a head: half of all if attention is causal, and no more keys than a
    # window holds.
    queries = query.shape[2]
    keys = key.shape[2]
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    pairs = queries * keys
    if causal and queries == keys:
        window = min(options.get("sliding_window") or keys, keys)
        pairs = keys * window - window * window // 2
    swapped = (tensor.transpose(1, 2) for tensor in (query, key, value))
    output = _Flash.apply(*swapped, pairs)
    if narrow != width:
        output = output[..., :narrow]
    return output, None


def padded(
    module: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *arguments: object,
    **kwargs: object,
) -> Any:
    """SDPA beside a mask for padding: transformers repeats keys and values for every head (5.16,
    `use_gqa_in_sdpa`)."""
    from transformers.integrations.sdpa_attention import repeat_kv

    count = getattr(module, "num_key_value_groups", 1)
    return flash(
        module, query, repeat_kv(key, count), repeat_kv(value, count), *arguments, **kwargs
    )


AttentionInterface.register(ATTENTION, flash)
AttentionInterface.register(PADDED, padded)


CHUNK = 64  # tokens


class _DeltaRule(torch.autograd.Function):
    """The gated delta rule by flash-linear-attention (0.5, ops/gated_delta_rule/chunk.py), which
    Axolotl brings, in chunks of tokens: forward keeps queries, keys, values, gates and a square for
    each chunk; both directions make, for a moment, the two products of each chunk, its new values
    and the states between chunks, and backward the gradients of all these. Operations: of those
    products, as the paper counts them (arXiv 2412.06464, section 3.3)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        beta: torch.Tensor,
    ) -> torch.Tensor:
        rows, tokens, heads, width = key.shape
        query, key = torch.empty_like(query), torch.empty_like(key)  # of length 1
        lengths = [query.new_empty((rows, tokens, heads), dtype=torch.float32) for _ in range(3)]
        square = key.new_empty((rows, tokens, heads, CHUNK))
        moment = _moment_of_a_chunk(key, value)
        output = torch.empty_like(value)
        del moment
        ctx.save_for_backward(query, key, value, gate, beta, square, *lengths)
        products = CHUNK * (3 * width + 2 * value.shape[-1]) + 2 * width * value.shape[-1]
        ctx.operations = 2 * rows * tokens * heads * products
        counted.append(ctx.operations)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, gate, beta, *_ = ctx.saved_tensors
        moment = [*_moment_of_a_chunk(key, value), *_moment_of_a_chunk(key, value)]
        gradients = tuple(map(torch.empty_like, (query, key, value, gate, beta)))
        del moment
        counted.append(2 * ctx.operations)
        return gradients


def _moment_of_a_chunk(key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    """Two products, the new values, and the states between chunks."""
    rows, tokens, heads, width = key.shape
    states = key.new_empty((rows, -(-tokens // CHUNK), heads, width, value.shape[-1]))
    return [torch.empty_like(key), torch.empty_like(value), torch.empty_like(value), states]


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **options: object,
) -> tuple[Any, None]:
    """The gated delta rule in transformers' interface: each (batch, tokens, heads, head size), or
    one number a head."""
    return _DeltaRule.apply(query, key, value, g, beta), None


class _MatMul4Bit(torch.autograd.Function):
    """bitsandbytes' MatMul4Bit: keeps no input, and unpacks the weight for a moment in both
    directions."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, packed: torch.Tensor, shape: Any) -> Any:
        ctx.save_for_backward(packed)
        ctx.shape, ctx.like = shape, inputs.shape
        unpacked = inputs.new_empty(shape)
        output = inputs.new_empty((*inputs.shape[:-1], shape[0]))
        del unpacked
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        unpacked = gradient.new_empty(ctx.shape)
        result = gradient.new_empty(ctx.like)
        del unpacked
        return result, None, None


class FourBit(bnb.nn.Linear4bit):
    """A linear layer whose weight is in 4 bits with double quantisation: half a byte a number, and
    for each 64 numbers a byte, for each 16,384 numbers 4 bytes (arXiv 2305.14314, section 3). old:
    a linear layer, or one of GPT-2's, whose weight is turned. stored: the type that the packed
    numbers are held as."""

    def __init__(self, old: nn.Linear | Conv1D, dtype: torch.dtype, stored: torch.dtype) -> None:
        nn.Module.__init__(self)
        shape = tuple(old.weight.shape)
        if isinstance(old, Conv1D):
            self.shape = shape[::-1]
        else:
            self.shape = shape
        self.compute_dtype = dtype
        self.out_features, self.in_features = self.shape
        count = old.weight.numel()
        packed = torch.empty((count // 2 // stored.itemsize, 1), dtype=stored)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight.compress_statistics = True
        self.weight.quant_type = "nf4"
        self.scales = nn.Buffer(torch.empty(count // 64, dtype=torch.uint8))
        self.scales_of_scales = nn.Buffer(torch.empty(count // 16384, dtype=torch.float32))
        self.bias = old.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # bitsandbytes gives back what it is given; under autocast that is the half precision of the
        # run.
        output = _MatMul4Bit.apply(inputs.to(self.compute_dtype), self.weight, self.shape)
        if self.bias is None:
            return output
        return output + self.bias.to(output.dtype)

    # DoRA asks for the weights, of this kind of layer by HQQ's names (peft 0.20.0,
    # utils/integrations.py).
    W_q = property(lambda self: self.weight)

    def dequantize(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.compute_dtype, device=self.weight.device)


def pack(model: nn.Module, bits: int, packed: Callable[[object], nn.Module]) -> None:
    """Replaces every linear layer but the LM head, as bitsandbytes' loading in transformers
    does."""
    setattr(model, f"is_loaded_in_{bits}bit", True)
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in LINEAR and child is not head:
                setattr(parent, name, packed(child))


class _MatMul8Bit(torch.autograd.Function):
    """bitsandbytes' MatMul8bitLt (0.50.2): keeps its input; multiplies by way of half-precision and
    8-bit copies of it and a product in 32 bits, whose half-precision form it casts; and unpacks the
    weight backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(inputs, weight)
        small = torch.empty_like(inputs.to(torch.float16), dtype=torch.int8)
        product = small.new_empty((*inputs.shape[:-1], weight.shape[0]), dtype=torch.int32)
        halves = torch.empty_like(product, dtype=torch.float16)
        return halves.to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        unpacked = weight.to(inputs.dtype)
        return torch.matmul(gradient, unpacked), None


class EightBit(bnb.nn.Linear8bitLt):
    """A linear layer whose weight is in 8 bits, with a scale for each output (arXiv 2208.07339)."""

    def __init__(self, old: nn.Linear | Conv1D, stored: torch.dtype) -> None:
        nn.Module.__init__(self)
        shape = tuple(old.weight.shape)
        if isinstance(old, Conv1D):
            self.shape = shape[::-1]
        else:
            self.shape = shape
        self.out_features, self.in_features = self.shape
        numbers = torch.empty(self.out_features, self.in_features // stored.itemsize, dtype=stored)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.scales = nn.Buffer(torch.empty(self.out_features, dtype=torch.float32))
        self.state = bnb.MatmulLtState()
        self.index = None
        self.bias = old.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        device = inputs.device.type
        if torch.is_autocast_enabled(device):
            half = torch.get_autocast_dtype(device)
        else:
            half = inputs.dtype
        output = _MatMul8Bit.apply(inputs.to(half), self.weight.view(torch.int8))
        if self.bias is None:
            return output
        return output + self.bias.to(output.dtype)


def gpu_dropout(model: nn.Module) -> None:
    """Dropout as on a GPU, where it keeps a mask of one byte a number; on a CPU it keeps the noise
    itself."""

    def dropped(inputs: torch.Tensor, dropout: nn.Dropout) -> torch.Tensor:
        if dropout.training and dropout.p > 0:
            return torch.native_dropout(inputs, dropout.p, True)[0]
        return inputs

    for module in model.modules():
        if type(module) is nn.Dropout:
            module.forward = partial(dropped, dropout=module)


def applied(
    self: nn.Module, convert: Callable[[object], object], recurse: bool = True
) -> nn.Module:
    """Replaces `nn.Module._apply`: `module.to` then creates new parameters. PyTorch 2.13 would swap
    the tensors of fake ones instead, which is impossible while they are watched."""
    for child in self.children():
        child._apply(convert)
    for name, old in self._parameters.items():
        if old is not None:
            self._parameters[name] = nn.Parameter(convert(old.detach()), old.requires_grad)
    for name, old in self._buffers.items():
        if old is None:
            self._buffers[name] = None
        else:
            self._buffers[name] = convert(old)
    return self


class _FusedLoss(torch.autograd.Function):
    """A fused linear cross-entropy: logits of a chunk at a time, and both gradients made in the
    forward pass. Liger's (0.8.1, ops/fused_linear_cross_entropy.py) takes a power of two of rows at
    a time, and adds each chunk's gradient of a head in half precision by way of a copy in fp32."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, liger: bool, training: bool
    ) -> Any:
        rows = hidden.numel() // hidden.shape[-1]
        width = hidden.shape[-1]
        at_once = -(-rows // max(1, -(-weight.shape[0] // width)))
        if liger:
            at_once = min(rows, 1 << (at_once - 1).bit_length())
        learned = training and ctx.needs_input_grad[1]
        if training:
            gradients = [torch.empty_like(hidden)]
        else:
            gradients = []
        if learned:
            gradients += [torch.empty_like(weight)]
        chunk = hidden.new_empty((at_once, weight.shape[0]))
        loss = hidden.new_empty((), dtype=torch.float32)
        if liger and learned and weight.dtype != torch.float32:
            product = torch.empty_like(weight)
            raised = product.float()
            del product, raised
        del chunk
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        hidden, *weight = ctx.saved_tensors
        weight_gradient = weight[0] if weight else None
        return hidden, weight_gradient, None, None


def fuse_loss(model: nn.Module, liger: bool) -> None:
    """Replaces LM head and loss by a fused loss: Liger's in training, Cut Cross-Entropy in
    evaluation too."""
    head = model.get_output_embeddings()
    plain_head = head.forward
    plain_loss = model.loss_function

    def fused() -> bool:
        return model.training or not liger

    def forward(hidden: torch.Tensor) -> Any:
        if fused():
            return _FusedLoss.apply(hidden, head.weight, liger, model.training)
        return plain_head(hidden)

    head.forward = forward
    model.loss_function = lambda logits, *arguments, **options: (
        logits if fused() else plain_loss(logits, *arguments, **options)
    )


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Makes models use PyTorch alone, even if a package with kernels for GPUs is installed, as
    transformers does for an export (5.16.1, `use_kernel_func_from_hub_with_fallback`). PyTorch then
    multiplies experts of any type, but knows the shape of their product only for BF16 (2.13). The
    gated delta rule has a stand-in for the kernel that comes with Axolotl."""
    from torch import _meta_registrations as shapes
    from transformers.integrations import hub_kernels

    def multiplied(
        rows: object, weights: object, *, offs: object, out_dtype: object, **options: object
    ) -> Any:
        return shapes._create_grouped_mm_output_tensor(rows, weights, offs, out_dtype)

    exporting = patch.object(hub_kernels, "is_torchdynamo_exporting", lambda: True)
    with ExitStack() as patches:
        patches.enter_context(exporting)
        patches.enter_context(patch.object(shapes, "_meta_grouped_mm_common", multiplied))
        without_gpu_kernels()
        # In plain PyTorch it takes a trace minutes, in hundreds of small steps.
        for name in WITH_DELTA_RULE:
            home = import_module(f"transformers.models.{name}.modeling_{name}")
            patches.enter_context(patch.object(home, "torch_chunk_gated_delta_rule", delta_rule))
        yield


def autocast_seen(enabled: bool) -> AbstractContextManager[object]:
    """peft asks whether autocast is on without naming a device, which means the GPU's."""
    plain = torch.is_autocast_enabled

    def is_enabled(device: str | None = None) -> bool:
        if device:
            return bool(plain(device))
        return enabled

    return patch.object(torch, "is_autocast_enabled", is_enabled)


class Keeping(torch.optim.Optimizer):
    """An optimizer that holds what the catalog's table says. in_full: parameters whose state is
    always in 32 bits."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], rule: Optimizer, in_full: set[nn.Parameter]
    ) -> None:
        super().__init__(list(parameters.values()), {})
        self.rule = rule
        self.in_full = in_full
        self.outside = {parameter for name, parameter in parameters.items() if outside(name)}

    def step(self, closure: object = None) -> None:
        trained = []
        for group in self.param_groups:
            for candidate in group["params"]:
                if candidate.grad is not None:
                    trained.append(candidate)
        for parameter in trained:
            if not self.state[parameter]:
                self.state[parameter] = dict(enumerate(self._state(parameter)))
        buffers = []
        for candidate in trained:
            for _ in range(self.rule.lists):
                buffers.append(torch.empty_like(candidate.grad))
        largest = max(trained, key=torch.Tensor.numel)
        for _ in range(self.rule.largest):
            buffers.append(torch.empty_like(largest, dtype=torch.float32))
        del buffers

    def _state(self, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        rule = self.rule
        local = parameter.detach()
        if isinstance(local, DTensor):
            local = local.to_local()
        count = local.numel()
        bits = rule.bits or 8 * local.element_size()
        if rule.factored and local.dim() > 1:
            count = local[..., 0].numel() + local[..., 0, :].numel()
        if rule.bits and (count < 4096 or parameter in self.in_full):
            bits = 32
        if parameter in self.outside:
            moments = rule.moments
        else:
            moments = rule.matrices
        for _ in range(moments):
            yield local.new_empty(count * bits // 8, dtype=torch.uint8)
            if bits < 16:
                yield local.new_empty(-(-count // rule.group), dtype=torch.float32)


class Live(TorchDispatchMode):
    """Counts the storages that are alive, in bytes. peak: the most since the last `reset`; at: the
    operation there."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.at = ""
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, list[int]] = (
            weakref.WeakKeyDictionary()
        )

    def reset(self) -> None:
        self.peak = self.bytes
        self.at = ""

    def __torch_dispatch__(
        self, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            # A fake tensor has no number to test, so conditions (a layer dropped by chance, an
            # empty mask) are false.
            return False
        result = function(*args, **(kwargs or {}))
        before = self.peak
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                if isinstance(leaf, DTensor):
                    # Its own storage would be as large as the whole.
                    storage = leaf._local_tensor.untyped_storage()
                else:
                    storage = leaf.untyped_storage()
                if storage not in self._sizes:
                    self._count(storage)
        if self.peak > before:
            self.at = function.overloadpacket.__name__
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._sizes:
            # A list, because a storage may be resized, and at its end must subtract its last size.
            self._sizes[storage] = [0]
            weakref.finalize(storage, self._gone, self._sizes[storage])
        size = self._sizes[storage]
        now = -(-storage.nbytes() // BLOCK) * BLOCK
        self.bytes += now - size[0]
        size[0] = now
        self.peak = max(self.peak, self.bytes)

    def _gone(self, size: list[int]) -> None:
        self.bytes -= size[0]

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Notices that FSDP2 frees gathered weights and takes them back by resizing, outside of
        every operation."""
        plain_resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            plain_resize(storage, size)
            self._count(storage)

        with patch.object(torch.UntypedStorage, "resize_", resize):
            yield


def alone(objective: str, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of TRL's ORPO and of its SimPO (1.9, trl.experimental), which ask no reference: of
    the mean log-probabilities of both answers' words, and ORPO's also of the chosen one's text."""
    from trl.trainer.utils import selective_log_softmax

    gain = selective_log_softmax(logits[:, :-1, :], tokens[:, 1:]).mean(-1).chunk(2, dim=0)
    compared = -torch.nn.functional.logsigmoid(BETA * (gain[0] - gain[1])).mean()
    if objective != "orpo":
        return compared
    chosen = logits.chunk(2, dim=0)[0]
    chosen_tokens = tokens.chunk(2, dim=0)[0]
    text = chosen[..., :-1, :].contiguous().view(-1, logits.shape[-1])
    return compared + torch.nn.functional.cross_entropy(text, chosen_tokens[..., 1:].reshape(-1))


def own_answers(logits: torch.Tensor, answer_tokens: torch.Tensor) -> torch.Tensor:
    """The loss of TRL's GRPO (1.9) on the words of answers that the model wrote itself, and the
    entropy that it logs."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    logits = logits[:, :-1, :][:, -answer_tokens.shape[1] :, :]
    logits.div_(1.0)
    likely = selective_log_softmax(logits, answer_tokens)
    with torch.no_grad():
        entropy_from_logits(logits)
    ratio = torch.exp(likely - likely.detach())
    return -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()


def loss(
    model: nn.Module, reference: nn.Module | None, output: Callable[..., Any], tokens: torch.Tensor
) -> torch.Tensor:
    """The sigmoid loss over chosen answers, the first half of the rows, and rejected ones (Rafailov
    et al. 2023, arXiv 2305.18290), in the order of TRL 1.9's `_compute_loss`. Values that are only
    logged are computed too, because they take memory. reference: None if an adapter is switched off
    instead. output: gives a model's output for `tokens` (rows, length)."""
    from trl.trainer.utils import entropy_from_logits

    outputs = output(model)
    trained = _answers(outputs.logits, tokens)
    with torch.no_grad(), model.disable_adapter() if reference is None else nullcontext():
        theirs = output(model if reference is None else reference)
        base = _answers(theirs.logits, tokens)
    chosen, rejected = (trained - base).chunk(2, dim=0)
    losses = -torch.nn.functional.logsigmoid(BETA * (chosen - rejected))
    with torch.no_grad():
        entropy_from_logits(shifted := outputs.logits[..., :-1, :].detach())
        for side in shifted.chunk(2, dim=0):
            side.reshape(-1, side.shape[-1]).clone().mean(
                -1
            ).sum()  # every word of it counts at worst
        shifted.chunk(2, dim=0)[0].argmax(dim=-1)
    return losses.mean()


def unpaired(
    model: nn.Module, reference: nn.Module | None, output: Callable[..., Any], tokens: torch.Tensor
) -> torch.Tensor:
    """KTO's loss over good answers (Ethayarajh et al. 2024, arXiv 2402.01306), which bad ones take
    too. The rest is as in `loss`."""
    from trl.trainer.utils import entropy_from_logits

    if reference is None:
        first_model = model
    else:
        first_model = reference
    with torch.no_grad():
        other_answers = _answers(output(model).logits, tokens)
    outputs = output(model)
    trained = _answers(outputs.logits, tokens)
    with torch.no_grad(), model.disable_adapter() if reference is None else nullcontext():
        before = _answers(output(first_model).logits, tokens)
        theirs = output(first_model)
        base = _answers(theirs.logits, tokens)
    losses = 1 - torch.sigmoid(
        BETA * (trained - base - (other_answers - before).mean().clamp(min=0))
    )
    with torch.no_grad():
        entropy_from_logits(shifted := outputs.logits[..., :-1, :].detach())
        good = shifted.index_select(0, torch.arange(len(tokens), device=tokens.device))
        good.reshape(-1, good.shape[-1]).clone().mean(-1).sum()  # every word of it counts at worst
    return losses.mean()


def _answers(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probability of each row's answer."""
    from trl.trainer.utils import selective_log_softmax

    log_probabilities = selective_log_softmax(logits[..., :-1, :], tokens[..., 1:])
    # The question's words do not count.
    log_probabilities[torch.zeros_like(log_probabilities, dtype=torch.bool)] = 0.0
    return log_probabilities.sum(dim=1)
