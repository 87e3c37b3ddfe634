"""Metrics: step, loss and speed for Prometheus, and what the GPUs do, from the first process of each machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import TrainerCallback

from runner.trainer.history import History
from runner.trainer.metrics_server import answer

# The targets set it to the port that the pods' annotations name; without it nothing listens.
PORT = "RECIPE_METRICS_PORT"

# What a log entry of the trainer holds, and what Prometheus gets to see of it.
LOGGED = {
    "loss": ("recipe_loss", "Training loss, cross-entropy in nats"),
    "eval_loss": ("recipe_validation_loss", "Validation loss, cross-entropy in nats"),
    "eval_accuracy": ("recipe_validation_accuracy", "Share of the validation images that are named right"),
    "learning_rate": ("recipe_learning_rate", "Learning rate"),
    "grad_norm": ("recipe_gradient_norm", "Length of the gradient before clipping"),
    "epoch": ("recipe_epoch", "Epochs done"),
}
# What the history works out between two entries, of all processes together.
SPEED = {
    "samples_per_second": ("recipe_samples_per_second", "Rows a second, of all GPUs together"),
    "tokens_per_second": ("recipe_tokens_per_second", "Tokens a second, of all GPUs together"),
}
# What the driver says of each GPU when it is asked, as nvidia-smi does: of the whole card, and so in a moment when training
# hangs, too. Asking for the allocator's own figures would take a context on every card.
DRIVER: dict[str, tuple[str, Callable[[int], float]]] = {
    "recipe_gpu_memory_used_bytes": (
        "Memory in use on the GPU of a rank",
        lambda gpu: torch.cuda.device_memory_used(gpu),
    ),
    "recipe_gpu_utilization_ratio": (
        "Share of the time in which the GPU of a rank computed, over the last second or less",
        lambda gpu: torch.cuda.utilization(gpu) / 100,
    ),
}


class Metrics(TrainerCallback):
    """The latest log entry, in Prometheus' text format; history: which has it before."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.values: dict[str, tuple[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        self._put("recipe_step", "Optimizer steps done", state.global_step)
        self._put("recipe_steps", "Optimizer steps in all", state.max_steps)
        speed = self.history.steps[-1] if "loss" in logs and self.history.steps else {}
        for said, gauges in ((logs, LOGGED), (speed, SPEED)):
            for key, (name, meaning) in gauges.items():
                if isinstance(said.get(key), int | float):
                    self._put(name, meaning, said[key])

    def _put(self, name: str, meaning: str, value: float) -> None:
        # A new dict, so that a reader in another thread never sees one that is being changed.
        self.values = self.values | {name: (meaning, float(value))}

    def text(self) -> str:
        gauges = {name: (meaning, {"": value}) for name, (meaning, value) in self.values.items()} | dict(gpus())
        return "".join(
            f"# HELP {name} {meaning}\n# TYPE {name} gauge\n"
            + "".join(f"{name}{labels} {_number(value)}\n" for labels, value in values.items())
            for name, (meaning, values) in gauges.items()
        )


def gpus() -> Iterator[tuple[str, tuple[str, dict[str, float]]]]:
    """What the driver says of the GPUs of this machine's processes, by their ranks; nothing where there are none."""
    if not torch.cuda.is_available():
        return
    first, count = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))
    for name, (meaning, ask) in DRIVER.items():
        values: dict[str, float] = {}
        for gpu in range(min(count, torch.cuda.device_count())):
            try:
                values[f'{{rank="{first + gpu}",gpu="{gpu}"}}'] = ask(gpu)
            except Exception:  # a figure that the driver, or a part of a card (MIG), does not have costs no others
                continue
        if values:
            yield name, (meaning, values)


def _number(value: float) -> str:
    """As Prometheus reads it, with all digits that count: of bytes and of steps every one."""
    if math.isfinite(value):
        return f"{value:.10g}"
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def from_environment(history: History) -> list[Metrics]:
    """One Metrics where this is a machine's first process and a port is named."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return []
    metrics = Metrics(history)
    return [metrics] if answer(PORT, "Metrics are", "text/plain; version=0.0.4", metrics.text) else []
