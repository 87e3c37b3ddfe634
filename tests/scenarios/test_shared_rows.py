"""GPUs that share each row (ring attention) or each matrix: what reaches Axolotl, what is refused,
and what is planned."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from runner import catalog
from runner.check.computed import computed_values
from runner.check.validate import examine, load
from runner.parts.planner import duration, memory, state
from runner.parts.planner.planned import Planned
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.run.this_machine import changes_for
from runner.scenarios import place, translate
from runner.scenarios.shared import common, rehearsal
from tests.catalog.axolotls_own import validated
from tests.conftest import ROOT, setting_of

# Eight GPUs; a model whose embedding and LM head are two matrices.
EIGHT = (
    "machines.nodes=1",
    "machines.gpus_per_node=8",
    "machines.gpu=NVIDIA-H100-80GB-HBM3",
    "train.micro_batch_size=1",
)
LYRICS, GEMMA = ROOT / "recipes" / "lyrics.yaml", ROOT / "recipes" / "gemma.yaml"
RING = (
    *EIGHT,
    "model.attention=flash_attention_2",
    "model.base=Qwen/Qwen3-8B",
    "sharding.context_parallel_size=2",
)
SPLIT = (*EIGHT, "model.base=Qwen/Qwen3-8B", "distribution=fsdp", "sharding.tensor_parallel_size=2")


def changes(options):
    """Those of options, on this machine's GPUs, and with the batch that follows from them."""
    return [
        *from_options(options),
        *(Override(line, None, None) for line in ("train.effective_batch_size", "nodes")),
    ]


def recipe_of(path, *options):
    return load(path, changes(options))[0]


def config_of(recipe):
    return dict(translate(recipe, place(recipe)).stage("train").config)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (LYRICS, RING),
        (LYRICS, (*RING, "distribution=zero3", "train.packing=pack")),
        (GEMMA, (*RING, "distribution=fsdp")),
        (GEMMA, (*RING, *SPLIT)),
        (GEMMA, SPLIT),
    ],
)
def test_axolotl_takes_it_and_counts_the_rows_alike(path, options, monkeypatch):
    """Its validation only asks whether the package of ring attention is there, which needs a GPU to
    be built."""
    monkeypatch.setitem(sys.modules, "ring_flash_attn", ModuleType("ring_flash_attn"))
    recipe = recipe_of(path, *options)
    context, tensor = common.shared_by(recipe)
    config = config_of(recipe)
    checked = validated(config, catalog.gpu(recipe.machines.gpu), 8)
    assert (checked["context_parallel_size"], checked["tensor_parallel_size"]) == (context, tensor)
    kind = (
        None if context == 1 else "varlen_llama3" if checked.get("sample_packing") else "batch_ring"
    )
    assert checked.get("ring_attn_func") == kind
    assert not config.get("batch_flattening") and not (tensor > 1 and config.get("liger_rms_norm"))
    # As Axolotl multiplies `batch_size` (0.19.0, utils/config, normalize_config).
    groups = 8 // context // tensor
    rows = config["micro_batch_size"] * config["gradient_accumulation_steps"] * groups
    assert (
        config["recipe_runner"]["effective_batch_size"]
        == rows
        == common.effective_batch_size(recipe)
    )
    assert config["recipe_runner"]["world_size"] == 8
    (stage,) = [one for one in Planned.of(recipe, None, {}).forecasts if one.stage.name == "train"]
    assert stage.workload.effective_batch_size == rows


def test_the_learning_rate_follows_the_groups():
    one, two = (
        recipe_of(
            LYRICS,
            *RING,
            "train.learning_rate_scaling=linear",
            f"sharding.context_parallel_size={size}",
        )
        for size in (1, 2)
    )
    assert common.learning_rate(one) == 2 * common.learning_rate(two)
    assert dict(computed_values(two))["train", "learning_rate"].how == "times 4 groups"


