"""Phases: what training does where it makes no steps, said to whoever watches its bar."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from runner.trainer.progress_lines import MEASURING, SAVING, TRAINING, phase


class Phases(TrainerCallback):
    """Comes last: what the others ask for is what follows."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._say(state, MEASURING if args.eval_on_start else TRAINING)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._next(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._next(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._say(state, SAVING if control.should_save else TRAINING)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._say(state, TRAINING)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._say(state, SAVING)

    def _next(self, state: Any, control: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._say(state, MEASURING if control.should_evaluate else SAVING)

    @staticmethod
    def _say(state: Any, name: str) -> None:
        if state.is_world_process_zero:
            print(phase(name), flush=True)
