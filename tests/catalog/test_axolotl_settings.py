"""What is emitted for Axolotl, judged by Axolotl itself: its own validation, for the GPU that the
recipe names."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from runner import catalog
from runner.catalog import tables
from runner.check.validate import load
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from tests.catalog.axolotls_own import known_keys, unknown_keys, validated
from tests.conftest import ROOT, STARTERS

SURVIVAL = ROOT / "recipes" / "survival.yaml"


def stages(path, *options):
    recipe, _, _ = load(path, from_options(options))
    return [
        (recipe, stage)
        for stage in translate(recipe, place(recipe)).stages
        if stage.engine == "axolotl"
    ]


def emitted(stage) -> dict:
    """The config as Axolotl will read it: from the emitted text, with PyYAML."""
    return yaml.safe_load(next(file.text for file in stage.files if file.path == stage.config_file))


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_emitted_config_passes_axolotls_own_validation(path):
    for recipe, stage in stages(path):
        config = emitted(stage)
        gpu = catalog.gpu(recipe.machines.gpu)
        checked = validated(config, gpu, stage.machines.world_size)
        assert checked["output_dir"] == config["output_dir"]
        assert unknown_keys(config) == []


@pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "adamw_bnb_8bit"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("distribution", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_every_distribution_passes_axolotls_own_validation(distribution, precision, optimizer):
    options = (
        f"distribution={distribution}",
        f"model.precision={precision}",
        f"train.optimizer={optimizer}",
    )
    ((recipe, stage),) = stages(SURVIVAL, *options)
    config = emitted(stage)
    validated(config, catalog.gpu(recipe.machines.gpu), 4)
    assert unknown_keys(config) == []


def test_a_key_that_axolotl_does_not_know_would_be_seen():
    ((recipe, stage),) = stages(SURVIVAL)
    config = emitted(stage)
    validated(config, catalog.gpu(recipe.machines.gpu), 4)
    config["datasets"][0]["feild"] = 1
    config["sequense_len"] = 1
    config["recipe_runner"]["run_dri"] = 1
    found = unknown_keys(config)
    assert sorted(found) == ["datasets.feild", "recipe_runner.run_dri", "sequense_len"]


def test_the_facts_of_the_survival_recipe_reach_axolotl():
    ((_, stage),) = stages(SURVIVAL)
    config = emitted(stage)
    facts = {
        "base_model": "/shared/models/base-models/HuggingFaceTB-SmolLM3-3B-e41bf7ab",
        "bf16": True,
        "attn_implementation": "flash_attention_2",
        "gradient_checkpointing": True,
        "sequence_len": 1024,
        "num_epochs": 4,
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "learning_rate": 2e-4,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "use_tensorboard": True,
        "chat_template": "chatml",
        "ddp": True,
        "ddp_bucket_cap_mb": 25,
        "ddp_find_unused_parameters": False,
    }
    assert {key: config[key] for key in facts} == facts
    assert config["datasets"][0]["roles_to_train"] == ["assistant"]
    assert config["recipe_runner"]["effective_batch_size"] == 64
    assert config["recipe_runner"]["base_learning_rate"] == 5e-5
    assert stage.env["NCCL_DEBUG"] == "INFO"
    assert (
        stage.machines.nodes,
        stage.machines.gpus_per_node,
        stage.machines.memory_gib,
        stage.machines.cpus,
    ) == (
        4,
        1,
        22,
        7,
    )


def test_axolotls_own_freezing_leaves_exactly_418_914_304_parameters_to_train():
    """On the meta device, from the catalog's geometry, through the emitted
    `unfrozen_parameters`."""
    import torch
    from axolotl.utils.freeze import freeze_layers_except
    from transformers import AutoConfig, AutoModelForCausalLM

    ((recipe, stage),) = stages(SURVIVAL)
    facts = recipe.model_facts
    config = AutoConfig.for_model(
        facts.model_type,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        num_hidden_layers=facts.num_hidden_layers,
        num_attention_heads=facts.num_attention_heads,
        num_key_value_heads=facts.num_key_value_heads,
        vocab_size=facts.vocab_size,
        tie_word_embeddings=facts.tied,
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    freeze_layers_except(model, emitted(stage)["unfrozen_parameters"])
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert (trained, total) == (418_914_304, 3_075_098_624)
    assert math.isclose(trained / total, 0.1362, abs_tol=5e-5)


@pytest.mark.parametrize("stage_number", [1, 2, 3])
def test_deepspeeds_own_config_class_accepts_the_emitted_file(stage_number):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    ((_, stage),) = stages(SURVIVAL, f"distribution=zero{stage_number}")
    text = next(file.text for file in stage.files if file.path == "deepspeed.json")
    config = json.loads(text)
    assert config["zero_optimization"]["stage"] == stage_number
    zero = {key: value for key, value in config["zero_optimization"].items() if value != "auto"}
    assert DeepSpeedZeroConfig(**zero).stage == stage_number
    assert HfTrainerDeepSpeedConfig(config).get_value("zero_optimization.stage") == stage_number
    assert config["bf16"] == {"enabled": True}


OFFLOADED = [
    ("zero1", "offload_optimizer=cpu"),
    ("zero2", "offload_optimizer=cpu"),
    ("zero3", "offload_weights=cpu"),
    ("zero3", "offload_optimizer=cpu", "offload_weights=cpu"),
    ("zero3", "offload_optimizer=nvme", "offload_weights=nvme", "nvme_path=/tmp/offload"),
]


@pytest.mark.parametrize("case", OFFLOADED, ids=" ".join)
def test_deepspeeds_own_class_and_the_copy_of_it_take_what_lies_beside_the_gpus(case):
    from deepspeed.runtime.config import DeepSpeedConfig
    from jsonschema import Draft202012Validator

    way, *lines = case
    ((_, stage),) = stages(SURVIVAL, f"distribution={way}", *(f"sharding.{line}" for line in lines))
    config = json.loads(next(file.text for file in stage.files if file.path == "deepspeed.json"))
    assert not list(Draft202012Validator(catalog.deepspeed_settings()).iter_errors(config))
    config |= {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
    }
    checked = DeepSpeedConfig(config)
    zero, said = checked.zero_config, dict(line.split("=") for line in lines)
    for theirs, ours in (
        (zero.offload_optimizer, "offload_optimizer"),
        (zero.offload_param, "offload_weights"),
    ):
        assert (theirs and theirs.device) == said.get(ours)
        if said.get(ours) == "nvme":
            assert str(theirs.nvme_path) == "/tmp/offload"
    # Its own AdamW for processors is compiled at the start, which few images can.
    assert checked.zero_force_ds_cpu_optimizer is ("offload_optimizer" not in said)


def test_what_deepspeed_takes_is_on_file():
    from importlib.metadata import version

    from schemas.deepspeed_settings import text

    assert version("deepspeed") == catalog.DEEPSPEED_VERSION
    assert tables.DEEPSPEED_SETTINGS_FILE.read_text("utf-8") == text(), (
        "run `python schemas/deepspeed_settings.py`"
    )


def test_main_memory_is_deepspeeds_own_estimate():
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    from runner.parts.planner import parameters, state
    from runner.parts.planner.workload import Offload, Workload
    from runner.plan import Machines

    model = catalog.model("HuggingFaceTB/SmolLM3-3B")
    for nodes in (1, 2):
        machines = Machines(nodes, 4, "NVIDIA-L40S", 512, 64)
        for way, placed in (
            ("zero2", Offload("cpu")),
            ("zero3", Offload("cpu")),
            ("zero3", Offload("cpu", "cpu")),
        ):
            work = Workload(model=model, machines=machines, sharding=way, offload=placed)
            count = parameters.total(model)
            if way == "zero2":  # per machine: its function says all of them
                theirs = estimate_zero2_model_states_mem_needs(count, 1, 1)[0] // nodes
            else:
                theirs = estimate_zero3_model_states_mem_needs(
                    count, 1, 4, nodes, True, bool(placed.weights)
                )[0]
            assert abs(sum(state.main_memory(work).values()) - theirs) <= 2


def test_deepspeed_takes_the_whole_file_once_its_blanks_are_filled():
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig

    ((_, stage),) = stages(SURVIVAL, "distribution=zero2")
    config = json.loads(next(file.text for file in stage.files if file.path == "deepspeed.json"))
    config |= {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
    }
    checked = DeepSpeedConfig(config)
    assert checked.zero_config.stage == 2
    assert checked.bfloat16_config.enabled is True
    assert torch.bfloat16


def test_what_axolotl_takes_is_on_file():
    from importlib.metadata import version

    from axolotl.utils.schemas.config import AxolotlInputConfig

    from schemas.axolotl_settings import text

    assert version("axolotl") == catalog.AXOLOTL_VERSION
    assert tables.AXOLOTL_SETTINGS_FILE.read_text("utf-8") == text(), (
        "run `python schemas/axolotl_settings.py`"
    )
    assert catalog.axolotl_settings()["properties"].keys() == known_keys(AxolotlInputConfig).keys()


# Axolotl's schema takes any text, and its loader only what is a module and a class.
NARROWER = ("plugins",)
PROBES = ("banana", "auto", -1, 0, 1, 0.5, 3.0, True, None, [], ["x"], [1], {}, 10**9)


def test_every_value_is_judged_as_axolotl_judges_it():
    """What Axolotl refuses is refused, and what it takes as it stands, without turning text into
    numbers, is taken."""
    from typing import Annotated

    from axolotl.utils.schemas.config import AxolotlInputConfig
    from jsonschema import Draft202012Validator
    from pydantic import TypeAdapter

    def takes(adapter, value, **how) -> bool:
        try:
            adapter.validate_python(value, **how)
        except Exception:  # its validators are not made for everything that a person writes
            return False
        return True

    schema = catalog.axolotl_settings()
    judged = 0
    for name, field in AxolotlInputConfig.model_fields.items():
        ours = Draft202012Validator({**schema["properties"][name], "$defs": schema["$defs"]})
        axolotls = TypeAdapter(
            Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        )
        for value in PROBES:
            judged += 1
            if ours.is_valid(value):
                assert takes(axolotls, value), (name, value)
            elif name not in NARROWER:
                assert not takes(axolotls, value, strict=True), (name, value)
    assert judged > 3000


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_what_the_recipes_emit_would_be_taken_as_advanced_settings_too(path):
    from jsonschema import Draft202012Validator

    schema = catalog.axolotl_settings()
    for _, stage in stages(path):
        config = {
            key: value for key, value in emitted(stage).items() if key in schema["properties"]
        }
        assert len(config) > 20
        assert not list(Draft202012Validator(schema).iter_errors(config))


def test_numbers_survive_pyyaml(tmp_path):
    """PyYAML reads `2e-5` as text; what is emitted it must read as numbers."""
    ((_, stage),) = stages(SURVIVAL, "train.learning_rate=1e-7", "train.learning_rate_scaling=none")
    assert emitted(stage)["learning_rate"] == 1e-7
    assert isinstance(emitted(stage)["learning_rate"], float)


def test_one_gpu_uses_neither_ddp_nor_deepspeed_nor_fsdp():
    ((_, stage),) = stages(SURVIVAL, "machines.nodes=1", "train.effective_batch_size=16")
    assert not {"ddp", "deepspeed", "fsdp_config"} & set(emitted(stage))


def test_places_are_only_folders():
    """The same recipe at another place differs in folders alone."""
    recipe, _, _ = load(SURVIVAL)
    here = translate(recipe, Place("/c", "/d", "/r", "/s")).stages[-1]
    there = translate(recipe, Place("/x/c", "/x/d", "/x/r", "/x/s")).stages[-1]
    text = json.dumps(there.config).replace("/x/", "/")
    assert json.loads(text) == json.loads(json.dumps(here.config))
