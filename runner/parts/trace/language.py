"""Exact: the real model, built as its trainer builds it, takes training steps on fake tensors; every byte is counted.

There are no weights, no GPU and no data: PyTorch's FakeTensorMode has only shapes and dtypes. Code for GPUs alone
(FlashAttention, 4-bit layers, 8-bit Adam) is replaced by stand-ins that allocate the same memory."""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from runner.parts.planner.formulas import Traced
from runner.parts.planner.workload import Run, Workload
from runner.parts.trace import stand_ins
from runner.parts.trace.building import DTYPES, build, optimizer_of, pretended_mesh, spread
from runner.parts.trace.stand_ins import Live


def trace(run: Run, operations: bool = True) -> Traced:
    """A step and an evaluation on one GPU, without ZeRO and offloading. Raises ValueError if no model can be built."""
    if isinstance(run, Workload):
        return _measured(run, partial(build, run), partial(forward, run), operations)
    from runner.parts.images import network
    from runner.parts.images.formulas import Images

    if not isinstance(run, Images):
        raise TypeError(f"nothing traces {type(run).__name__}")
    image_size, mixed = run.image_size, run.precision != "fp32"
    half = DTYPES[run.precision] if mixed else torch.bfloat16
    built = partial(network.build, run.architecture, run.width, run.classes)

    def loss(model: Any, rows: int, reference: None) -> torch.Tensor:
        pixels = torch.zeros((rows, 3, image_size, image_size))
        with torch.autocast("cpu", dtype=half, enabled=mixed):
            return model(pixel_values=pixels, labels=torch.zeros(rows, dtype=torch.long)).loss

    return _measured(run, lambda: built().train(), loss)


def _measured(
    run: Run, build: Callable[[], Any], forward: Callable[..., torch.Tensor], operations: bool = True
) -> Traced:
    """Two micro batches at most, a step and an evaluation. forward: gives the loss of a model on a number of rows.
    operations: whether to count them too, which takes half as long again."""
    started = time.monotonic()
    live, mesh, reference = Live(), pretended_mesh(run), None
    with FakeTensorMode(allow_non_fake_inputs=True), live, live.resizing(), stand_ins.plain_kernels():
        model = build()
        counts = _counts(model)
        buckets = spread(run, model, mesh)
        in_buckets = sum(map(_size, buckets))
        if isinstance(run, Workload) and run.passes_beside and not run.adapter:
            # The frozen model that preference training compares with is split like the trained one.
            reference = build().requires_grad_(False)
            spread(run, reference, mesh)
            reference.eval()
        loss_of = partial(forward, model, reference=reference)
        gc.collect()
        optimizer = optimizer_of(run, model)
        weights = live.bytes - in_buckets
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        # The optimizer has its state after an empty step, as in every step but the first.
        _finish(optimizer)
        held = live.bytes
        live.reset()
        for _ in range(min(2, run.accumulation)):
            before = live.bytes
            loss = loss_of(run.micro_batch_size)
            activations = live.bytes - before
            _backward(run, loss)
            del loss
        gc.collect()
        gradients = sum(_size(parameter.grad) for parameter in trained if parameter.grad is not None)
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        _finish(optimizer)
        peak, at = live.peak, live.at
        model.eval()
        live.reset()
        with torch.no_grad():
            loss_of(run.evaluation_batch_size)
        evaluation = live.peak
        model.train()
        flops = 0
        if operations:
            stand_ins.counted.clear()
            with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
                _backward(run, loss_of(run.micro_batch_size))
            flops = counter.get_total_flops() + sum(stand_ins.counted)
    return Traced(
        *counts,
        weights=weights,
        gradients=gradients,
        optimizer=held - weights - in_buckets,
        activations=activations,
        peak=peak,
        peak_at=at,
        evaluation_peak=evaluation,
        flops=flops,
        seconds=round(time.monotonic() - started, 1),
    )


def _counts(model: torch.nn.Module) -> tuple[int, int]:
    """How many numbers all parameters have, and the trained ones; a packed parameter has more numbers than entries."""
    packed = {module.weight: prod(module.shape) for module in model.modules() if isinstance(module, stand_ins.FourBit)}
    everything = {parameter: packed.get(parameter, parameter.numel()) for parameter in model.parameters()}
    return sum(everything.values()), sum(size for part, size in everything.items() if part.requires_grad)


def forward(
    workload: Workload, model: torch.nn.Module, rows: int, device: str = "cpu", reference: torch.nn.Module | None = None
) -> torch.Tensor:
    """The loss, through the path that Trainer and accelerate take: autocast, and outputs raised to fp32.
    reference: the frozen model beside it in preference training; None if the adapter is switched off instead."""
    tokens = torch.zeros((rows * workload.answers, workload.most_tokens), dtype=torch.long, device=device)

    def output(of: torch.nn.Module, **more: Any) -> Any:
        from accelerate.utils import convert_to_fp32

        mixed = workload.precision != "fp32"
        half = DTYPES[workload.precision] if mixed else torch.bfloat16
        with stand_ins.autocast_seen(mixed), torch.autocast(device, dtype=half, enabled=mixed):
            answer = of(input_ids=tokens, use_cache=False, **more)
        return convert_to_fp32(answer) if mixed else answer

    if workload.generated:
        logits = output(model, logits_to_keep=workload.generated + 1).logits
        return stand_ins.own_answers(logits, tokens[:, -workload.generated :])
    if workload.passes_beside:
        compared = stand_ins.loss if workload.objective == "dpo" else stand_ins.unpaired
        return compared(model, reference, output, tokens)
    if workload.objective != "sft":
        return stand_ins.alone(workload.objective, output(model).logits, tokens)
    return output(model, labels=tokens)["loss"]


def _grouped(left: Sequence[int], right: Sequence[int], *given: Any, out_shape: Sequence[int], **named: Any) -> int:
    """Operations of one product a group: with a weight for each of the groups that the rows fall into, or over the rows
    of each group, whose numbers are unknown before it runs; their sum is all rows."""
    return 2 * prod(left) * right[-1] if len(left) == 2 else 2 * prod(out_shape) * left[-1]


# PyTorch's own counter has no formula for these (2.13, torch/utils/flop_counter.py): products of a mixture of experts,
# and the attention of processors, which stands for the GPU's own.
UNCOUNTED = {
    torch.ops.aten._grouped_mm: _grouped,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **named: sdpa_flop_count(*shapes[:3]),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **named: sdpa_backward_flop_count(*shapes[:4])
    ),
}


def _backward(run: Run, loss: torch.Tensor) -> None:
    """Checkpointing repeats layers under the autocast of their forward pass, which peft must see then too."""
    with stand_ins.autocast_seen(run.precision != "fp32"):
        loss.backward()


def _finish(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()


def _size(tensor: torch.Tensor) -> int:
    """Bytes on this GPU: of a split tensor, only this GPU's share."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel() * local.itemsize)
