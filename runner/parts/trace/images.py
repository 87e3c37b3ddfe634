"""Exact, for images: the image trainer's own network takes a training step on fake tensors; every byte is counted."""

import gc
import time
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from runner.parts.images import network
from runner.parts.images.formulas import Images
from runner.parts.planner.formulas import Traced
from runner.parts.planner.workload import Run
from runner.parts.trace.building import DTYPES
from runner.parts.trace.stand_ins import Live


def trace(work: Run) -> Traced:
    """A training step and an evaluation on one of a workload's GPUs."""
    if not isinstance(work, Images):
        raise TypeError(f"nothing traces {type(work).__name__}")
    started = time.monotonic()
    live = Live()
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        model = network.build(work.architecture, work.width, work.classes).train()
        trained = list(model.parameters())
        buckets = [torch.empty_like(weight) for weight in trained] if work.sharding == "ddp" else []
        weights = live.bytes - _size(buckets)
        optimizer = _optimizer(work, trained)
        for weight in trained:
            weight.grad = torch.empty_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        held = live.bytes
        live.reset()
        activations = 0
        for _ in range(min(2, work.accumulation)):
            before = live.bytes
            loss = _forward(work, model, work.micro_batch_size)
            activations = live.bytes - before
            loss.backward()
            del loss
        gradients = _size([weight.grad for weight in trained])
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        peak, at = live.peak, live.at
        evaluation = _evaluate(work, model, live)
        with FlopCounterMode(display=False) as counter:
            _forward(work, model, work.micro_batch_size).backward()
    count = sum(weight.numel() for weight in trained)
    return Traced(
        parameters=count,
        trainable=count,
        weights=weights,
        gradients=gradients,
        optimizer=held - weights - _size(buckets),
        activations=activations,
        peak=peak,
        peak_at=at,
        evaluation_peak=evaluation,
        flops=counter.get_total_flops(),
        seconds=round(time.monotonic() - started, 1),
    )


def _optimizer(work: Images, trained: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if work.optimizer == "sgd":
        return torch.optim.SGD(trained)
    fused = work.optimizer.endswith("fused")
    return torch.optim.AdamW(trained, fused=fused, foreach=not fused)


def _forward(work: Images, model: Any, rows: int) -> torch.Tensor:
    mixed = work.precision != "fp32"
    pixels = torch.zeros((rows, 3, work.image_size, work.image_size))
    with torch.autocast("cpu", dtype=DTYPES[work.precision] if mixed else torch.bfloat16, enabled=mixed):
        return model(pixel_values=pixels, labels=torch.zeros(rows, dtype=torch.long)).loss


def _evaluate(work: Images, model: Any, live: Live) -> int:
    model.eval()
    live.reset()
    with torch.no_grad():
        _forward(work, model, work.evaluation_batch_size)
    model.train()
    return live.peak


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)
