"""Figures of a training over HTTP while it runs: for Prometheus, and for OpenShift AI's Trainer
(opendatahub-io/trainer, pkg/rhai/progression, from 3.2 on), which asks the first process while it runs and reads the
last answer when the pod ends."""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from runner.tools.files import write_json
from runner.tools.run_files import PROGRESS
from runner.trainer.settings import RunSettings
from runner.trainer.telemetry import History


def answer(variable: str, what: str, kind: str, say: Callable[[], str]) -> bool:
    """Answers `/metrics` with what `say` gives, at the port that an environment variable names, for as long as the
    process lives. False if none is named, or it is in use, which is no reason to stop.

    what: is not served then, in words; kind: the answer's content type.
    """
    port = os.environ.get(variable, "")
    if not port.isdigit():
        return False

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = say().encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line every few seconds would bury training's own

    try:
        server = ThreadingHTTPServer(("", int(port)), Answering)
    except (OSError, OverflowError) as error:
        print(f"{what} not served: port {port}: {getattr(error, 'strerror', None) or error}", flush=True)
        return False
    threading.Thread(target=server.serve_forever, name=variable.lower(), daemon=True).start()
    return True


# The targets set it to the port that the pods' annotations name; without it nothing listens.
METRICS_PORT = "RECIPE_METRICS_PORT"

# What a log entry of the trainer holds, and what Prometheus gets to see of it.
LOGGED = {
    "loss": ("recipe_loss", "Training loss, cross-entropy in nats"),
    "eval_loss": ("recipe_validation_loss", "Validation loss, cross-entropy in nats"),
    "eval_accuracy": ("recipe_validation_accuracy", "Share of the validation images that are classified correctly"),
    "learning_rate": ("recipe_learning_rate", "Learning rate"),
    "grad_norm": ("recipe_gradient_norm", "Length of the gradient before clipping"),
    "epoch": ("recipe_epoch", "Epochs done"),
}
# What the history works out between two entries, of all processes together.
SPEED = {
    "samples_per_second": ("recipe_samples_per_second", "Rows a second, of all GPUs together"),
    "tokens_per_second": ("recipe_tokens_per_second", "Tokens a second, of all GPUs together"),
}
# What the driver says of each GPU when it is asked, as nvidia-smi does: of the whole card, and so in a moment when
# training hangs, too. Asking for the allocator's own figures would take a context on every card.
DRIVER: dict[str, tuple[str, Callable[[int], float]]] = {
    "recipe_gpu_memory_used_bytes": (
        "Memory in use on the GPU of a rank",
        lambda gpu: torch.cuda.device_memory_used(gpu),
    ),
    "recipe_gpu_utilization_ratio": (
        "Share of the time in which the GPU of a rank computed, over the last second or less",
        lambda gpu: torch.cuda.utilization(gpu) / 100,
    ),
}


class Metrics(TrainerCallback):
    """The latest log entry, in Prometheus' text format; history: which has it before."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.values: dict[str, tuple[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        self._put("recipe_step", "Optimizer steps done", state.global_step)
        self._put("recipe_steps", "Optimizer steps in all", state.max_steps)
        speed = self.history.steps[-1] if "loss" in logs and self.history.steps else {}
        for said, gauges in ((logs, LOGGED), (speed, SPEED)):
            for key, (name, meaning) in gauges.items():
                if isinstance(said.get(key), int | float):
                    self._put(name, meaning, said[key])

    def _put(self, name: str, meaning: str, value: float) -> None:
        # A new dict, so that a reader in another thread never sees one that is being changed.
        self.values = self.values | {name: (meaning, float(value))}

    def text(self) -> str:
        gauges = {name: (meaning, {"": value}) for name, (meaning, value) in self.values.items()} | dict(gpus())
        return "".join(
            f"# HELP {name} {meaning}\n# TYPE {name} gauge\n"
            + "".join(f"{name}{labels} {_number(value)}\n" for labels, value in values.items())
            for name, (meaning, values) in gauges.items()
        )


def gpus() -> Iterator[tuple[str, tuple[str, dict[str, float]]]]:
    """What the driver says of the GPUs of this machine's processes, by their ranks; nothing if there are none."""
    if not torch.cuda.is_available():
        return
    first, count = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))
    for name, (meaning, ask) in DRIVER.items():
        values: dict[str, float] = {}
        for gpu in range(min(count, torch.cuda.device_count())):
            try:
                values[f'{{rank="{first + gpu}",gpu="{gpu}"}}'] = ask(gpu)
            except Exception:  # a figure that the driver, or a part of a card (MIG), does not have costs no others
                continue
        if values:
            yield name, (meaning, values)


def _number(value: float) -> str:
    """As Prometheus reads it, with all digits that count: of bytes and of steps every one."""
    if math.isfinite(value):
        return f"{value:.10g}"
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


# The targets set it to the port that the TrainJob's annotation names; without it nothing listens.
PROGRESS_PORT = "RECIPE_PROGRESS_PORT"

# What the platform's own trainers call training's figures; of an evaluation they pass on whatever begins with `eval_`.
TRAINER_FIGURES = ("loss", "learning_rate", "grad_norm", "train_loss")


class TrainingProgress(TrainerCallback):
    """What the Trainer reads: whole numbers but for `currentEpoch`, None for what is not known, and no other field. A
    number of another kind would cost the whole answer there.

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
        trained = {name: figures[name] for name in TRAINER_FIGURES if name in figures}
        self._say(
            trainMetrics=self.answer["trainMetrics"] | trained, evalMetrics=self.answer["evalMetrics"] | evaluated
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After a stage's last step the remaining time is unknown. At its end nothing remains, and the code that ends
        # the pod reports that.
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


def callbacks(settings: RunSettings, history: History) -> list[TrainerCallback]:
    """Metrics where this is a machine's first process, TrainingProgress where it is the first of all; each only where a
    port is named for it."""
    heard: list[TrainerCallback] = []
    if os.environ.get("LOCAL_RANK", "0") == "0":
        metrics = Metrics(history)
        if answer(METRICS_PORT, "Metrics are", "text/plain; version=0.0.4", metrics.text):
            heard.append(metrics)
    if os.environ.get("RANK", "0") == "0":
        progress = TrainingProgress(settings)
        if answer(PROGRESS_PORT, "Progress is", "application/json", progress.text):
            heard.append(progress)
    return heard
