"""What training says of itself while it runs: figures for Prometheus, progress for OpenShift AI's
console."""

from __future__ import annotations

import json
import math
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

from runner.parts.jobs import training_metrics
from runner.parts.jobs.training_metrics import Metrics, TrainingProgress
from runner.tools.files import read_json
from runner.trainer.results import History
from runner.trainer.settings import BlocksSettings
from tests.conftest import own_time
from tests.listening import as_prometheus_reads, as_the_trainer_reads, ask
from tests.trainer.test_time_limit import settings


def state(step: int, steps: int = 40, epoch: float = 0.5) -> SimpleNamespace:
    return SimpleNamespace(
        global_step=step,
        max_steps=steps,
        epoch=epoch,
        num_train_epochs=2,
        is_world_process_zero=True,
    )


def served(folder: Path) -> list[TrainerCallback]:
    """Who is heard at a port, of a process with this environment."""
    return training_metrics.callbacks(settings(folder, None), History(settings(folder, None)))


def heard(callback: TrainingProgress) -> dict:
    return as_the_trainer_reads(callback.text())


def test_nothing_is_claimed_before_the_first_step(tmp_path):
    callback = TrainingProgress(settings(tmp_path, None))
    assert {name: value for name, value in heard(callback).items() if value} == {}
    callback.on_train_begin(None, state(0, epoch=0), None)
    said = heard(callback)
    assert (
        said["progressPercentage"],
        said["currentStep"],
        said["totalSteps"],
        said["totalEpochs"],
    ) == (0, 0, 40, 2)
    assert said["estimatedRemainingSeconds"] is None, "nobody knows the pace yet"


def test_the_time_left_is_reckoned_from_the_steps_since_this_start(tmp_path, monkeypatch):
    now = [100.0]
    own_time(monkeypatch, training_metrics, monotonic=lambda: now[0])
    callback = TrainingProgress(settings(tmp_path, None))
    callback.on_train_begin(None, state(20), None)
    now[0] += 30.0
    callback.on_step_end(None, state(25), None)
    said = heard(callback)
    assert (said["progressPercentage"], said["currentStep"], said["estimatedRemainingSeconds"]) == (
        62,
        25,
        90,
    )


def test_a_context_length_counts_its_own_steps(tmp_path):
    length = BlocksSettings(
        folder="b",
        sequence_len=2048,
        first_step=30,
        last_step=40,
        steps=40,
        seed=1,
        continue_from=None,
    )
    callback = TrainingProgress(replace(settings(tmp_path, None), blocks=length))
    callback.on_train_begin(None, state(30), None)
    callback.on_step_end(None, state(37), None)
    said = heard(callback)
    assert (said["progressPercentage"], said["currentStep"], said["totalSteps"]) == (70, 7, 10)


def test_a_figure_that_is_no_number_is_left_out(tmp_path):
    callback = TrainingProgress(settings(tmp_path, None))
    logs = {
        "loss": math.nan,
        "learning_rate": 1e-3,
        "eval_loss": 2.5,
        "eval_accuracy": math.inf,
        "epoch": 1.0,
    }
    callback.on_log(None, state(1), None, logs)
    callback.on_log(None, state(2), None, {"loss": 3.0})
    said = heard(callback)
    assert said["trainMetrics"] == {"learning_rate": 1e-3, "loss": 3.0} and said["evalMetrics"] == {
        "eval_loss": 2.5
    }


def test_the_last_answer_is_kept_with_nothing_left_to_do(tmp_path):
    """While weights are merged and questions asked after the last step, nobody knows for how
    long."""
    callback = TrainingProgress(settings(tmp_path, None))
    callback.on_train_begin(None, state(0), None)
    callback.on_step_end(None, state(39), None)
    assert heard(callback)["progressPercentage"] == 97
    callback.on_train_end(None, state(40, epoch=2.0), None)
    assert heard(callback)["estimatedRemainingSeconds"] is None
    left = read_json(tmp_path / "progress.json")
    assert (
        left == heard(callback) | {"estimatedRemainingSeconds": 0}
        and left["progressPercentage"] == 100
    )


