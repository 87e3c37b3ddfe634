"""Exact: the real model, built as Axolotl builds it, takes training steps on fake tensors; every byte is counted.

No weights, no GPU, no data: PyTorch's FakeTensorMode carries shapes and dtypes alone. What needs a GPU's own code
(FlashAttention, 4-bit layers, 8-bit Adam) is replaced by stand-ins that ask for the same memory.
"""

import gc
import time
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from runner.parts.planner.formulas import Traced
from runner.parts.planner.workload import Workload
from runner.parts.trace import stand_ins
from runner.parts.trace.building import DTYPES, build, optimizer_of, pretended_mesh, spread
from runner.parts.trace.stand_ins import Live


def trace(workload: Workload, operations: bool = True) -> Traced:
    """A training step and an evaluation of a workload on one of its GPUs; ZeRO and offloading are left out.

    operations: whether to count them too, which takes half as long again.

    Raises ValueError if transformers or peft cannot build the model.
    """
    started = time.monotonic()
    live, mesh = Live(), pretended_mesh(workload)
    with FakeTensorMode(allow_non_fake_inputs=True), live, live.resizing(), stand_ins.plain_kernels():
        model = build(workload)
        counts = _counts(model)
        buckets = spread(workload, model, mesh)
        reference = _reference(workload, mesh)
        gc.collect()
        optimizer = optimizer_of(workload, model)
        weights = live.bytes - sum(bucket.untyped_storage().nbytes() for bucket in buckets)
        _prime(model, optimizer)
        held = live.bytes
        live.reset()
        step = _step(workload, model, optimizer, live, reference)
        peak, at = live.peak, live.at
        evaluation = _evaluate(workload, model, live, reference)
        flops = _operations(workload, model, reference) if operations else 0
    return Traced(
        *counts,
        weights=weights,
        gradients=step["gradients"],
        optimizer=held - weights - sum(bucket.untyped_storage().nbytes() for bucket in buckets),
        activations=step["activations"],
        peak=peak,
        peak_at=at,
        evaluation_peak=evaluation,
        flops=flops,
        seconds=round(time.monotonic() - started, 1),
    )


def _counts(model: torch.nn.Module) -> tuple[int, int]:
    """Numbers in all parameters, and in those that are trained; in a packed one there are more than entries."""
    packed = {module.weight: prod(module.shape) for module in model.modules() if isinstance(module, stand_ins.FourBit)}
    everything = {parameter: packed.get(parameter, parameter.numel()) for parameter in model.parameters()}
    return sum(everything.values()), sum(size for part, size in everything.items() if part.requires_grad)


def forward(
    workload: Workload,
    model: torch.nn.Module,
    rows: int,
    device: str = "cpu",
    reference: torch.nn.Module | None = None,
) -> torch.Tensor:
    """The loss, through the path that Trainer and accelerate take: autocast, and outputs raised to fp32.

    reference: the frozen model beside it in preference training; None if the adapter is switched off instead.
    """
    tokens = torch.zeros((rows * workload.answers, workload.most_tokens), dtype=torch.long, device=device)

    def output(of: torch.nn.Module, **more: Any) -> Any:
        from accelerate.utils import convert_to_fp32

        mixed = workload.precision != "fp32"
        half = DTYPES[workload.precision] if mixed else torch.bfloat16
        with stand_ins.autocast_seen(mixed), torch.autocast(device, dtype=half, enabled=mixed):
            answer = of(input_ids=tokens, use_cache=False, **more)
        return convert_to_fp32(answer) if mixed else answer

    if workload.objective == "dpo":
        return stand_ins.loss(model, reference, output, tokens)
    return output(model, labels=tokens)["loss"]


def _reference(workload: Workload, mesh: Any) -> torch.nn.Module | None:
    """The frozen model that preference training compares with, spread like the trained one."""
    if workload.objective != "dpo" or workload.adapter:
        return None
    model = build(workload)
    model.requires_grad_(False)
    spread(workload, model, mesh)
    return model.eval()


def _operations(workload: Workload, model: torch.nn.Module, reference: torch.nn.Module | None) -> int:
    with stand_ins.attending() as attention, FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        _backward(workload, forward(workload, model, workload.micro_batch_size, reference=reference))
    model.zero_grad()
    counted: int = counter.get_total_flops()
    return counted + sum(attention)


def _grouped(left: Sequence[int], right: Sequence[int], *given: Any, out_shape: Sequence[int], **named: Any) -> int:
    """Operations of one product a group: with a weight for each of the groups that the rows fall into, or over the rows
    of each group, whose numbers are unknown before it runs; their sum is all rows."""
    return 2 * prod(left) * right[-1] if len(left) == 2 else 2 * prod(out_shape) * left[-1]


def _attended(query: Sequence[int], key: Sequence[int], value: Sequence[int], *given: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attended_back(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *given: Any, **named: Any
) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


# What PyTorch's own counter has no formula for (2.13, torch/utils/flop_counter.py): products of a mixture of experts, and the
# attention of processors, in whose place a GPU has its own.
UNCOUNTED = {
    torch.ops.aten._grouped_mm: _grouped,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attended,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attended_back,
}


def _prime(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An empty step, after which the optimizer has its state, as it has in every step but the first."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()


def _step(workload: Workload, model: Any, optimizer: Any, live: Live, reference: Any) -> dict[str, int]:
    sizes = {}
    for _ in range(min(2, workload.accumulation)):
        before = live.bytes
        loss = forward(workload, model, workload.micro_batch_size, reference=reference)
        sizes["activations"] = live.bytes - before
        _backward(workload, loss)
        del loss
    gc.collect()
    gradients = [_local(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    sizes["gradients"] = sum(gradient.numel() * gradient.itemsize for gradient in gradients)
    del gradients
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    return sizes


def _backward(workload: Workload, loss: torch.Tensor) -> None:
    """Checkpointing runs layers again under the autocast that they ran under, which peft must see then too."""
    with stand_ins.autocast_seen(workload.precision != "fp32"):
        loss.backward()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _evaluate(workload: Workload, model: Any, live: Live, reference: Any) -> int:
    model.eval()
    live.reset()
    with torch.no_grad():
        forward(workload, model, workload.evaluation_batch_size, reference=reference)
    model.train()
    return live.peak
