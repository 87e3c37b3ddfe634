"""How several GPUs share one training: DDP, DeepSpeed ZeRO or FSDP, in Axolotl's settings."""

from __future__ import annotations

import json
from typing import Any

from runner.files import Artifact
from runner.plan import Machines, Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common

DEEPSPEED_FILE = "deepspeed.json"


def settings(
    recipe: Recipe, place: Place, machines: Machines, precision: str = "", max_grad_norm: float | None = None
) -> tuple[dict[str, Any], tuple[Artifact, ...]]:
    """Axolotl's settings for the recipe's distribution, and the files that they name. One GPU needs none.

    precision, max_grad_norm: a stage's own, where they are not the whole recipe's.
    """
    if machines.world_size == 1:
        return {}, ()
    if by_fsdp(recipe):
        return _fsdp(recipe), ()
    if by_zero(recipe):
        longest = recipe.train.max_grad_norm if max_grad_norm is None else max_grad_norm
        text = json.dumps(deepspeed(recipe, precision or recipe.model.precision, longest), indent=2) + "\n"
        return {"deepspeed": f"{place.config_dir}/{DEEPSPEED_FILE}"}, (Artifact(DEEPSPEED_FILE, text),)
    return {
        "ddp": True,
        "ddp_bucket_cap_mb": recipe.communication.ddp_bucket_mb,
        "ddp_find_unused_parameters": recipe.communication.ddp_find_unused_parameters,
    }, ()


def by_fsdp(recipe: Recipe) -> bool:
    """Whether FSDP splits the model; a single GPU has nothing to split."""
    return common.world_size(recipe) > 1 and recipe.distribution in ("auto", "fsdp")


def by_zero(recipe: Recipe) -> bool:
    """Whether DeepSpeed splits the model's state."""
    return common.world_size(recipe) > 1 and recipe.distribution.startswith("zero")


def optimizer(recipe: Recipe, chosen: str) -> str:
    """The optimizer in Axolotl's name. bitsandbytes cannot hold FSDP's shards; torchao's 8-bit AdamW is the same rule."""
    return "adamw_torch_8bit" if chosen == "adamw_bnb_8bit" and by_fsdp(recipe) else chosen


def deepspeed(recipe: Recipe, precision: str, max_grad_norm: float) -> dict[str, Any]:
    """A DeepSpeed config of the recipe's ZeRO stage. `auto` is filled in by accelerate from Axolotl's settings
    (transformers documentation, DeepSpeed integration)."""
    stage = int(recipe.distribution.removeprefix("zero"))
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        # DeepSpeed counts numbers, which are gradients in the run's precision, and the recipe MB.
        "reduce_bucket_size": recipe.communication.ddp_bucket_mb * 1_000_000 // (4 if precision == "fp32" else 2),
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            # Without it a checkpoint of ZeRO-3 holds no whole weights, and best_model/ could not be loaded.
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": precision in ("bf16", "fp8")},
        "fp16": {"enabled": precision == "fp16"},
        "gradient_clipping": max_grad_norm,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }


def _fsdp(recipe: Recipe) -> dict[str, Any]:
    """FSDP2, full shard, one unit a transformer layer."""
    config: dict[str, Any] = {
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "FULL_STATE_DICT",
        "offload_params": False,
    }
    if layer_class := recipe.facts.layer_class:
        config["transformer_layer_cls_to_wrap"] = layer_class
    return {
        "fsdp_version": 2,
        "fsdp_config": config,
        # Otherwise every GPU holds whole gradients, not a share of them, from the first micro batch of a step to the last
        # (torch, FSDPParamGroup.post_backward).
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }
