"""Short rows: what `packing` says reaches Axolotl, rows that are joined or packed never see each
other, and nothing is padded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner import catalog
from runner.check.validate import load
from runner.parts.planner import forecast
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import place, rehearsal, translate
from runner.tools.problem import Stop
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.catalog.test_axolotl_settings import emitted
from tests.conftest import ROOT, setting_of

RECIPES = ROOT / "recipes"
SURVIVAL, LYRICS, SEVEN_B = (RECIPES / f"{name}.yaml" for name in ("survival", "lyrics", "seven-b"))
BY_LENGTH = RECIPES / "minimal" / "last-layers.yaml"
PADDED, JOINED, PACKED = (False, False), (False, True), (True, False)


UNCOMPILED = tuple(f"stages.{index}.speed.compile=off" for index in range(4))


def stages(path, *options, accelerator=True):
    recipe, _, _ = load(path, from_options(options))
    at = place(recipe) if accelerator else Place("/c", "/d", "/r", "/s", accelerator=False)
    return {
        stage.name: stage for stage in translate(recipe, at).stages if stage.engine == "axolotl"
    }


def way(stage) -> tuple[bool, bool]:
    config = emitted(stage)
    return bool(config.get("sample_packing")), bool(config.get("batch_flattening"))


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        (SURVIVAL, (), JOINED),
        (LYRICS, (), JOINED),
        (BY_LENGTH, (), PADDED),  # sdpa, which knows no lengths
        (SURVIVAL, ("model.attention=sdpa",), PADDED),
        (SURVIVAL, ("train.micro_batch_size=1", "train.effective_batch_size="), PADDED),
        (SURVIVAL, ("train.packing=none",), PADDED),
        (SURVIVAL, ("train.packing=pack",), PACKED),
        (BY_LENGTH, ("train.packing=pack",), PACKED),
        (LYRICS, ("train.packing=flatten", "train.adapter=qlora"), JOINED),
    ],
    ids=str,
)
def test_rows_are_joined_where_flash_attention_is_and_packed_where_that_is_asked_for(
    path, options, expected
):
    """And Axolotl's own validation takes it."""

    stage = stages(path, *options)["train"]
    assert way(stage) == expected
    config = emitted(stage)
    checked = validated(config, catalog.gpu(stage.machines.gpu), stage.machines.world_size)
    assert (bool(checked["sample_packing"]), bool(checked["batch_flattening"])) == expected
    assert unknown_keys(config) == []


def test_a_pipeline_packs_its_sft_and_joins_nothing_that_is_compiled():
    plain = stages(SEVEN_B)
    assert {name: way(stage) for name, stage in plain.items()} == {
        "pretrain-512": PADDED, "pretrain-1024": PADDED, "pretrain-2048": PADDED, "sft": PACKED, "dpo": PADDED, "lora": PADDED,
    }  # fmt: skip
    assert emitted(plain["sft"])["recipe_runner"]["effective_batch_tokens"] == 2 * 2 * 8 * 2048
    assert "effective_batch_tokens" not in emitted(plain["lora"])["recipe_runner"]
    uncompiled = stages(SEVEN_B, *UNCOMPILED, "stages.1.train.packing=auto")
    assert way(uncompiled["lora"]) == way(uncompiled["sft"]) == JOINED


def test_a_packed_batch_is_said_in_tokens(capsys):
    from runner.parts.planner.planned import Planned
    from runner.parts.planner.view import views

    recipe, _, _ = load(SURVIVAL, from_options(("train.packing=pack",)))
    planned = Planned.of(recipe)
    assert planned.plan.facts["effective_batch_tokens"] == 64 * 1024
    (only,) = planned.forecasts
    rows = only.workload.batch_rows
    # Five of 181 tokens go into one of 1,024 where no shorter one fills the rest.
    assert 64 * 5 <= rows < 64 * 1024 / only.workload.lengths.mean
    views.details(planned, [], {})
    assert (
        f"65,536 tokens: 8 × 2 × 4 GPUs packed rows of 1,024, about {rows} rows"
        in capsys.readouterr().out
    )


