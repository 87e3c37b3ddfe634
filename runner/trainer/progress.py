"""Progress: how far training is, in the words of OpenShift AI's Trainer, which asks the first process of all while it runs and
reads the last answer from the pod's end (opendatahub-io/trainer, pkg/rhai/progression, from 3.2 on)."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.tools.files import write_json
from runner.tools.run_files import PROGRESS
from runner.trainer.metrics_server import answer
from runner.trainer.settings import RunSettings

# The targets set it to the port that the TrainJob's annotation names; without it nothing listens.
PORT = "RECIPE_PROGRESS_PORT"

# What the platform's own trainers call training's figures; of an evaluation they pass on whatever begins with `eval_`.
TRAINING = ("loss", "learning_rate", "grad_norm", "train_loss")


class Progress(TrainerCallback):
    """What the Trainer reads: whole numbers but for `currentEpoch`, None for what is not known, and no other field. A number of
    another kind would cost the whole answer there.

    Of a context length of pretraining the steps are its own, because the stage ends with it.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.file = Path(settings.run_dir) / PROGRESS
        self.blocks = settings.blocks
        self.began, self.began_at = time.monotonic(), 0
        self.answer: dict[str, Any] = {
            "progressPercentage": None,
            "estimatedRemainingSeconds": None,
            "currentStep": None,
            "totalSteps": None,
            "currentEpoch": None,
            "totalEpochs": None,
            "trainMetrics": {},
            "evalMetrics": {},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began, self.began_at = time.monotonic(), state.global_step
        self._steps(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        figures = {
            name: value
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        evaluated = {name: value for name, value in figures.items() if name.startswith("eval_")}
        trained = {name: figures[name] for name in TRAINING if name in figures}
        self._say(
            trainMetrics=self.answer["trainMetrics"] | trained, evalMetrics=self.answer["evalMetrics"] | evaluated
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # While the stage does what comes after its last step nobody knows for how long; at its end nothing remains, which
        # whoever ends the pod passes on.
        self._steps(state)
        self._say(estimatedRemainingSeconds=None)
        write_json(self.file, self.answer | {"estimatedRemainingSeconds": 0})

    def _steps(self, state: Any) -> None:
        first, last = (self.blocks.first_step, self.blocks.last_step) if self.blocks else (0, state.max_steps)
        done, steps = state.global_step - first, last - first
        made, left = state.global_step - self.began_at, last - state.global_step
        self._say(
            # Rounded down, so that 100 is the last step and no other.
            progressPercentage=min(100, max(0, 100 * done // steps)) if steps > 0 else None,
            estimatedRemainingSeconds=int((time.monotonic() - self.began) / made * max(0, left)) if made > 0 else None,
            currentStep=max(0, done),
            totalSteps=steps,
            currentEpoch=round(state.epoch or 0.0, 4),
            totalEpochs=int(state.num_train_epochs),
        )

    def _say(self, **facts: Any) -> None:
        # A new dict, so that a reader in another thread never sees one that is being changed.
        self.answer = self.answer | facts

    def text(self) -> str:
        return json.dumps(self.answer, allow_nan=False)


def from_environment(settings: RunSettings) -> list[Progress]:
    """One Progress where this is the first process of all and a port is named."""
    if os.environ.get("RANK", "0") != "0":
        return []
    progress = Progress(settings)
    return [progress] if answer(PORT, "Progress is", "application/json", progress.text) else []
