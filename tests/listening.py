"""Whoever asks a training while it runs: Prometheus at one port, OpenShift AI's Trainer at the
other."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from contextlib import suppress
from typing import Any

from runner.parts.jobs import training_metrics
from tests.parts.openshift.api import free_port

# As Go reads the Trainer's struct (opendatahub-io/trainer, pkg/rhai/progression, TrainerStatus): a
# number of another kind, or one that is no JSON, costs it the whole answer.
WHOLE = (
    "progressPercentage",
    "estimatedRemainingSeconds",
    "currentStep",
    "totalSteps",
    "totalEpochs",
)
MAPS = ("trainMetrics", "evalMetrics")


class Listener:
    """Asks both ports again and again while it is entered. env: what names them; metrics, answers:
    all that was said."""

    def __init__(self) -> None:
        self.ports = {
            name: free_port()
            for name in (training_metrics.METRICS_PORT, training_metrics.PROGRESS_PORT)
        }
        self.env = {name: str(port) for name, port in self.ports.items()}
        self.metrics: list[str] = []
        self.answers: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.is_set():
            for name, heard in (
                (training_metrics.METRICS_PORT, self.metrics),
                (training_metrics.PROGRESS_PORT, self.answers),
            ):
                if (said := ask(self.ports[name])) and said not in heard[-1:]:
                    heard.append(said)
            time.sleep(0.05)


def ask(port: int) -> str:
    """What is said at a port; empty while nobody answers."""
    with (
        suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
    ):
        return answer.read().decode()
    return ""


def as_the_trainer_reads(text: str) -> dict[str, Any]:
    """An answer of progress, all of it understood."""

    def no_number(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    answer: dict[str, Any] = json.loads(text, parse_constant=no_number)
    assert set(answer) == {*WHOLE, "currentEpoch", *MAPS}
    for name in WHOLE:
        assert answer[name] is None or type(answer[name]) is int, (name, answer)
    assert answer["currentEpoch"] is None or type(answer["currentEpoch"]) in (int, float), answer
    assert all(type(answer[name]) is dict for name in MAPS)
    return answer


def as_prometheus_reads(text: str) -> dict[str, float]:
    """The samples of an exposition by name and labels; each line is one, or about one (Prometheus'
    text format 0.0.4)."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            sample = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="\d+"(?:,[a-z]+="\d+")*\})?) (\S+)', line)
            assert sample and sample[1] not in found, line
            found[sample[1]] = float(sample[2])
    return found