def test_joined_rows_take_less_time_than_padded_ones_and_packed_ones_fewer_steps():
    def foreseen(*options):
        recipe, _, _ = load(SURVIVAL, from_options(options))
        (only,) = forecast.of(recipe, translate(recipe, place(recipe)), look=False)
        return only

    joined, padded, packed = (
        foreseen(),
        foreseen("train.packing=none"),
        foreseen("train.packing=pack"),
    )
    assert joined.steps == padded.steps > packed.steps
    assert joined.time.tokens_a_step == pytest.approx(64 * joined.workload.lengths.mean)
    assert joined.time.tokens_a_step < padded.time.tokens_a_step < packed.time.tokens_a_step
    assert joined.time.training_seconds < padded.time.training_seconds
    # However rows are joined, all of a micro batch may be as long as the longest; packed ones
    # always are full.
    assert joined.memory.total == padded.memory.total < packed.memory.total
    assert joined.full.memory.total == padded.full.memory.total == packed.memory.total


# Options of the survival recipe, and where its problem is. The last ones are notes.
CONTRADICTIONS = {
    "joined rows under sdpa": (("train.packing=flatten", "model.attention=sdpa"), "train.packing"),
    "joined rows under eager": (
        ("train.packing=flatten", "model.attention=eager"),
        "train.packing",
    ),
    "joined rows in fp32": (
        ("train.packing=flatten", "model.attention=sdpa", "model.precision=fp32"),
        "train.packing",
    ),
    "packed rows on a T4": (
        (
            "train.packing=pack",
            "model.attention=sdpa",
            "model.precision=fp16",
            "machines.gpu=Tesla-T4",
        ),
        "train.packing",
    ),
    "FlashAttention in fp32": (("model.precision=fp32",), "attention"),
    "packing beside the recipe's": (
        ('advanced.axolotl={"sample_packing": true}',),
        "advanced.axolotl",
    ),
    "joining beside the recipe's": (
        ('advanced.axolotl={"batch_flattening": "auto"}',),
        "advanced.axolotl",
    ),
}
NOTES = {
    "one row is joined to nothing": (
        ("train.packing=flatten", "train.micro_batch_size=1", "train.effective_batch_size="),
        "train.packing",
    ),
    "packed rows in fp32": (
        (
            "train.packing=pack",
            "model.attention=sdpa",
            "model.precision=fp32",
            "train.effective_batch_size=",
        ),
        "train.packing",
    ),
    "packed rows under eager": (
        ("train.packing=pack", "model.attention=eager", "train.effective_batch_size="),
        "train.packing",
    ),
    "a stated batch of packed rows": (("train.packing=pack",), "effective_batch_size"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_named(case, golden_message):
    options, setting = CONTRADICTIONS[case]
    with pytest.raises(Stop) as stop:
        stages(SURVIVAL, *options)
    (problem,) = stop.value.problems
    assert setting_of(problem) == setting
    golden_message(problem)


@pytest.mark.parametrize("case", NOTES)
def test_what_is_hardly_meant_is_noted(case, golden_message):
    options, setting = NOTES[case]
    (note,) = load(SURVIVAL, from_options(options))[2]
    assert note.severity == "note" and setting_of(note) == setting
    golden_message(note)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("seven-b", "stages.2.train.packing=pack"),
        ("seven-b", "stages.0.train.packing=pack"),
        ("gemma", "train.packing=flatten"),
        ("resnet", "train.packing=pack"),
        ("seven-b", "stages.1.train.packing=true"),
    ],
)
def test_where_nothing_can_be_packed_the_reason_is_said(name, setting, golden_message):
    with pytest.raises(Stop) as stop:
        load(RECIPES / f"{name}.yaml", from_options([setting]))
    (problem,) = stop.value.problems
    golden_message(problem)


def rehearsed(path, *options, stage=""):
    """The recipe, or one of its stages, as a rehearsal trains it, and what stands in."""
    from pathlib import Path

    from runner.check.validate import changed
    from runner.data.prepared import Lengths, PreparedRows

    recipe = load(path, from_options(options))[0].of_stage(stage)
    own = rehearsal(recipe.scenario)
    recipe, _ = changed(recipe, own.before_data(recipe, None))
    then = own.after_data(recipe, PreparedRows(200, lengths=Lengths(300, 50, 450)), Path("nowhere"))
    return changed(recipe, [override for override in then if override.setting != "model.base"])[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), True),
        (("train.packing=flatten",), True),
        (("model.attention=sdpa",), False),
        (("train.packing=none",), False),
        (("train.packing=pack",), False),
    ],
    ids=str,
)
def test_a_rehearsal_joins_rows_where_the_run_on_gpus_does(options, expected):
    recipe = rehearsed(SURVIVAL, *options)
    config = translate(recipe, Place("/c", "/d", "/r", "/s", accelerator=False)).stages[-1].config
    assert config["recipe_runner"].get("flatten", False) is expected
    assert config["batch_flattening"] is False, "Axolotl would refuse it, without FlashAttention"
    assert config["sample_packing"] is ("train.packing=pack" in options)


