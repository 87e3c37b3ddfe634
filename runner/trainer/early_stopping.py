"""Early stopping: ends training when its evaluations have brought nothing for as long as the recipe has patience."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from transformers import TrainerCallback

from runner.trainer import patience, progress_lines
from runner.trainer.patience import LOSS
from runner.trainer.settings import EarlyStopping, RunSettings


class Patience(TrainerCallback):
    """Reads the evaluations so far from the Trainer's own log, which is in every checkpoint, so that a run that goes on has
    waited as long as the one that was interrupted. transformers' own callback forgets its counter (5.16.1, unless
    `restore_callback_states_from_checkpoint`), and takes a run of small steps down for none.

    The last of those that ask for checkpoints: where a run goes on that had ended already, an older Trainer makes one more step
    before it asks (see `ended`), and that is neither measured nor saved.
    """

    def __init__(self, wanted: EarlyStopping, measure: str = LOSS) -> None:
        self.wanted, self.measure = wanted, measure
        self.over = False

    def _gone(self, state: Any) -> bool:
        values = [entry[name] for entry in state.log_history if (name := f"eval_{self.measure}") in entry]
        return patience.fruitless(values, self.wanted.min_improvement, self.measure) >= self.wanted.patience

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.over = self._gone(state)
        if self.over:
            control.should_training_stop = True
            self._say(state)
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return self._leave(control) if self.over else control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return self._leave(control) if self.over else control

    @staticmethod
    def _leave(control: Any) -> Any:
        control.should_training_stop = True
        control.should_evaluate = control.should_save = False
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step and self._gone(state):
            control.should_training_stop = True
            self._say(state)
        return control

    def _say(self, state: Any) -> None:
        seen = ({"step": entry["step"], self.measure: entry.get(f"eval_{self.measure}")} for entry in state.log_history)
        limits = (self.wanted.patience, self.wanted.min_improvement, self.measure)
        ended = patience.early_stop(seen, *limits, state.global_step, state.max_steps)
        if ended and state.is_world_process_zero:
            print(progress_lines.write({"event": patience.EVENT, **asdict(ended)}), flush=True)


def early_stopping(settings: RunSettings, measure: str = LOSS) -> list[Patience]:
    """The callback that ends training early; none where the recipe does not ask for it."""
    return [Patience(settings.early_stopping, measure)] if settings.early_stopping else []
