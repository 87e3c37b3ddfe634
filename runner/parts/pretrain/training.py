"""Training on packed blocks: several context lengths with one schedule, optimizer and count of
steps."""

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import TrainerCallback

from runner.catalog.tables import VALIDATION_BLOCKS
from runner.trainer.settings import BlocksSettings, RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState


class TrainBlocks(Dataset):
    """All rows of pretraining as one sequence, of which only those of one context length exist:
    array (count, sequence_len). The Trainer skips the rows that a checkpoint has seen by counting
    from step 0, so rows of shorter blocks are counted and never read, and a resumed run gets
    exactly the rows that are left. Each pass has an order of its own, drawn from seed, length and
    pass. batch: rows a step. steps: in all."""

    column_names: tuple[str, ...] = ()

    def __init__(
        self, blocks: np.ndarray, settings: BlocksSettings, batch: int, steps: int
    ) -> None:
        self.blocks = blocks
        self.settings = settings
        self.batch = batch
        self.steps = steps
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.steps * self.batch

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        row = index - self.settings.first_step * self.batch
        if row < 0:
            raise IndexError(f"row {index} belongs to a shorter context length")
        turn, place = divmod(row, len(self.blocks))
        if self._order is None or self._order[0] != turn:
            draw = np.random.default_rng([self.settings.seed, self.settings.sequence_len, turn])
            self._order = (turn, draw.permutation(len(self.blocks)).astype(np.int32))
        return _row(self.blocks[self._order[1][place]])


class ValidationBlocks(Dataset):
    """The first blocks of the validation side, in their order."""

    column_names: tuple[str, ...] = ()

    def __init__(self, blocks: np.ndarray) -> None:
        self.blocks = blocks[:VALIDATION_BLOCKS]

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return _row(self.blocks[index])


def _row(tokens: np.ndarray) -> dict[str, list[int]]:
    numbers = tokens.tolist()
    return {"input_ids": numbers, "labels": numbers, "attention_mask": [1] * len(numbers)}


def load(
    settings: BlocksSettings, batch: int, resumed_at: int
) -> tuple[TrainBlocks, ValidationBlocks, int]:
    """Both sides of a context length, and the number of steps that the Trainer counts to. A length
    that had reached its last step before a kill counts no further, so that nothing is trained
    twice."""
    if resumed_at < settings.last_step:
        steps = settings.steps
    else:
        steps = settings.last_step
    train, validation = (
        np.load(Path(settings.folder) / f"{side}-{settings.sequence_len}.npy", mmap_mode="r")
        for side in ("train", "validation")
    )
    return TrainBlocks(train, settings, batch, steps), ValidationBlocks(validation), steps


class EndOfLength(TrainerCallback):
    """Ends a context length at its last step with an evaluation and a checkpoint; the schedule
    spans all lengths."""

    def __init__(self, settings: BlocksSettings) -> None:
        self.settings = settings

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> Any:
        if state.global_step >= self.settings.last_step:
            control.should_log = control.should_evaluate = control.should_save = True
            control.should_training_stop = True
        return control


def callbacks(settings: RunSettings, history: object) -> list[TrainerCallback]:
    if settings.blocks:
        return [EndOfLength(settings.blocks)]
    return []
