"""Ended: a run that was killed between its last checkpoint and its results makes no step more."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class Ended(TrainerCallback):
    """Says at the beginning that nothing is left to do."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop |= state.global_step >= state.max_steps
        return control


def no_step_more(trainer: Any) -> None:
    """Lets the trainer skip what is left of an epoch where nothing is to be done any more. transformers (5.16.1) asks that only
    after a step, so that a run of 104 steps whose epochs have 21 makes a 105th; older ones have no such method."""
    run_epoch = getattr(trainer, "_run_epoch", None)
    if run_epoch is None:
        return

    def run(*args: Any, **kwargs: Any) -> None:
        if not trainer.control.should_training_stop:
            run_epoch(*args, **kwargs)

    trainer._run_epoch = run
