"""`model.master_weights`: what the layers are held in through Axolotl's own loader, and what the
plan makes of it."""

from __future__ import annotations

import pytest
import yaml

from runner import catalog
from runner.check.validate import examine, load
from runner.parts.jobs import kubernetes
from runner.parts.planner import forecast
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.scenarios.shared import twin
from tests.conftest import ROOT, setting_of

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
ONE_GPU = ("machines.gpus_per_node=1",)


def held_in(number_format: str) -> tuple[str, ...]:
    """The options that give each stage of seven-b that trains every weight this format."""
    return tuple(f"stages.{index}.model.master_weights={number_format}" for index in range(3))


def plan_of(*options: str):
    recipe, _, _ = load(SEVEN_B, from_options(options))
    return recipe, translate(recipe, kubernetes.place(recipe))


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ((*ONE_GPU, *held_in("fp32")), "float32"),
        ((*ONE_GPU, *held_in("bf16")), "bfloat16"),
        (ONE_GPU, "float32"),
        (("distribution=ddp",), "float32"),
        # DeepSpeed keeps fp32 weights of its own.
        (("distribution=zero2",), "bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_layers_are_built_in_the_master_weights(options, dtype, tmp_path, monkeypatch):
    """What Axolotl's loader hands to transformers; a rehearsal trains in fp32 throughout and cannot
    see it."""
    import torch
    from axolotl.integrations.base import PluginManager
    from axolotl.loaders import ModelLoader, load_tokenizer
    from axolotl.utils.config import normalize_config, validate_config
    from axolotl.utils.dict import DictDefault

    from runner.trainer.plugin import RecipePlugin

    recipe, plan = plan_of(*options)
    documents = (ROOT / "recipes" / "data" / "gemma-sample.txt").read_text("utf-8").split("\n\n")
    tiny = twin.wanted(
        recipe.model_facts, catalog.chat_template("chatml"), layers=2, seed=1, folder=tmp_path
    )
    twin.tokenizer_for(tiny)(documents)
    twin.build(tiny)
    stage = plan.stage("sft")
    text = next(file.text for file in stage.files if file.path == stage.config_file)
    found = yaml.safe_load(text) | {"base_model": str(tmp_path), "attn_implementation": "sdpa"}
    found |= {"output_dir": str(tmp_path / "checkpoints")}
    told = {key: found.pop(key) for key in ("recipe_runner", "deepspeed") if key in found}
    # What needs a GPU, or several processes, to be validated at all.
    cfg = {
        key: value
        for key, value in found.items()
        if key.partition("_")[0] not in ("plugins", "ddp", "fp8", "liger")
    }
    manager = PluginManager.get_instance()
    monkeypatch.setattr(manager, "plugins", {})
    cfg = validate_config(DictDefault(cfg))
    normalize_config(cfg)
    assert cfg.torch_dtype == torch.bfloat16
    cfg = DictDefault(cfg | told)
    manager.plugins["recipe"] = RecipePlugin()

    class Built(Exception):
        pass

    def build(self):
        raise Built(str(self.model_kwargs["dtype"]))

    monkeypatch.setattr(ModelLoader, "_build_model", build)
    tokenizer = load_tokenizer(cfg)
    manager.load_datasets(cfg)
    cfg.deepspeed = None  # its own set-up is not what is looked at
    with pytest.raises(Built, match=f"^torch.{dtype}$"):
        ModelLoader(cfg, tokenizer).load()


@pytest.mark.parametrize(
    ("name", "options", "master"),
    [
        ("survival", ("distribution=fsdp",), "fp32"),
        ("survival", ("distribution=ddp",), "fp32"),
        ("survival", ("distribution=ddp", "model.master_weights=bf16"), None),
        ("survival", ("distribution=zero2",), None),
        ("survival", ("model.precision=fp32", "model.attention=sdpa"), None),
        ("gemma", (), "fp32"),
        ("gemma", ("model.master_weights=bf16",), None),
        # A scaler cannot unscale gradients in fp16.
        ("survival", ("model.precision=fp16", "distribution=ddp"), "fp32"),
        ("survival", ("model.precision=fp16", "distribution=zero2"), None),
        ("gemma", ("model.precision=fp16",), "fp32"),
        (
            "lyrics",
            ("machines.gpus_per_node=4", "distribution=fsdp", "train.effective_batch_size="),
            None,
        ),
        ("lyrics", (), None),
    ],
)
def test_whole_layers_are_trained_in_fp32_unless_the_recipe_says_otherwise(name, options, master):
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml", from_options(options))
    plan = translate(recipe, place(recipe))
    config = plan.stage("train").config
    assert config["recipe_runner"].get("master_weights") == master
    (found,) = forecast.of(recipe, plan, look=False)
    assert found.workload.fp32_weights is (master == "fp32")


def test_under_fsdp_8_bit_is_torchaos_and_gradients_are_split_at_every_micro_batch():
    for name in ("survival", "seven-b"):
        home = "train" if name == "survival" else "sft"
        section = "train" if name == "survival" else "stages.1.train"
        options = ["distribution=fsdp", f"{section}.optimizer=adamw_bnb_8bit"]
        recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml", from_options(options))
        stages = {stage.name: stage.config for stage in translate(recipe, place(recipe)).stages}
        assert stages[home]["optimizer"] == "adamw_torch_8bit"
        assert stages[home]["accelerator_config"] == {
            "gradient_accumulation_kwargs": {"sync_each_batch": True}
        }
        if home == "sft":
            assert stages["sft"]["dataloader_drop_last"] is False


def forecasts(*options: str) -> dict[str, forecast.Forecast]:
    return {one.stage.name: one for one in forecast.of(*plan_of(*options), look=False)}


def test_fp32_master_weights_take_16_bytes_a_weight_on_one_gpu():
    half, full = (forecasts(*ONE_GPU, *held_in(wide)) for wide in ("bf16", "fp32"))
    count = full["sft"].counts.total
    state = full["sft"].memory.state
    assert (state.weights, state.gradients, state.optimizer) == (4 * count, 4 * count, 8 * count)
    state = half["sft"].memory.state
    assert (state.weights, state.gradients, state.optimizer) == (2 * count, 2 * count, 4 * count)
    assert (
        full["sft"].memory.total > 16 * count
        and full["sft"].fits is False
        and half["sft"].fits is True
    )
    # The reference model of preference training is loaded in the same way; what LoRA freezes stays
    # small.
    assert full["dpo"].memory.state.weights == 8 * count
    assert full["lora"].memory.total == half["lora"].memory.total


def test_fsdp_and_deepspeed_hold_what_they_held():
    """FSDP raises what it trains anyway; DeepSpeed keeps fp32 weights of its own, beside
    half-precision ones."""
    for way in ("fsdp", "zero2", "zero3"):
        half, full = (forecasts(f"distribution={way}", *held_in(wide)) for wide in ("bf16", "fp32"))
        assert full["sft"].memory == half["sft"].memory, way


def test_every_process_of_a_sharded_run_loads_the_master_weights():
    for wide, size in (("bf16", 2), ("fp32", 4)):
        one = forecasts(*held_in(wide))["sft"]
        beside = one.beside()
        assert beside == {"weights that every process loads": 8 * size * one.counts.total}


def test_what_is_saved_and_loaded_is_as_wide_as_the_master_weights():
    for wide, weights, checkpoint in (("bf16", 2, 6), ("fp32", 4, 12)):
        one = forecasts(*ONE_GPU, *held_in(wide))["sft"]
        written, count = one.written(), one.counts.total
        assert (written["best model"], written["checkpoint"]) == (
            weights * count,
            checkpoint * count,
        )


def test_bf16_is_noted_for_what_it_loses_and_refused_where_it_cannot_hold(golden_message):
    bf16 = "model.master_weights=bf16"
    for name in ("gemma", "survival"):
        (note,) = examine(ROOT / "recipes" / f"{name}.yaml", from_options([bf16]))
        assert (note.severity, setting_of(note)) == ("note", "model.master_weights")
    golden_message(note)
    for precision in ("fp16", "fp32"):
        options = from_options([bf16, f"model.precision={precision}", "model.attention=sdpa"])
        found = [
            one
            for one in examine(ROOT / "recipes" / "survival.yaml", options)
            if one.severity == "error"
        ]
        (problem,) = [one for one in found if setting_of(one) == "model.master_weights"]
    golden_message(problem, "fp32")
    # DeepSpeed stores fp32 weights itself.
    assert (
        examine(ROOT / "recipes" / "survival.yaml", from_options([bf16, "distribution=zero2"]))
        == []
    )


def test_the_setting_is_explained_with_its_reason(recipe_command):
    shown = " ".join(
        recipe_command("explain", "master_weights", ROOT / "recipes" / "gemma.yaml").stdout.split()
    )
    assert (
        "bf16 rounds most steps away" in shown
        and "16 bytes per trained weight" in shown
        and "GiB" in shown
    )


def test_half_precision_without_autocast_is_half_of_the_weights_and_goes_with_flash_attention():
    """Axolotl's own line loads every weight in fp16; the recipe's precision is then fp32, which
    means no autocast."""
    from runner.parts.planner import memory

    full = ROOT / "recipes" / "minimal" / "full.yaml"
    lines = ["model.precision=fp32", "model.attention=flash_attention_2"]
    assert any(
        "half precision" in problem.message for problem in examine(full, from_options(lines))
    )
    half = [*lines, "advanced.axolotl={float16: true}"]
    assert not [
        problem for problem in examine(full, from_options(half)) if problem.severity == "error"
    ]

    def held(options):
        recipe, _, _ = load(full, from_options(options))
        plan = translate(recipe, place(recipe))
        assert "master_weights" not in plan.stage("train").config["recipe_runner"]
        return memory.held(forecast.of(recipe, plan, look=False)[0].workload)

    whole, small = held(["model.precision=fp32"]), held(half)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(small, part) == pytest.approx(getattr(whole, part) / 2, rel=0.01)
