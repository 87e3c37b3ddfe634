"""Small micro batches take as long as Python needs to launch their kernels: what is counted, and
what was measured on an H100."""

from __future__ import annotations

import importlib
import re
import statistics
import sys
from dataclasses import replace

import pytest

from runner import catalog
from runner.parts.planner import duration
from runner.parts.planner.workload import Adapter, Workload
from runner.plan import Machines
from tests.conftest import ROOT

CARD = "NVIDIA-H100-80GB-HBM3"
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = RESULTS / "memory-on-h100.txt"
COUNTED = RESULTS / "launches.txt"


@pytest.fixture
def benchmark(monkeypatch):
    """A module of the benchmarks, which import each other by their names alone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in {"memory_on_gpu", "estimate_accuracy", "launches"} - before:
        sys.modules.pop(name, None)


def tiny(**fields) -> Workload:
    """A model of 24 layers with so few tokens that only launching takes time."""
    model = catalog.model("HuggingFaceTB/SmolLM2-360M-Instruct")
    assert model
    workload = Workload(
        model, machines=Machines(1, 1, CARD, 64, 8), sequence_len=8, checkpointing=False
    )
    return replace(workload, **fields)


def a_layer(workload: Workload, training: bool = True) -> float:
    """Operations that are launched for a layer."""
    return (
        duration.launching(workload, training)
        / workload.model.num_hidden_layers
        / duration.PACE["dispatch"]
    )


def test_the_17_trainings_measured_on_an_h100_are_planned_within_their_known_errors(benchmark):
    """Before operations were counted, they took up to 2.8 times as long as planned, and 1.9 times
    in the middle."""
    card = catalog.gpu(CARD)
    assert card
    rows = [
        line
        for line in MEASURED.read_text("utf-8").splitlines()
        if re.match("SmolLM3|seven-b", line)
    ]
    cells = benchmark("memory_on_gpu").cells(False, CARD)
    ratios = []
    for line, cell in zip(rows, cells, strict=False):
        took, on_record = map(float, line.split()[-2:])
        planned = duration.pass_seconds(cell, card, cell.micro_batch_size)
        assert planned == pytest.approx(on_record, abs=6e-4), line
        ratios.append(took / planned)
    assert len(ratios) == 17
    assert min(ratios) > 0.6 and max(ratios) < 1.55
    assert 1.0 < statistics.median(ratios) < 1.2


@pytest.mark.heavy
def test_the_operations_of_a_layer_are_counted_again(benchmark):
    launches = benchmark("launches")
    recorded = COUNTED.read_text("utf-8")
    for case in launches.CASES:
        (count,) = re.findall(rf"^{re.escape(case.name)} +(\d+)$", recorded, re.MULTILINE)
        assert launches.of_a_layer(case) == pytest.approx(int(count), abs=1), case.name


def test_the_table_is_what_was_counted():
    lines = re.findall(r"^([^\d\n]+?) +(\d+)$", COUNTED.read_text("utf-8"), re.MULTILINE)
    counted = {name: int(count) for name, count in lines}
    adapter = Adapter(
        8, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    )
    layer = {
        "forward alone": a_layer(tiny(), training=False),
        "forward alone, LoRA on seven linear layers": a_layer(
            tiny(adapter=adapter), training=False
        ),
        "all weights": a_layer(tiny()),
        "all weights, checkpointing": a_layer(tiny(checkpointing=True)),
        "LoRA on seven linear layers": a_layer(tiny(adapter=adapter)),
        "LoRA on seven linear layers, checkpointing": a_layer(
            tiny(adapter=adapter, checkpointing=True)
        ),
    }
    for name, operations in layer.items():
        assert operations == pytest.approx(counted[name], rel=0.05), name


def test_checkpointing_sends_the_backward_pass_through_frozen_layers_too():
    """transformers 5.16 lets the embedding's output need a gradient, whichever layers are
    trained."""
    last = tiny(unfrozen=(r"^model.layers.31.",))
    assert duration.layers_passed_back(last) == 1
    again = replace(last, checkpointing=True)
    assert duration.layers_passed_back(again) == again.model.num_hidden_layers
    assert duration.operations(again, 1).linear > 2 * duration.operations(last, 1).linear


def test_a_step_with_many_tokens_is_the_card_s():
    card = catalog.gpu(CARD)
    assert card
    long = tiny(sequence_len=2048, micro_batch_size=32)
    assert duration.pass_seconds(long, card, 32) == duration.card_seconds(long, card, 32)
    assert duration.pass_seconds(tiny(), card, 1) == duration.launching(tiny())
