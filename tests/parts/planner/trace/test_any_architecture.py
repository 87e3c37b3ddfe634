"""Architectures that nobody has looked at: by their own config.json, and in a sentence where that
is not enough."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import any_architecture as benchmark
from benchmarks.estimate_accuracy import MODELS
from runner.parts.planner import duration
from runner.parts.planner.trace.tracing import any_architecture, trace
from runner.parts.planner.workload import Adapter
from runner.tools.problem import Stop
from tests.parts.planner.trace.test_exact import shrunk, work

pytestmark = pytest.mark.heavy

# Two layers of each kind that there is: names of sizes of their own, experts, a state-space model,
# a window.
TINY = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 512,
    },
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 512},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 512},
}


def folder_of(kind, tmp_path, **more):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": kind, "pad_token_id": 0} | TINY[kind] | more)
    )
    return tmp_path


def job(kind, **fields):
    return benchmark.workload(kind, {"model_type": kind} | TINY[kind], **fields)


def counted(folder):
    from transformers import AutoConfig, AutoModelForCausalLM

    return sum(
        part.numel()
        for part in AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(str(folder))
        ).parameters()
    )


# Where other tests of the process have loaded kernels, Mamba's code asks Triton for a GPU.
@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("gpt2", "flash_attention_2"),
        pytest.param("mamba", "eager", marks=pytest.mark.long),
        ("mpt", "eager"),
    ],
)
def test_a_model_is_traced_by_its_own_config(kind, attention, tmp_path):
    folder = folder_of(kind, tmp_path)
    traced = any_architecture(job(kind, attention=attention), folder)
    assert traced.parameters == traced.trainable == counted(folder)
    assert (
        traced.weights < traced.peak
        and traced.flops > 6 * 64 * 512 * benchmark.ROWS * benchmark.TOKENS
    )


@pytest.mark.long
def test_operations_of_experts_are_those_that_a_token_meets(tmp_path):
    folder, tokens = folder_of("mixtral", tmp_path), benchmark.ROWS * benchmark.TOKENS
    kept, again = (
        any_architecture(job("mixtral", checkpointing=on), folder) for on in (False, True)
    )
    assert kept.parameters == counted(folder)
    # Two experts of four, the router, q, k, v, o; and the head, which is never computed twice.
    layer = 2 * 3 * 64 * 96 + 64 * 4 + 2 * 64 * 64 + 2 * 64 * 32
    scores = benchmark.ROWS * benchmark.TOKENS**2 // 2 * 64
    forward = 2 * (2 * layer * tokens + 4 * scores)
    assert kept.flops == pytest.approx(
        3 * (forward + 2 * 64 * 512 * tokens) + 2 * 2 * scores, rel=0.01
    )
    assert again.flops - kept.flops == pytest.approx(forward, rel=0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ({"checkpointing": False}, {"attention": "sdpa"})
        ),
    ],
    ids=str,
)
def test_operations_of_a_known_architecture_are_those_of_its_formulas(fields):
    known = work(shrunk(MODELS[1]), **fields)
    model, tokens = known.model, known.micro_batch_size * known.sequence_len
    # What a layer ends with is not made again: nothing needs it (torch/utils/checkpoint.py, early
    # stop).
    spared = (
        2 * tokens * model.num_hidden_layers * model.intermediate_size * model.hidden_size
        if known.checkpointing
        else 0
    )
    assert trace(known).flops == pytest.approx(
        sum(duration.operations(known, known.micro_batch_size)) - spared, rel=0.01
    )


def test_a_sliding_window_is_counted_as_far_as_it_reaches():
    from types import SimpleNamespace

    import torch

    from runner.parts.planner.trace.stand_ins import counted, flash

    for named, pairs in (
        ({}, 500_000),
        ({"sliding_window": 100}, 95_000),
        ({"sliding_window": 4000}, 500_000),
        ({"is_causal": False}, 1_000_000),
    ):
        counted.clear()
        one = torch.empty(1, 1, 1000, 1)
        flash(SimpleNamespace(is_causal=True), one, one, one, None, **named)
        assert counted == [4 * pairs], named


def test_what_training_would_be_refused_for_is_said_with_what_to_write(tmp_path, golden_message):
    with pytest.raises(Stop) as attention:
        any_architecture(job("mpt"), folder_of("mpt", tmp_path))
    golden_message(attention.value.text, "attention")
    (tmp_path / "ctrl").mkdir()
    (tmp_path / "ctrl" / "config.json").write_text(
        json.dumps(benchmark.default("ctrl", fewer=True))
    )
    wanted = replace(
        job("gpt2", attention="eager"), model=replace(job("gpt2").model, model_type="ctrl")
    )
    with pytest.raises(Stop) as checkpointing:
        any_architecture(wanted, tmp_path / "ctrl")
    golden_message(checkpointing.value.text, "checkpointing")


def test_an_adapter_without_a_place_is_told_the_layers_that_there_are(tmp_path, golden_message):
    folder = folder_of("gpt2", tmp_path)
    with pytest.raises(Stop) as stopped:
        any_architecture(job("gpt2", adapter=Adapter(8, ("q_proj", "v_proj"), 0.0)), folder)
    golden_message(stopped.value.text)
    for four_bit in (False, True):
        adapter = Adapter(8, ("c_attn", "c_proj"), 0.0, four_bit)
        traced = any_architecture(job("gpt2", adapter=adapter), folder)
        assert traced.parameters == counted(folder) + traced.trainable
        # Per layer: c_attn to three times the width, c_proj of attention, and that of the
        # feed-forward part.
        assert traced.trainable == 2 * 8 * (64 * 4 + 64 * 2 + 64 * 5)


def test_what_fake_tensors_cannot_follow_is_said(tmp_path, golden_message):
    said = []
    for kind in ("longcat_flash", "no_such_type"):
        (tmp_path / kind).mkdir()
        config = (
            {"model_type": kind} if kind == "no_such_type" else benchmark.default(kind, fewer=True)
        )
        (tmp_path / kind / "config.json").write_text(json.dumps(config))
        wanted = replace(job("gpt2"), model=replace(job("gpt2").model, model_type=kind))
        with pytest.raises(Stop) as stopped:
            any_architecture(wanted, tmp_path / kind)
        said.append(stopped.value.text.replace(str(tmp_path), "…"))
    golden_message("\n\n".join(said))


def kept() -> list[tuple[str, bool]]:
    """The types in the table that is kept, and whether each was traced."""
    _, _, *lines = benchmark.TABLE.read_text(encoding="utf-8").splitlines()
    types = lines[: next(number for number, line in enumerate(lines) if line.endswith(" traced"))]
    return [(line.split()[0], "cannot" not in line) for line in types]


def test_the_table_that_is_kept_has_every_type_of_transformers():
    found = kept()
    assert [kind for kind, _ in found] == benchmark.kinds()
    assert (
        f"{sum(traced for _, traced in found)} of {len(found)} traced"
        in benchmark.TABLE.read_text(encoding="utf-8")
    )


@pytest.mark.long
def test_every_type_of_transformers_is_traced_or_named_with_its_reason(tmp_path):
    """Anything but a figure or a sentence fails here with its traceback."""
    tried = [benchmark.attempt(kind, tmp_path) for kind in benchmark.kinds()]
    traced = {one.kind for one in tried if one.traced}
    assert {kind for kind, could in kept() if could} <= traced
    for one in tried:
        assert one.traced or (
            one.why and "Traceback" not in one.why and len(one.why.splitlines()) == 1
        ), one
        assert one.traced is None or (
            one.traced.peak > one.traced.weights > 0 and one.traced.flops > 0
        ), one
