"""Summary: what a stage that trains says of itself in the end, as `training_summary.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.recipe.overrides import Override
from runner.tools.files import Record
from runner.tools.run_files import SUMMARY
from runner.trainer.patience import EarlyStop
from runner.trainer.time_budget import TimeUsed


@dataclass(frozen=True)
class Summary(Record):
    """Losses are cross-entropy in nats a token or an image, accuracies shares of 1, times in seconds; None where a stage has
    none of a kind.

    name, fingerprint, recipe: what was trained, the recipe with every default; stage: of which stage, once that is finished.
    kind: `run` or `rehearsal`; changes, substitutions: what the person and the runner have changed in the recipe.
    adapter: kind, rank, alpha, dropout and layers. backend: how processes talked, None for one.
    sets: of several data sets, the part of the training rows that each has, 0 to 1, by its name.
    effective_batch_size: rows a step; effective_batch_tokens: tokens a step where rows were packed; learning_rate: after scaling.
    best_checkpoint: the name of its folder. early_stop: what ended training before its last step, None where it came to its end.
    gpu: the card's name as its driver gives it, empty without one. step_seconds: of a step, the median; gpu_memory_gib,
    gpu_reserved_gib: the most that PyTorch's tensors, and its allocator, took of the first GPU. planned: of the same what was said
    before, as `planned.json` has it; None where that is not on record.
    proof: of what is trained, as `proof.json` has it, without the rows that it shows. model: of images, the shape of the
    network. preference accuracy: how often DPO's model prefers the better answer, on held-out pairs.
    """

    FILE = SUMMARY
    name: str = ""
    fingerprint: str = ""
    recipe: Mapping[str, Any] | None = None
    stage: str = ""
    kind: str = ""
    changes: tuple[Override, ...] = ()
    substitutions: tuple[Override, ...] = ()
    engine: str = ""
    base_model: str | None = None
    adapter: Mapping[str, Any] | None = None
    sets: Mapping[str, float] = field(default_factory=dict)
    world_size: int = 1
    backend: str | None = None
    effective_batch_size: int = 0
    effective_batch_tokens: int | None = None
    base_learning_rate: float = 0.0
    learning_rate: float = 0.0
    trainable_parameters: int = 0
    total_parameters: int = 0
    steps: int = 0
    epochs: float = 0.0
    tokens: int = 0
    training_seconds: float = 0.0
    gpu: str = ""
    step_seconds: float | None = None
    gpu_memory_gib: float | None = None
    gpu_reserved_gib: float | None = None
    planned: Mapping[str, Any] | None = None
    time_limit: TimeUsed | None = None
    early_stop: EarlyStop | None = None
    first_validation_loss: float | None = None
    best_validation_loss: float | None = None
    last_validation_loss: float | None = None
    last_training_loss: float | None = None
    first_preference_accuracy: float | None = None
    last_preference_accuracy: float | None = None
    best_accuracy: float | None = None
    best_epoch: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    model: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    best_checkpoint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def out_of_time(self) -> bool:
        return self.time_limit is not None and self.time_limit.reached

    @property
    def losses(self) -> str:
        """The first and the last validation loss in words; empty where there was none."""
        first, last = self.first_validation_loss, self.last_validation_loss
        return f"validation loss {first:.3f} → {last:.3f}" if first is not None and last is not None else ""