REFUSED = {
    "groups": (LYRICS, (*RING, "sharding.context_parallel_size=3")),
    "attention": (LYRICS, (*RING, "model.attention=sdpa")),
    "layers that are no attention": (
        LYRICS,
        (*RING, "model.base=LiquidAI/LFM2-1.2B", "train.packing=none"),
    ),
    "joined rows": (LYRICS, (*RING, "train.packing=flatten", "train.micro_batch_size=2")),
    "several packed rows": (LYRICS, (*RING, "train.packing=pack", "train.micro_batch_size=2")),
    "objective": (ROOT / "recipes" / "arithmetic.yaml", RING),
    "matrices without FSDP": (GEMMA, (*SPLIT, "distribution=zero3")),
    "tied": (GEMMA, (*SPLIT, "model.base=Qwen/Qwen3-0.6B")),
    "heads": (GEMMA, (*SPLIT, "machines.gpus_per_node=12", "sharding.tensor_parallel_size=3")),
    "parts that see": (GEMMA, (*SPLIT, "model.base=mistralai/Ministral-3-8B-Instruct-2512-BF16")),
    "Liger's loss": (GEMMA, (*SPLIT, "train.cross_entropy=fused")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_at_its_line(case, golden_message):
    path, options = REFUSED[case]
    (error,) = [
        problem for problem in examine(path, changes(options)) if problem.severity == "error"
    ]
    golden_message(f"{setting_of(error)}: {error.message} {error.hint}")


def test_rows_beyond_a_models_length_are_for_rings_alone(golden_message):
    long = "model.sequence_len=200000"
    (note,) = [
        one
        for one in examine(LYRICS, [*from_options((*RING, long))])
        if "further positions" in one.message
    ]
    golden_message(note.message)
    alone = from_options((*EIGHT, "model.base=Qwen/Qwen3-8B", long))
    assert [
        one
        for one in examine(LYRICS, alone)
        if one.severity == "error" and "reads at most" in one.message
    ]


def test_a_stated_batch_counts_groups(golden_message):
    stated = from_options((*RING, "train.effective_batch_size=7"))
    (error,) = [one for one in examine(LYRICS, stated) if one.severity == "error"]
    golden_message(error.message)


def test_transformers_has_a_plan_for_all_but_these():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    families = catalog.table("families")
    for kind in catalog.model_types():
        # Plans leave out the LM head or parts that see, so recipes refuse all of these models.
        if "towers" in families[kind]:
            continue
        assert bool(CONFIG_MAPPING[kind].base_model_tp_plan) is not families[kind].get(
            "whole", False
        ), kind


def planned(path, *options):
    recipe = recipe_of(path, *options)
    (stage,) = [one for one in Planned.of(recipe, None, {}).forecasts if one.stage.name == "train"]
    return stage.workload


def test_a_ring_holds_its_share_of_each_row():
    whole, half = (
        planned(GEMMA, *RING, "distribution=fsdp", f"sharding.context_parallel_size={size}")
        for size in (1, 2)
    )
    kept = [memory.estimate(work).peak.activations for work in (whole, half)]
    assert kept[0] == pytest.approx(2 * kept[1], rel=0.01)
    assert state.held(whole) == state.held(half)  # FSDP splits the model over all GPUs
    computing = [duration.operations(work, 1).linear for work in (whole, half)]
    assert computing[0] == pytest.approx(2 * computing[1])
    split = planned(GEMMA, *SPLIT)
    assert state.held(split).layer == state.held(whole).layer // 2


def test_copies_of_a_split_model_are_counted():
    """Axolotl's hybrid sharding: two groups of GPUs, each with a whole model."""
    both = [
        planned(GEMMA, *SPLIT, *more) for more in ((), ("advanced.axolotl.dp_replicate_size=2",))
    ]
    assert state.held(both[1]).weights == pytest.approx(2 * state.held(both[0]).weights, rel=0.01)


def test_a_rehearsal_and_fewer_gpus_share_no_rows():
    recipe = recipe_of(LYRICS, *RING)
    (said,) = [one for one in rehearsal.on_processors(recipe, 1) if one.path == ("sharding",)]
    assert said.after is None and said.why.startswith("processes share no rows")
    odd = changes_for(recipe, ["NVIDIA H100 80GB HBM3"] * 3)
    (said,) = [one for one in odd if one.path == ("sharding",)]
    assert "3 GPUs cannot" in said.why
    assert not [
        one
        for one in changes_for(recipe, ["NVIDIA H100 80GB HBM3"] * 4)
        if one.path == ("sharding",)
    ]
