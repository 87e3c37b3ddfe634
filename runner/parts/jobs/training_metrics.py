"""Figures of a running training over HTTP: for Prometheus, and for OpenShift AI's Trainer
(opendatahub-io/trainer, pkg/rhai/progression, from 3.2 on), which asks the first process and reads
the last answer when the pod ends."""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.integrations.integration_utils import KubeflowCallback, is_kubeflow_available

from runner.tools import packaged
from runner.tools.files import write_json
from runner.tools.listening import OnEveryAddress
from runner.tools.run_files import PROGRESS
from runner.trainer.results import History
from runner.trainer.settings import RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState


class FigureServer(OnEveryAddress, ThreadingHTTPServer):
    """A server for Prometheus, or for the Trainer."""


def answer(variable: str, subject: str, content_type: str, say: Callable[[], str]) -> bool:
    """Serves the text of `say` at `/metrics`, at the port in an environment variable. False if
    there is no port, or it is in use, which does not stop training. subject: the served figures,
    for the message."""
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
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # it would print a line every few seconds

    try:
        server = FigureServer(("", int(port)), Answering)
    except (OSError, OverflowError) as error:
        print(
            f"{subject} not served: port {port}: {getattr(error, 'strerror', None) or error}",
            flush=True,
        )
        return False
    threading.Thread(target=server.serve_forever, name=variable.lower(), daemon=True).start()
    return True


# The targets set both to the ports in the annotations of pods and TrainJobs; without them nothing
# listens.
METRICS_PORT = "RECIPE_METRICS_PORT"
PROGRESS_PORT = "RECIPE_PROGRESS_PORT"

# The trainer's figures with their names for Prometheus, and the meanings of all by these names.
FIGURES = packaged.toml(__file__, "figures.toml")
LOGGED: dict[str, tuple[str, str]] = FIGURES["logged"]
MEANINGS: dict[str, str] = dict(LOGGED.values()) | FIGURES["gpu"]
# The driver's figures of each whole card, as in nvidia-smi; available also when training hangs. The
# allocator's own figures would need a context on every card.
DRIVER: dict[str, Callable[[int], float]] = {
    "recipe_gpu_memory_used_bytes": lambda gpu: torch.cuda.device_memory_used(gpu),
    "recipe_gpu_utilization_ratio": lambda gpu: torch.cuda.utilization(gpu) / 100,
}


class Metrics(TrainerCallback):
    """The latest log entry in Prometheus' text format. history: must receive the entry first."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.values: dict[str, float] = {}

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        logs = logs or {}
        if "loss" in logs and self.history.steps:
            speed = self.history.steps[-1]
        else:
            speed = {}
        entries = {**speed, **logs, "step": state.global_step, "steps": state.max_steps}
        figures = {}
        for key, (name, _) in LOGGED.items():
            if isinstance(entries.get(key), int | float):
                figures[name] = float(entries[key])
        # A new dict, because another thread may be reading the old one.
        self.values = self.values | figures

    def text(self) -> str:
        # The values of each figure by their labels: those of the log, and the GPUs of this
        # machine's processes by rank.
        figures = {name: {"": value} for name, value in self.values.items()}
        first_rank = int(os.environ.get("RANK", "0"))
        count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        for gpu in range(min(count, torch.cuda.device_count()) if torch.cuda.is_available() else 0):
            for name, ask in DRIVER.items():
                with suppress(
                    Exception
                ):  # the driver, or a part of a card (MIG), may lack this figure
                    figures.setdefault(name, {})[f'{{rank="{first_rank + gpu}",gpu="{gpu}"}}'] = (
                        ask(gpu)
                    )
        lines = []
        for name in filter(figures.get, MEANINGS):
            lines += [f"# HELP {name} {MEANINGS[name]}", f"# TYPE {name} gauge"]
            # With all digits of bytes and steps. `nan` and `inf` are numbers for Prometheus, too
            # (Go's ParseFloat).
            for labels, value in figures[name].items():
                lines.append(f"{name}{labels} {value:.10g}")
        return "".join(f"{line}\n" for line in lines)


class TrainingProgress(TrainerCallback):
    """The answer for the Trainer: exactly these fields, whole numbers except `currentEpoch`, and
    None for unknown. The Trainer would discard an answer with another kind of number. For a context
    length of pretraining, the steps are those of this length, because the stage ends with it."""

    def __init__(self, settings: RunSettings) -> None:
        self.file = Path(settings.run_dir) / PROGRESS
        self.blocks = settings.blocks
        self.began = time.monotonic()
        self.began_at = 0
        unknown = (
            "progressPercentage",
            "estimatedRemainingSeconds",
            "currentStep",
            "totalSteps",
            "currentEpoch",
        )
        self.answer: dict[str, Any] = dict.fromkeys((*unknown, "totalEpochs")) | {
            "trainMetrics": {},
            "evalMetrics": {},
        }

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.began = time.monotonic()
        self.began_at = state.global_step
        self.on_step_end(args, state, control)

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.blocks:
            first_step = self.blocks.first_step
            last = self.blocks.last_step
        else:
            first_step = 0
            last = state.max_steps
        done = state.global_step - first_step
        steps = last - first_step
        new_steps = state.global_step - self.began_at
        remaining_steps = last - state.global_step
        if new_steps > 0:
            seconds_left = int(
                (time.monotonic() - self.began) / new_steps * max(0, remaining_steps)
            )
        else:
            seconds_left = None
        # A new dict, here as elsewhere, because another thread may be reading the old one.
        self.answer = self.answer | {
            # Rounded down, so that only the last step is 100.
            "progressPercentage": min(100, max(0, 100 * done // steps)) if steps > 0 else None,
            "estimatedRemainingSeconds": seconds_left,
            "currentStep": max(0, done),
            "totalSteps": steps,
            "currentEpoch": round(state.epoch or 0.0, 4),
            "totalEpochs": int(state.num_train_epochs),
        }

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        trained = dict(self.answer["trainMetrics"])
        evaluated = dict(self.answer["evalMetrics"])
        # The figures that the platform's own trainers report.
        for name, value in (logs or {}).items():
            if isinstance(value, int | float) and math.isfinite(value):
                if name in ("loss", "learning_rate", "grad_norm", "train_loss"):
                    trained[name] = value
                elif name.startswith("eval_"):
                    evaluated[name] = value
        self.answer = self.answer | {"trainMetrics": trained, "evalMetrics": evaluated}

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        # After the last step the remaining time is unknown. The code that ends the pod reports that
        # nothing remains.
        self.on_step_end(args, state, control)
        self.answer = self.answer | {"estimatedRemainingSeconds": None}
        write_json(self.file, self.answer | {"estimatedRemainingSeconds": 0})

    def text(self) -> str:
        return json.dumps(self.answer, allow_nan=False)


def callbacks(settings: RunSettings, history: History) -> list[TrainerCallback]:
    """Metrics for a machine's first process, TrainingProgress for the first of all; each only if it
    has a port. And transformers' own callback for the first of all, if the Trainer has told the pod
    where to send progress."""
    heard: list[TrainerCallback] = []
    if os.environ.get("LOCAL_RANK", "0") == "0":
        metrics = Metrics(history)
        if answer(METRICS_PORT, "Metrics are", "text/plain; version=0.0.4", metrics.text):
            heard.append(metrics)
    if os.environ.get("RANK", "0") == "0":
        progress = TrainingProgress(settings)
        if answer(PROGRESS_PORT, "Progress is", "application/json", progress.text):
            heard.append(progress)
        if is_kubeflow_available():
            heard.append(KubeflowCallback())
    return heard
