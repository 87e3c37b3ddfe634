"""Time limit: ends training in time, with what it has learned by then saved and usable."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.trainer import collectives
from runner.trainer.settings import RunSettings
from runner.trainer.time_budget import TimeUsed, elapsed_seconds


class TimeLimit(TrainerCallback):
    """Stops training before `time_limit_seconds` are over, counted from its begin, over restarts and, in a pipeline,
    with the stages before it.

    The last step is followed by an evaluation and a checkpoint, as at the end of an epoch, so the best model so far is
    kept as ever. Time for one more step, one evaluation and one checkpoint, as long as the longest so far, is kept back;
    the very first checkpoint, whose time nobody knows yet, may end after the limit.
    """

    def __init__(self, settings: RunSettings) -> None:
        limit = settings.time_limit_seconds
        self.limit = math.inf if limit is None else limit
        self.run_dir = Path(settings.run_dir)
        self.earlier = elapsed_seconds(settings.time_limit_earlier)
        self.before = 0.0
        self.began = self.step_began = time.monotonic()
        self.longest_step = self.longest_evaluation = self.longest_save = 0.0
        self.reached = False

    @property
    def used(self) -> float:
        """Seconds of this training so far, those before a restart among them."""
        return self.before + time.monotonic() - self.began

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self.before = elapsed_seconds([self.run_dir])
        self.began = self.step_began = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        now = time.monotonic()
        self.longest_step = max(self.longest_step, now - self.step_began)
        self.step_began = now
        if control.should_training_stop:  # it ends here by itself
            return control
        kept_back = self.longest_step + self.longest_evaluation + self.longest_save
        over = self.earlier + self.used + kept_back > self.limit
        if not self.reached and collectives.any_of(over, args.device):
            self.reached = True
            control.should_training_stop = control.should_log = True
            # Where epochs decide, Trainer evaluates and saves at the end of this one, which is now.
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"
            if state.is_world_process_zero:
                print(
                    f"The time limit of {self.limit:g} s ends training after step {state.global_step} of {state.max_steps}.",
                    flush=True,
                )
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # An evaluation begins where a step (or training) began or ended, and nothing else takes long in between.
        self.longest_evaluation = max(self.longest_evaluation, time.monotonic() - self.step_began)
        self.step_began = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.longest_save = max(self.longest_save, time.monotonic() - self.step_began)
        self.step_began = time.monotonic()
        self._note(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note(state)

    def _note(self, state: Any) -> None:
        if state.is_world_process_zero:
            TimeUsed(self.limit, round(self.used, 1), self.reached).write(self.run_dir)


def time_limits(settings: RunSettings) -> list[TimeLimit]:
    """The callback that keeps the run's limit; none where it has no limit."""
    return [] if settings.time_limit_seconds is None else [TimeLimit(settings)]
