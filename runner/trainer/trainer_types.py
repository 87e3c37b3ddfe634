"""What the callbacks of a training read and set of transformers' Trainer (5.16.1), whose own types
mypy does not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class TrainerArguments(Protocol):
    """Of its TrainingArguments."""

    output_dir: str
    device: torch.device
    seed: int
    eval_strategy: str  # `no`, `steps` or `epoch`
    save_strategy: str
    eval_on_start: bool
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    # Of TRL's trainers for a model's own answers alone.
    generation_batch_size: int
    steps_per_generation: int


class TrainerState(Protocol):
    """Of its TrainerState, which is in every checkpoint."""

    global_step: int
    max_steps: int
    num_train_epochs: int
    epoch: float
    num_input_tokens_seen: int
    log_history: Sequence[Mapping[str, float]]
    best_model_checkpoint: str | None
    is_world_process_zero: bool


class TrainerControl(Protocol):
    """What a callback asks for after a step."""

    should_training_stop: bool
    should_evaluate: bool
    should_save: bool
    should_log: bool
