"""What was measured on a GPU takes the place of what is assumed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from runner import catalog
from runner.check.validate import load
from runner.parts.planner import constants, duration, forecasting, memory, planned
from runner.parts.planner.workload import Workload
from runner.plan import Machines
from runner.scenarios import place, translate
from tests.conftest import ROOT

L40S = "NVIDIA-L40S"
GIB = 2**30
WORK = Workload(
    catalog.model("google/gemma-3-270m"), machines=Machines(1, 1, L40S, 32, 8), rows=1000
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Writes the results file of ten cells: what `benchmarks/memory_on_gpu.py` makes of them."""
    measured = constants.measured(
        [0.01 + 0.01 * n for n in range(10)], [GIB // 2] * 10, [1.0 + 0.1 * n for n in range(10)]
    )
    found = replace(
        measured, source=f"{L40S}, 2027-01-02, 10 cells, torch 2.13.0, transformers 5.16.1"
    )
    (tmp_path / f"memory-{L40S}.json").write_text(
        json.dumps({"constants": asdict(found), "cells": []})
    )
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    return tmp_path


def test_without_a_file_everything_is_assumed_and_that_is_said(
    tmp_path, monkeypatch, golden_message
):
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    assert constants.constants(L40S) == constants.ASSUMED
    golden_message(constants.basis([L40S]))


def test_slack_context_and_pace_come_from_the_file(results):
    found = constants.constants(L40S)
    # Nine of ten cells stay below the slack; pace is the median.
    assert found.slack == pytest.approx(0.1, abs=1e-6)
    assert found.context == pytest.approx(0.5 * GIB, abs=2)
    assert found.slowness == pytest.approx(1.45)
    assert found.spread == (pytest.approx(1.1 / 1.45), pytest.approx(1.9 / 1.45))


def test_they_reach_memory_and_time_of_that_card_alone(results, monkeypatch):
    card, other = catalog.gpu(L40S), catalog.gpu("NVIDIA-A40")
    with_file = memory.estimate(WORK), duration.estimate(WORK, card), duration.estimate(WORK, other)
    monkeypatch.setattr(constants, "FOLDER", results / "none")
    without = memory.estimate(WORK), duration.estimate(WORK, card), duration.estimate(WORK, other)
    assert with_file[0].tensors == without[0].tensors
    assert with_file[0].slack == pytest.approx(0.1 * with_file[0].tensors, rel=1e-6)
    assert with_file[1].training_seconds > 1.3 * without[1].training_seconds
    passes = with_file[1].training_seconds + with_file[1].evaluation_seconds
    assert with_file[1].range_seconds[1] == pytest.approx(
        passes * 1.9 / 1.45 + with_file[1].overhead_range[1]
    )
    assert with_file[2] == without[2]


def test_a_plan_says_what_was_measured_and_what_was_not(results, golden_message):
    assert f"{L40S}, 2027-01-02, 10 cells, torch 2.13.0" in constants.basis([L40S])
    golden_message(constants.basis([L40S]))
    golden_message(constants.basis([L40S, "NVIDIA-A40"]), "two cards")


@pytest.mark.long
def test_the_benchmark_writes_what_is_read(tmp_path, monkeypatch):
    """The tiny cell of the benchmark, in the shape that a GPU's results have."""
    code = (
        "import json, sys; sys.argv[0] = 'x'; sys.path.insert(0, 'benchmarks'); import memory_on_gpu as b\n"
        "found = b.Measured(10 * 2**30, 11 * 2**30, 12 * 2**30, 0.5)\n"
        f"(work,) = [cell for cell in b.cells(True, '{L40S}')]\n"
        f"print(json.dumps(b.report('{L40S}', [b.row(work, found)])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / f"memory-{L40S}.json").write_text(done.stdout.splitlines()[-1])
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    found = constants.constants(L40S)
    assert (found.slack, found.context) == (pytest.approx(0.1), GIB)
    assert found.slowness > 0 and found.source.startswith(f"{L40S}, ")


def test_a_run_keeps_the_time_that_its_plan_shows_and_the_step_of_the_formulas_alone():
    recipe, _, _ = load(ROOT / "recipes" / "minimal" / "lora.yaml")
    plan = translate(recipe, place(recipe))
    (usual,) = forecasting.predictions(recipe, plan)
    with constants.taking({recipe.machines.gpu: constants.Constants(slowness=3.0)}):
        (slow,) = forecasting.predictions(recipe, plan)
        shown = planned.Planned.of(recipe).forecasts[0].time
    assert slow.seconds == shown.total_seconds > 1.5 * usual.seconds
    assert (slow.step_seconds, slow.waiting_seconds) == (usual.step_seconds, usual.waiting_seconds)
