"""A summary names the backend by which the processes of a training really communicated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from runner.trainer import results
from runner.trainer.results import History
from tests.conftest import ROOT
from tests.trainer.test_time_limit import settings

PROGRAM = """
import sys, torch
from accelerate import PartialState
from runner.trainer.results import communication_backend
backend, file, rank = sys.argv[1:]
assert communication_backend() is None
torch.distributed.init_process_group(backend, init_method="file://" + file, rank=int(rank), world_size=2)
PartialState(cpu=True)
print(communication_backend())
"""


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_two_processes_on_processors_communicated_by_gloo(tmp_path, backend):
    """The plan of a recipe for GPUs says nccl."""
    command = [sys.executable, "-c", PROGRAM, backend, str(tmp_path / "meeting")]
    processes = [
        subprocess.Popen([*command, rank], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    assert [process.communicate(timeout=180)[0].split() for process in processes] == [
        ["gloo"],
        ["gloo"],
    ]


def test_a_summary_names_it_and_not_that_of_the_plan(tmp_path, monkeypatch):
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(results, "communication_backend", lambda: "gloo")
    planned = replace(settings(tmp_path, None), backend="nccl", world_size=2)
    history = History(planned)
    state = SimpleNamespace(
        global_step=0, num_input_tokens_seen=0, max_steps=1, is_world_process_zero=False
    )
    history.on_train_begin(None, state, None, model=torch.nn.Linear(1, 1))
    # Axolotl ends the process group before the summary is written.
    monkeypatch.setattr(results, "communication_backend", lambda: None)
    assert results.summary(planned, history, {}).backend == "gloo"
