"""The exact trace, and the quick estimate held against it: the same model, built and trained on
fake tensors."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterable
from itertools import product

import pytest

from benchmarks.estimate_accuracy import MEDIAN, MODELS, WORST, cells, compare
from runner import catalog
from runner.parts.images.formulas import ImageForecast, Images
from runner.parts.planner import duration, memory, parameters
from runner.parts.planner.trace.tracing import trace
from runner.parts.planner.workload import Adapter, Workload
from runner.plan import Machines
from tests.conftest import ROOT

pytestmark = pytest.mark.heavy

SMALL = 10
ONE = Machines(1, 1, "NVIDIA-L40S", 32, 8)


def shrunk(model, layers: int = 3, words: int = 2048):
    """A model of the same widths with few layers and words, so that a trace takes a second."""
    from dataclasses import replace

    return replace(
        model, num_hidden_layers=layers, vocab_size=words, id="no/such-model", parameters=None
    )


def but_for(quick: Collection[str], kinds: Iterable[str]) -> list:
    """Cases of which only the quick ones are run each time."""
    assert set(quick) <= set(kinds)
    return [pytest.param(kind, marks=() if kind in quick else pytest.mark.long) for kind in kinds]


def work(model, **other) -> Workload:
    return Workload(
        model=model,
        machines=ONE,
        **{"micro_batch_size": 4, "evaluation_batch_size": 4, "sequence_len": 1024} | other,
    )


def test_the_cells_are_the_same_on_every_machine():
    assert cells(3) == cells(120)[:3]
    assert len({cell.workload.model.id for cell in cells()}) == 5
    assert {cell.kind for cell in cells()} == {"full", "last", "lora", "qlora"}
    assert {cell.workload.sharding for cell in cells()} == {"none", "ddp", "fsdp"}


@pytest.mark.long
def test_quick_and_exact_agree_in_ten_cells_of_the_grid():
    found = [compare(cell) for cell in cells(SMALL)]
    assert len(found) == SMALL
    assert all(one.counts_agree for one in found)
    shares = [abs(one.share) for one in found]
    assert statistics.median(shares) <= MEDIAN, shares
    assert max(shares) <= WORST, shares


KINDS = {
    "full": {},
    "full, sdpa": {"attention": "sdpa"},
    "full, eager": {"attention": "eager"},
    "full, fp32": {"precision": "fp32", "attention": "sdpa"},
    "full, fp32 weights": {"fp32_weights": True},
    "8 bit, fp32 weights": {"fp32_weights": True, "optimizer": "adamw_bnb_8bit"},
    "full, sdpa, Cut Cross-Entropy": {"attention": "sdpa", "fused_loss": "cut"},
    "last layer": {"unfrozen": ("^model.layers.2.",)},
    "last layer, fp32 weights": {
        "unfrozen": ("^model.layers.2.", "embed_tokens"),
        "fp32_weights": True,
    },
    "lora": {"adapter": True},
    "qlora": {"adapter": True, "four_bit": True},
    "lora on 8 bits": {"adapter": True, "eight_bit": True},
    "dora": {"adapter": True, "dora": True},
    "dora on 4 bits": {"adapter": True, "dora": True, "four_bit": True},
    "8 bit": {"optimizer": "adamw_bnb_8bit"},
    "plain AdamW": {"optimizer": "adamw_torch"},
}


# The others take as long each and say little beside these.
QUICK = ("lora",)


@pytest.mark.parametrize("kind", but_for(QUICK, KINDS))
def test_what_is_held_between_steps_agrees_to_two_thousandths(kind):
    from dataclasses import replace

    model = replace(shrunk(MODELS[0]), linear=MODELS[0].linear)
    other = dict(KINDS[kind])
    if other.pop("adapter", False):
        base = {name: other.pop(name, False) for name in ("four_bit", "eight_bit", "dora")}
        other["adapter"] = Adapter(16, model.linear, 0.05, **base)
    job = work(model, **other)
    exact, quick = trace(job), memory.held(job)
    assert exact.parameters == parameters.total(model) + parameters.adapter(job)
    assert exact.trainable == parameters.trainable(job)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(quick, part) == pytest.approx(getattr(exact, part), rel=2e-3), part


DORA = list(product((False, True), (1, 8), (0.0, 0.05), (False, True)))


@pytest.mark.long
@pytest.mark.parametrize(("checkpointing", "rows", "dropout", "four_bit"), DORA)
def test_dora_is_reckoned_as_it_is_traced(checkpointing, rows, dropout, four_bit):
    """Its peak, and its operations: with dropout it multiplies by the frozen weights twice."""
    model = shrunk(MODELS[1], layers=4)
    plain, dora = (
        work(
            model,
            adapter=Adapter(16, model.linear, dropout, four_bit, on),
            checkpointing=checkpointing,
            micro_batch_size=rows,
        )
        for on in (False, True)
    )
    exact = trace(dora)
    assert exact.trainable == parameters.adapter(dora) > parameters.adapter(plain)
    assert max(moment.size for moment in memory.estimate(dora).moments) == pytest.approx(
        exact.peak, rel=0.12
    )
    # What replaces 4-bit layers has no operations.
    assert four_bit or sum(duration.operations(dora, rows)) == pytest.approx(exact.flops, rel=0.05)
    assert (
        sum(duration.operations(dora, rows)) > 1.5 * sum(duration.operations(plain, rows))
    ) == bool(dropout)


@pytest.mark.long
def test_checkpointing_is_seen_by_the_trace():
    model = shrunk(MODELS[1])
    kept, again = (trace(work(model, checkpointing=on)) for on in (False, True))
    assert again.activations < kept.activations / 3
    assert again.flops > 1.2 * kept.flops


@pytest.mark.parametrize("way", but_for({"fused"}, ["fused", "cut"]))
def test_a_fused_loss_is_traced_as_it_is_reckoned(way):
    job = work(shrunk(MODELS[2], words=65_536), fused_loss=way)
    exact, quick = trace(job, operations=False), memory.estimate(job)
    assert quick.tensors == pytest.approx(exact.peak, rel=0.1)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-0.6B",
        "mistralai/Mistral-7B-v0.3",
        "ibm-granite/granite-3.3-2b-instruct",
        "allenai/OLMo-2-0425-1B-Instruct",
    ],
)
def test_architectures_beyond_the_grid_are_reckoned_as_they_are_traced(name):
    job = work(shrunk(catalog.model(name), layers=4, words=8192), checkpointing=False)
    exact, quick = trace(job, operations=False), memory.estimate(job)
    assert quick.tensors == pytest.approx(exact.peak, rel=0.05)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=0.05)


FP32_WEIGHTS = {
    "recomputed": {},
    "kept": {"checkpointing": False},
    "kept, accumulated": {"checkpointing": False, "accumulation": 4},
    "fused loss": {"fused_loss": "fused"},
    "DDP": {"machines": Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8), "sharding": "ddp"},
    "last layers": {"unfrozen": ("^model.layers.[45].",)},
    "last layers and head": {"unfrozen": ("^model.layers.[45].", "lm_head")},
    "last layers and tied head": {
        "unfrozen": ("^model.layers.[45].", "embed_tokens"),
        "model": shrunk(MODELS[0], layers=6, words=16_384),
    },
    "last layers and head, sdpa": {
        "unfrozen": ("^model.layers.[45].", "lm_head"),
        "attention": "sdpa",
    },
    "preferences": {"objective": "dpo", "micro_batch_size": 1, "evaluation_batch_size": 1},
}


@pytest.mark.parametrize("kind", but_for({"last layers and tied head"}, FP32_WEIGHTS))
def test_fp32_weights_and_their_copies_in_half_precision_are_traced_as_they_are_reckoned(kind):
    from dataclasses import replace

    job = replace(
        work(shrunk(MODELS[1], layers=6, words=16_384), fp32_weights=True), **FP32_WEIGHTS[kind]
    )
    exact, quick = trace(job, operations=False), memory.estimate(job)
    assert quick.tensors == pytest.approx(exact.peak, rel=0.04)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=2e-3)


@pytest.mark.parametrize("fp32_weights", [False, pytest.param(True, marks=pytest.mark.long)])
def test_fsdp_over_pretended_gpus_holds_its_share(fp32_weights):
    from dataclasses import replace

    job = work(shrunk(MODELS[1]), fp32_weights=fp32_weights)
    job = replace(job, machines=Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8), sharding="fsdp")
    exact, total = trace(job), parameters.total(job.model)
    assert exact.weights == pytest.approx(4 * total / 8, rel=0.01)
    assert memory.held(job).weights == 4 * total // 8
    assert exact.trainable == total


BASES = {"16 bits": {}, "4 bits": {"four_bit": True}, "8 bits": {"eight_bit": True}}


@pytest.mark.long
@pytest.mark.parametrize("base", ["4 bits", "8 bits"])
def test_packed_weights_are_split_over_pretended_gpus_and_their_scales_are_not(base):
    from dataclasses import replace

    model = replace(shrunk(MODELS[1]), linear=MODELS[1].linear)
    job = work(
        model,
        adapter=Adapter(16, model.linear, 0.0, **BASES[base]),
        sharding="fsdp",
        sequence_len=256,
    )
    job = replace(job, machines=Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8))
    exact, quick = trace(job, operations=False), memory.held(job)
    assert exact.parameters == parameters.total(model) + parameters.adapter(job)
    assert exact.trainable == parameters.adapter(job)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(quick, part) == pytest.approx(getattr(exact, part), rel=0.01), part


@pytest.mark.long
@pytest.mark.parametrize("base", BASES)
def test_an_adapter_over_pretended_gpus_is_traced_as_it_is_reckoned(base):
    """Its matrices are units of their own, and what is outside the layers is gathered at the
    beginning of each pass."""
    from dataclasses import replace

    model = replace(shrunk(MODELS[1], words=65_536), linear=MODELS[1].linear)
    job = work(
        model,
        adapter=Adapter(16, model.linear, 0.0, **BASES[base]),
        sharding="fsdp",
        fused_loss="fused",
    )
    job = replace(
        job,
        machines=Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8),
        micro_batch_size=1,
        sequence_len=512,
    )
    exact, quick = trace(job, operations=False), memory.estimate(job)
    assert quick.tensors == pytest.approx(exact.peak, rel=0.05)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=0.05)


@pytest.mark.long
def test_the_benchmark_on_a_gpu_runs_on_a_tiny_model_here(tmp_path):
    out = tmp_path / "results.json"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "memory_on_gpu.py"),
            "--device",
            "cpu",
            "--tiny",
            "--out",
            str(out),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["gpu"] == "cpu" and found["date"] and found["versions"]["torch"]
    (cell,) = found["cells"]
    assert cell["measured"]["micro_batch_seconds"] > 0
    assert cell["planned"]["allocated_bytes"] > 0


def test_the_benchmark_on_a_gpu_says_so_where_there_is_none(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "memory_on_gpu.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "no GPU here" in last and "`--device cpu --tiny`" in last


def test_its_differences_leave_out_cells_that_did_not_run():
    spec = importlib.util.spec_from_file_location(
        "memory_on_gpu", ROOT / "benchmarks" / "memory_on_gpu.py"
    )
    sys.path.insert(0, str(ROOT / "benchmarks"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_on_gpu"] = module
    spec.loader.exec_module(module)
    rows = [
        {"planned": {"allocated_bytes": 90}, "measured": {"allocated_bytes": 100}},
        {"planned": {"allocated_bytes": 90}, "measured": {"allocated_bytes": 0}},
    ]
    assert module.differences(rows) == [pytest.approx(-0.1)]


PREFERENCES = {
    "a reference model beside it": {},
    "two pairs, everything kept": {
        "micro_batch_size": 2,
        "evaluation_batch_size": 2,
        "checkpointing": False,
    },
    "an adapter, switched off": {"adapter": True},
    "ORPO": {"objective": "orpo", "micro_batch_size": 4, "evaluation_batch_size": 4},
    "SimPO": {"objective": "simpo"},
    "KTO": {"objective": "kto", "micro_batch_size": 2, "evaluation_batch_size": 4},
    "KTO, an adapter": {
        "objective": "kto",
        "micro_batch_size": 2,
        "adapter": True,
        "checkpointing": False,
    },
    "KTO over pretended GPUs": {
        **{"objective": "kto", "micro_batch_size": 2, "sharding": "fsdp"},
        "machines": Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8),
    },
    "scores": {"objective": "reward", "micro_batch_size": 4, "evaluation_batch_size": 4},
    "scores, an adapter": {"objective": "reward", "micro_batch_size": 4, "adapter": True},
    "own answers": {"objective": "grpo", "generated": 512, "longest": 1024, "micro_batch_size": 4},
    "long own answers, an adapter": {
        "objective": "grpo",
        "generated": 768,
        "longest": 1024,
        "adapter": True,
    },
    "over pretended GPUs": {
        "machines": Machines(1, 8, "NVIDIA-H100-80GB-HBM3", 64, 8),
        "sharding": "fsdp",
    },
}


@pytest.mark.parametrize("kind", but_for({"over pretended GPUs"}, PREFERENCES))
def test_preference_training_is_traced_as_it_is_reckoned(kind):
    from dataclasses import replace

    model = replace(shrunk(MODELS[1], words=16_384), linear=MODELS[1].linear)
    other = {"objective": "dpo", "micro_batch_size": 1, "evaluation_batch_size": 1} | PREFERENCES[
        kind
    ]
    if other.pop("adapter", False):
        other["adapter"] = Adapter(16, model.linear, 0.05)
    if other["objective"] == "reward":
        model = replace(model, tied=True)
    job = replace(work(model), **other)
    exact, quick = trace(job, operations=False), memory.estimate(job)
    assert memory.held(job).weights == pytest.approx(exact.weights, rel=2e-3)
    # A model of three layers is mostly what is outside them, where the formulas are coarsest,
    # FSDP's above all.
    bound = WORST if job.sharding == "fsdp" else 0.07
    assert quick.tensors == pytest.approx(exact.peak, rel=bound)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=bound)


IMAGES = {
    "as the recipe has it": {},
    "half precision": {"precision": "bf16", "micro_batch_size": 128, "evaluation_batch_size": 128},
    "accumulated, without state": {"optimizer": "sgd", "accumulation": 4},
    "larger and wider": {
        "image_size": 65,
        "width": 96,
        "micro_batch_size": 16,
        "optimizer": "adamw_torch",
    },
    "two GPUs": {"machines": Machines(1, 2, "NVIDIA-L40S", 32, 8), "sharding": "ddp"},
}


@pytest.mark.parametrize("kind", but_for({"two GPUs"}, IMAGES))
def test_quick_and_exact_agree_on_images(kind):
    job = Images(
        **{"machines": ONE, "micro_batch_size": 32, "evaluation_batch_size": 32} | IMAGES[kind]
    )
    exact, formulas = trace(job), ImageForecast(None, job, None)
    quick = formulas.memory
    assert (exact.parameters, exact.trainable) == (formulas.counts.total, formulas.counts.trainable)
    assert formulas.flops(job.micro_batch_size) == pytest.approx(exact.flops, rel=1e-3)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(quick.state, part) == pytest.approx(getattr(exact, part), rel=2e-3), part
    # Coarse formulas are enough for a network that fits any card.
    assert quick.tensors == pytest.approx(exact.peak, rel=0.1)
    assert quick.evaluation == pytest.approx(exact.evaluation_peak, rel=0.1)
