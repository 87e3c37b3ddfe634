"""DoRA, rsLoRA and LoRA+: what reaches Axolotl, and what steps through it leave behind."""

import json
from pathlib import Path

import pytest
import torch

from runner import catalog, scenarios
from runner.check.validate import examine, load
from runner.parts.planner import parameters
from runner.parts.planner.workload import from_stage
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.recipe.recipe import TEXT
from runner.run.run_folder import RunFolder
from runner.scenarios import place
from runner.tools.files import read_record
from tests.catalog.axolotls_own import validated
from tests.conftest import ROOT
from tests.scenarios.test_combinations import written

SURVIVAL = ROOT / "recipes" / "minimal" / "lora.yaml"
# A dense model with separate q, k and v, which has Axolotl's fused LoRA kernels.
FUSED = "model.base=HuggingFaceTB/SmolLM2-360M-Instruct"


def config(*options: str, accelerator: bool = True) -> dict:
    recipe, _, _ = load(SURVIVAL, from_options([FUSED, *options]))
    at = place(recipe) if accelerator else Place("/c", "/d", "/r", "/s", accelerator=False)
    return dict(scenarios.translate(recipe, at).stages[-1].config)


def errors(*options: str) -> list:
    return [
        one for one in examine(SURVIVAL, from_options([FUSED, *options])) if one.severity == "error"
    ]


def test_they_are_off_unless_a_line_asks_for_them():
    plain = config()
    assert not {"peft_use_dora", "peft_use_rslora", "loraplus_lr_ratio"} & set(plain)
    assert plain["lora_qkv_kernel"] and plain["weight_decay"] == 0.01


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
@pytest.mark.parametrize(
    "way", ["distribution=ddp", "distribution=zero2", "distribution=zero3", "distribution=fsdp"]
)
def test_axolotl_accepts_each_beside_every_way_of_sharing(adapter, way):
    all_three = ("train.use_dora=true", "train.use_rslora=true", "train.loraplus_lr_ratio=16")
    shared = (way, "machines.gpus_per_node=2", f"train.adapter={adapter}", "model.attention=sdpa")
    made = config(*all_three, *shared)
    checked = validated(made, catalog.gpu("NVIDIA-L40S"), 2)
    assert (checked["peft_use_dora"], checked["peft_use_rslora"], checked["loraplus_lr_ratio"]) == (
        True,
        True,
        16,
    )


def test_dora_leaves_the_fused_kernels_out_because_they_would_never_measure_again():
    """Axolotl 0.19.0 keeps a weight's lengths until the version of A or B is another, which neither
    the fused nor the 8-bit AdamW changes."""
    assert not any(
        value for key, value in config("train.use_dora=true").items() if key.endswith("_kernel")
    )
    part = torch.nn.Parameter(torch.ones(4))
    part.grad = torch.ones(4)
    torch.optim.AdamW([part], fused=True).step()
    assert part._version == 0 and bool((part != 1).all())


def test_axolotls_own_line_for_dora_is_refused_beside_the_fused_kernels(golden_message):
    golden_message(errors("advanced.axolotl={peft_use_dora: true}"))
    golden_message(errors("advanced.axolotl={loraplus_lr_embedding: 1.0e-6}"), "no weight")
    golden_message(
        errors("train.use_dora=false", "advanced.axolotl={peft_use_dora: true}"), "two lines"
    )


def test_alpha_follows_the_way_that_it_is_divided(golden_message):
    assert config()["lora_alpha"] == 32
    assert config("train.use_rslora=true", "train.lora_rank=256")["lora_alpha"] == 16
    assert config("train.use_rslora=true", "train.lora_alpha=64")["lora_alpha"] == 64
    for options in (
        ["train.lora_alpha=512", "train.lora_rank=256"],
        ["train.lora_alpha=1", "train.lora_rank=256"],
    ):
        stable = from_options([FUSED, "train.use_rslora=true", *options])
        golden_message(
            [one for one in examine(SURVIVAL, stable) if "alpha" in one.message], options[0]
        )


def test_loraplus_has_no_weight_decay(golden_message):
    assert "weight_decay" not in config("train.loraplus_lr_ratio=16")
    golden_message(errors("train.loraplus_lr_ratio=16", "train.weight_decay=0.1"))


def rehearsed(folder: Path, recipe_command, **train: object) -> RunFolder:
    path = written(folder, "lora", TEXT)
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in train.items())
    path.write_text(path.read_text("utf-8") + f"train:\n{lines}", encoding="utf-8")
    done = recipe_command("rehearse", path, "--out", folder / "run", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    (run,) = (folder / "run").glob("**/run.json")
    return RunFolder(run.parent)


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [
        {"use_dora": True, "use_rslora": True, "loraplus_lr_ratio": 4},
        {"use_dora": True},
        {"use_rslora": True},
        {"loraplus_lr_ratio": 4},
    ],
    ids="+".join,
)
def test_steps_through_axolotl_train_what_the_line_says(train, tmp_path, recipe_command):
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    dora, stable, ratio = (
        train.get(name) for name in ("use_dora", "use_rslora", "loraplus_lr_ratio")
    )
    run = rehearsed(tmp_path, recipe_command, **train)
    told = read_record(run.path / "lora_adapter" / "adapter_config.json")
    assert (told["use_dora"], told["use_rslora"]) == (bool(dora), bool(stable))
    before = AutoModelForCausalLM.from_pretrained(run.path / "base_model")
    twin = PeftModel.from_pretrained(before, run.path / "lora_adapter", is_trainable=True)
    trained = sum(part.numel() for part in twin.parameters() if part.requires_grad)
    same = from_options(
        [f"model.base={run.path / 'base_model'}", "model.revision=", f"train.lora_rank={told['r']}"]
    )
    recipe, _, _ = load(tmp_path / "cell.yaml", same)
    stage = scenarios.translate(recipe, place(recipe)).stage("train")
    assert recipe.model_facts and trained == parameters.trainable(
        from_stage(stage, recipe.model_facts)
    )
    tensors = load_file(run.path / "lora_adapter" / "adapter_model.safetensors")
    assert trained == sum(part.numel() for part in tensors.values())
    lengths = [part for name, part in tensors.items() if "magnitude" in name]
    assert bool(lengths) == bool(dora)
    layer = next(module for module in twin.modules() if hasattr(module, "lora_A"))
    assert layer.scaling["default"] == told["lora_alpha"] / (told["r"] ** (0.5 if stable else 1))
    (saved, *_) = sorted((run.path / "checkpoints").glob("checkpoint-*/optimizer.pt"))
    groups = torch.load(saved, weights_only=True)["param_groups"]
    rates = {group["initial_lr"] for group in groups if group["params"]}
    assert max(rates) / min(rates) == (ratio or 1)
