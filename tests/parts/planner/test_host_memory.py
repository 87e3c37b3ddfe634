"""Main memory: what the formulas say is what was measured, and each moment has its part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import main_memory
from runner import catalog
from runner.check.validate import load
from runner.parts.planner import forecast, parameters, state, storage
from runner.parts.planner.workload import Workload
from runner.plan import Machines
from runner.scenarios import place, translate
from tests.conftest import ROOT

MIB = 2**20
LOADING, SAVING = "weights that every process loads", "weights and state to save"
RESUMING, MERGING = "state to continue from", "base model to merge with"


def test_the_formulas_are_those_that_were_measured_against():
    rows = [
        line.split() for line in main_memory.RESULTS.read_text("utf-8").splitlines() if "%" in line
    ]
    for row, (case, (processes, plan)) in zip(rows, main_memory.CASES.items(), strict=True):
        count, planned, measured = (float(cell) for cell in row[-6:-3])
        assert count == processes and plan() / MIB == pytest.approx(planned, abs=1), case
        # Packages that a case loads first are some 100 MiB of a process.
        assert measured - 120 < planned < 1.03 * measured, case


def test_an_adapter_s_base_is_read_whole_and_unquantised_when_it_is_merged():
    recipe, _, _ = load(ROOT / "recipes" / "minimal" / "lora.yaml")
    (found,) = forecast.of(recipe, translate(recipe, place(recipe)), look=False)
    adapter = found.workload
    base = state.moments(adapter)[MERGING]
    assert (
        storage.host(found)[MERGING] == base == state.PROCESS + 2 * parameters.total(adapter.model)
    )
    four = replace(adapter, adapter=adapter.adapter._replace(four_bit=True))
    assert state.moments(four)[MERGING] == base
    assert state.moments(replace(adapter, adapter=None))[MERGING] == 0


def test_a_machine_holds_what_its_processes_go_on_from():
    full = Workload(
        catalog.model("google/gemma-3-270m"), machines=Machines(1, 1, "NVIDIA-L40S", 64, 8)
    )
    count = parameters.total(full.model)
    # AdamW's moments are as wide as the weights.
    assert (state.moments(full)[RESUMING], state.moments(full)[LOADING]) == (4 * count, 0)
    two = Machines(2, 2, full.machines.gpu, 64, 8)
    # DDP reads onto the GPUs; each of ZeRO's processes its own share, half of them here.
    assert state.moments(replace(full, machines=two, sharding="ddp"))[RESUMING] == 0
    assert (
        state.moments(replace(full, machines=two, sharding="zero2"))[RESUMING]
        == 2 * 12 * count // 4
    )
    # FSDP loads whole models in every process, and gathers once.
    split = replace(full, machines=two, sharding="fsdp", fp32_weights=True)
    assert [state.moments(split)[name] for name in (LOADING, SAVING, RESUMING)] == [8 * count] * 3