def test_a_pipelines_rehearsal_joins_nothing_either():
    sft, lora = (rehearsed(SEVEN_B, stage=name) for name in ("sft", "lora"))
    assert (sft.train.packing, lora.train.packing) == ("pack", "none")
    assert rehearsed(SEVEN_B, *UNCOMPILED, stage="lora").train.packing == "auto"


def test_the_plugin_joins_rows_before_axolotl_makes_its_batches():
    """Axolotl's own choice of a collator, after what the plugin has set."""
    from axolotl.core.builders import HFCausalTrainerBuilder
    from axolotl.utils.dict import DictDefault

    from runner.trainer.plugin import RecipePlugin

    def collator(**flags):
        settings = {
            "name": "a",
            "fingerprint": "b",
            "run_dir": "c",
            "recipe_file": "d",
            "backend": "gloo",
            "world_size": 1,
        }
        settings |= {
            "effective_batch_size": 4,
            "base_learning_rate": 1.0,
            "learning_rate": 1.0,
            **flags,
        }
        cfg = DictDefault({"recipe_runner": settings, "micro_batch_size": 4})
        plugin = RecipePlugin()
        assert plugin.load_datasets(cfg, preprocess=True) is None
        builder = object.__new__(HFCausalTrainerBuilder)
        builder.cfg, builder.tokenizer, builder.processor = (
            cfg,
            SimpleNamespace(pad_token_id=0),
            None,
        )
        arguments = SimpleNamespace(
            pretraining=False, sample_packing=False, eval_sample_packing=False
        )
        made = builder.build_collator(arguments, padding=True, pad_to_multiple_of=64)
        return type(made).__name__, plugin.get_training_args(cfg)["include_num_input_tokens_seen"]

    assert collator(flatten=True) == ("DataCollatorWithFlattening", "all")
    assert collator() == ("DataCollatorForSeq2Seq", "non_padding")


@pytest.mark.parametrize("kind", ["smollm3", "phi3", "gemma3_text"])
def test_joined_rows_teach_what_padded_ones_do(kind):
    """Loss and gradients of one micro batch, under a mask and on transformers' way to
    FlashAttention with its kernel emulated. A row that saw the one before it would be seen here."""
    import torch
    from transformers import DataCollatorWithFlattening

    from benchmarks.packing import emulated_flash_attention
    from tests.scenarios.side_by_side import WORDS, build

    model = build(kind, {})
    torch.manual_seed(3)
    rows = [torch.randint(3, WORDS, (length,)).tolist() for length in (5, 17, 1, 9)]
    features = [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in rows]
    longest = max(map(len, rows))
    ids, labels, mask = (
        torch.tensor([[*row, *[fill] * (longest - len(row))] for row in part])
        for part, fill in (
            (rows, 0),
            ([feature["labels"] for feature in features], -100),
            ([[1] * len(row) for row in rows], 0),
        )
    )
    joined = DataCollatorWithFlattening(return_tensors="pt")(features)

    def taught(attention: str | None, **batch) -> tuple[float, torch.Tensor]:
        if attention:
            model.set_attn_implementation(attention)
        model.zero_grad()
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        return loss.item(), torch.cat([part.grad.flatten() for part in model.parameters()])

    def same(one, other) -> bool:
        return abs(one[0] - other[0]) < 1e-5 and bool(
            (one[1] - other[1]).norm() < 1e-4 * one[1].norm()
        )

    padded = taught("sdpa", input_ids=ids, labels=labels, attention_mask=mask)
    assert same(padded, taught("sdpa", **joined))
    assert same(padded, taught("eager", **joined))
    model.set_attn_implementation("sdpa")
    with emulated_flash_attention(model):
        assert same(padded, taught(None, **joined))
    seen = torch.arange(sum(map(len, rows)))[None]
    assert not same(padded, taught("sdpa", **joined | {"position_ids": seen})), (
        "one row, as it were"
    )
