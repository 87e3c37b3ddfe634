"""Metrics: step, loss and speed for Prometheus, from the first process of each machine, while training runs."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from transformers import TrainerCallback

# The targets set it to the port that the pods' annotations name; without it nothing listens.
PORT = "RECIPE_METRICS_PORT"

# What a log entry of the trainer holds, and what Prometheus gets to see of it.
GAUGES = {
    "loss": ("recipe_loss", "Training loss, cross-entropy in nats"),
    "eval_loss": ("recipe_validation_loss", "Validation loss, cross-entropy in nats"),
    "eval_accuracy": ("recipe_validation_accuracy", "Share of the validation images that are named right"),
    "learning_rate": ("recipe_learning_rate", "Learning rate"),
    "grad_norm": ("recipe_gradient_norm", "Length of the gradient before clipping"),
    "epoch": ("recipe_epoch", "Epochs done"),
}


class Metrics(TrainerCallback):
    """Serves the latest log entry at `/metrics`, in Prometheus' text format."""

    def __init__(self, port: int) -> None:
        self.values: dict[str, tuple[str, float]] = {}
        self.server = ThreadingHTTPServer(("", port), _handler(self))
        threading.Thread(target=self.server.serve_forever, name="metrics", daemon=True).start()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.put("recipe_step", "Optimizer steps done", state.global_step)
        self.put("recipe_steps", "Optimizer steps in all", state.max_steps)
        for key, (name, meaning) in GAUGES.items():
            if isinstance((logs or {}).get(key), int | float):
                self.put(name, meaning, logs[key])

    def put(self, name: str, meaning: str, value: float) -> None:
        # A new dict, so that a reader in another thread never sees one that is being changed.
        self.values = self.values | {name: (meaning, float(value))}

    def text(self) -> str:
        return "".join(
            f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name} {value:g}\n"
            for name, (meaning, value) in self.values.items()
        )


def from_environment() -> list[Metrics]:
    """One Metrics where this is a machine's first process and a port is named; a port in use is no reason to stop."""
    port = os.environ.get(PORT, "")
    if not port.isdigit() or os.environ.get("LOCAL_RANK", "0") != "0":
        return []
    try:
        return [Metrics(int(port))]
    except OSError as error:
        print(f"Metrics are not served: port {port}: {error.strerror}", flush=True)
        return []


def _handler(metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line every few seconds would bury training's own

    return Handler
