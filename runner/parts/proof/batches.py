"""Batches: what the engine's own loader and collator make of its rows, and what its model makes of the batches."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from runner.parts.proof.conversations import UNTRAINED
from runner.parts.proof.showing import Faults

# Rows of a batch, and of as many batches, whose first losses must be equal.
ROWS = 8
# What a number may differ by: losses in nats, logits as they are. Sums in another order differ by some 1e-7.
TOLERANCE = 1e-5
# Numbers that the logits of a batch may have: 0.5 GiB in fp32.
MOST_LOGITS = 2**27

Row = Mapping[str, Any]


@dataclass
class Engine:
    """A trainer's way from rows to batches. first: the row that it begins with."""

    trainer: Any
    first: int = 0

    @cached_property
    def loader(self) -> Any:
        """The loader as the trainer builds it, before it is shared among processes."""
        accelerator = self.trainer.accelerator
        accelerator.prepare = lambda *values, **_: values[0]
        try:
            return self.trainer.get_train_dataloader()
        finally:
            del accelerator.prepare

    @property
    def packs(self) -> bool:
        """Whether the loader's own batches are lists of rows that are joined."""
        return bool(getattr(self.trainer.args, "sample_packing", False))

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [dict(self.loader.dataset[number]) for number in numbers]

    def batches(self, most: int) -> Iterator[tuple[list[int], Any]]:
        """The first batches of training, with the numbers of their rows."""
        size = self.trainer.args.per_device_train_batch_size
        if self.first:
            numbers: Iterator[Any] = (
                list(range(self.first + size * batch, self.first + size * (batch + 1))) for batch in range(most)
            )
        else:
            numbers = islice(iter(self.loader.batch_sampler), most)
        for batch in numbers:
            nested = bool(batch) and isinstance(batch[0], list)
            flat = list(chain.from_iterable(batch)) if nested else list(batch)
            rows = [self.rows(inner) for inner in batch] if nested else self.rows(flat)
            yield flat, self.loader.collate_fn(rows)

    def batch(self, rows: Sequence[Row]) -> dict[str, Any]:
        """One micro batch of these rows, as many as it may hold."""
        copies = [dict(row) for row in rows]
        if not self.packs:
            return dict(self.loader.collate_fn(copies))
        apart = self.trainer.args.multipack_real_batches
        return dict(self.loader.collate_fn([[row] for row in copies] if apart else [copies]))

    def joined(self, rows: Sequence[Row]) -> dict[str, Any]:
        """These rows as close together as training may put them."""
        copies = [dict(row) for row in rows]
        return dict(self.loader.collate_fn([copies] if self.packs else copies))


def places(lines: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> list[tuple[int, int] | None]:
    """Where each row begins in a batch, (line, token), in their order; None where it is nowhere."""
    begins: list[tuple[int, int] | None] = []
    line = token = 0
    for row in rows:
        place = next(
            (
                (number, begin)
                for number in range(line, len(lines))
                for begin in range(token if number == line else 0, len(lines[number]) - len(row) + 1)
                if lines[number][begin] == row[0] and list(lines[number][begin : begin + len(row)]) == list(row)
            ),
            None,
        )
        begins.append(place)
        if place:
            line, token = place[0], place[1] + len(row)
    return begins


def judge(batch: Mapping[str, Any], rows: Sequence[Row], ends: frozenset[int], faults: Faults) -> int:
    """Whether a batch trains of its rows what they say, and nothing else; gives its tokens of padding."""
    lines, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    for row, place in zip(rows, places(lines, [row["input_ids"] for row in rows]), strict=True):
        if place is None:
            faults.add("labels_changed", "a row's tokens are not in its batch as they were")
            return 0
        line, begin = place
        for token, (number, label) in enumerate(zip(row["input_ids"], row["labels"], strict=True)):
            kept = labels[line][begin + token]
            # Nothing comes before the first token that it could be told from, so a loss never has it.
            if kept != label and not (token == 0 and kept == UNTRAINED):
                lost = kept == UNTRAINED and number in ends
                faults.add("end_not_trained" if lost else "labels_changed", "the engine's collator has taken its label")
            labels[line][begin + token] = None
    padding = [label for line in labels for label in line if label is not None]
    if trained := sum(label != UNTRAINED for label in padding):
        faults.add("padding_trained", f"{trained:,} of {len(padding):,} tokens of padding in a batch have a label")
    return len(padding)


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Draws nothing from the random numbers of training, and leaves the model as it was."""
    numbers, draws, training = random.getstate(), np.random.get_state(), model.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            model.train(training)
            random.setstate(numbers)
            np.random.set_state(draws)


def few(engine: Engine, vocabulary: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Rows to ask the model with: the shortest ones that train something, cut to what memory allows."""
    most = max(16, MOST_LOGITS // (vocabulary * ROWS))
    rows = [{name: _cut(value, most) for name, value in row.items()} for row in engine.rows(numbers)]
    fit = [row for row in rows if any(label != UNTRAINED for label in row["labels"][1:])]
    return sorted(fit, key=lambda row: len(row["input_ids"]))[:ROWS]


def _cut(value: Any, most: int) -> Any:
    return value[:most] if isinstance(value, list) else value


def moved(engine: Engine, rows: Sequence[Row], vocabulary: int) -> float:
    """How much the logits of the second row change when the first one does; 0 where rows do not see each other."""
    first, second = rows[:2]
    other = dict(first) | {"input_ids": [(token + 1) % vocabulary for token in first["input_ids"]]}
    return float((_logits(engine, (first, second)) - _logits(engine, (other, second))).abs().max())


def _logits(engine: Engine, rows: Sequence[Row]) -> torch.Tensor:
    """Of the last of these rows in one batch."""
    trainer, batch = engine.trainer, engine.joined(rows)
    place = places(batch["input_ids"].tolist(), [row["input_ids"] for row in rows])[-1]
    assert place is not None
    _, outputs = trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch), return_outputs=True)
    logits: torch.Tensor = outputs["logits"]
    return logits[place[0], place[1] : place[1] + len(rows[-1]["input_ids"])].float()


def first_loss(engine: Engine, batches: Sequence[dict[str, Any]]) -> float:
    """What the trainer would log as the loss of a step on these micro batches, as its `training_step` adds it up
    (transformers 5.16.1)."""
    trainer = engine.trainer
    samples, items = trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)
    whole = 0.0
    for batch in samples:
        inputs = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
        if (not trainer.model_accepts_loss_kwargs or items is None) and trainer.compute_loss_func is None:
            loss = loss / len(batches)
        whole += float(loss)
    return whole
