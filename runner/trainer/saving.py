"""Saving: checkpoints between those that an evaluation or an epoch brings with it, by steps or by the clock."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback

from runner.trainer import checkpoint_interval, collectives
from runner.trainer.settings import RunSettings


class Saving(TrainerCallback):
    """Asks for a checkpoint every `save_steps` steps; where the recipe does not say, as often as one is worth what its writing
    has taken (see `cadence`).

    A checkpoint changes nothing of what is learned, and what is gone on from one comes out as without it; so the clock may decide,
    that of the first process for all of them.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.every = settings.save_steps
        self.writing = 0.0
        self.saved = self.busy = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saved = self.busy = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.busy = time.monotonic()
        if self._due(args, state) and not saved_anyway(args, state, control):
            control.should_save = True
        return control

    def _due(self, args: Any, state: Any) -> bool:
        if self.every is not None:
            return bool(state.global_step % self.every == 0)
        over = self.busy - self.saved >= checkpoint_interval.seconds_between(self.writing)
        return collectives.any_of(over and state.is_world_process_zero, args.device)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.busy = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Writing begins where a step or an evaluation has ended.
        self.saved = time.monotonic()
        self.writing = max(self.writing, self.saved - self.busy)


def saved_anyway(args: Any, state: Any, control: Any) -> bool:
    """Whether this step ends an epoch that is evaluated and saved a moment later: one checkpoint written over another would
    look whole in between."""
    by_epoch = "epoch" in (args.eval_strategy, args.save_strategy)
    return bool(by_epoch and (control.should_training_stop or float(state.epoch).is_integer()))
