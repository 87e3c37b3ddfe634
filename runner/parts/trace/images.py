"""Exact, for images: the image trainer's own network takes a training step on fake tensors; every byte is counted."""

from functools import partial
from typing import Any

import torch

from runner.parts.images import network
from runner.parts.images.formulas import Images
from runner.parts.planner.formulas import Traced
from runner.parts.planner.workload import Run
from runner.parts.trace.building import DTYPES
from runner.parts.trace.language import measured


def trace(work: Run) -> Traced:
    """A training step and an evaluation on one of a workload's GPUs."""
    if not isinstance(work, Images):
        raise TypeError(f"nothing traces {type(work).__name__}")
    return measured(work, partial(_build, work), partial(_forward, work))


def _build(work: Images) -> torch.nn.Module:
    return network.build(work.architecture, work.width, work.classes).train()


def _forward(work: Images, model: Any, rows: int, reference: None) -> torch.Tensor:
    mixed = work.precision != "fp32"
    pixels = torch.zeros((rows, 3, work.image_size, work.image_size))
    with torch.autocast("cpu", dtype=DTYPES[work.precision] if mixed else torch.bfloat16, enabled=mixed):
        return model(pixel_values=pixels, labels=torch.zeros(rows, dtype=torch.long)).loss