def test_only_the_first_process_says_how_far_all_are_and_a_port_in_use_stops_nobody(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RANK", "1")
    assert served(tmp_path) == []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv(training_metrics.PROGRESS_PORT, raising=False)
    assert served(tmp_path) == []
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv(training_metrics.PROGRESS_PORT, str(taken.getsockname()[1]))
        assert served(tmp_path) == []
    assert "Progress is not served: port" in capsys.readouterr().out


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs as a driver shows them, on the second machine of two; the second is a part of a
    card, which says less."""

    def used(gpu: int) -> float:
        return [50 * 2**30, 2**30][gpu]

    def utilization(gpu: int) -> int:
        if gpu == 1:
            raise RuntimeError("Not Supported")
        return 87

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_memory_used", used)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def test_every_rank_of_a_machine_shows_its_gpu_as_the_driver_does(two_gpus, tmp_path):
    said = as_prometheus_reads(Metrics(History(settings(tmp_path, None))).text())
    assert said == {
        'recipe_gpu_memory_used_bytes{rank="2",gpu="0"}': 50 * 2**30,
        'recipe_gpu_memory_used_bytes{rank="3",gpu="1"}': 2**30,
        'recipe_gpu_utilization_ratio{rank="2",gpu="0"}': 0.87,
    }


def test_the_figures_are_torchs_own():
    """A name that torch does not have would show nothing, on machines with GPUs alone."""
    assert callable(torch.cuda.device_memory_used) and callable(torch.cuda.utilization)


def test_speed_is_the_histories_and_what_is_no_number_is_shown_as_such(tmp_path, monkeypatch):
    monkeypatch.setenv(training_metrics.METRICS_PORT, "0")
    history = History(settings(tmp_path, None))
    history.steps = [{"samples_per_second": 12.5, "tokens_per_second": 123456.7}]
    callback = Metrics(history)
    callback.on_log(None, state(1234567, 7654321), None, {"eval_loss": 1.5})
    assert "recipe_samples_per_second" not in callback.text(), "an evaluation says nothing of speed"
    callback.on_log(None, state(1234567, 7654321), None, {"loss": math.nan, "grad_norm": math.inf})
    said = as_prometheus_reads(callback.text())
    assert (said["recipe_samples_per_second"], said["recipe_tokens_per_second"]) == (12.5, 123456.7)
    assert (said["recipe_step"], said["recipe_steps"]) == (1234567, 7654321)
    assert math.isnan(said["recipe_loss"]) and said["recipe_gradient_norm"] == math.inf


def test_progress_is_sent_where_the_trainer_asks_for_it(tmp_path, monkeypatch):
    """By transformers' own callback: on a cluster that sets these variables, and by the first
    process alone."""
    received = []

    class Trainer(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(
                (
                    self.headers["Authorization"],
                    json.loads(self.rfile.read(int(self.headers["Content-Length"]))),
                )
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    (tmp_path / "token").write_text("of-the-pod")
    assert served(tmp_path) == []
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Trainer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{server.server_port}")
        (callback,) = served(tmp_path)
        callback.on_train_begin(None, state(0), None)
        callback.on_log(None, state(20), None, {"loss": 2.5})
        callback._last_update_time = 0.0  # it sends at most every five seconds
        callback.on_step_end(None, state(20), None)
        server.shutdown()
    assert [token for token, _ in received] == ["Bearer of-the-pod"] * 2
    begun, later = (said["trainerStatus"] for _, said in received)
    assert (begun["progressPercentage"], later["progressPercentage"]) == (0, 50)
    assert {"name": "loss", "value": "2.5"} in later["metrics"]
    monkeypatch.setenv("RANK", "1")
    assert served(tmp_path) == []


def test_other_paths_are_not_there(tmp_path, monkeypatch):
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv(training_metrics.PROGRESS_PORT, str(port))
    monkeypatch.setenv("RANK", "0")
    (callback,) = served(tmp_path)
    assert ask(port) == callback.text()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as asked:
        asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 404 " in asked.recv(100)
