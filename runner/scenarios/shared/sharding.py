"""How several GPUs share one training: DDP, DeepSpeed ZeRO or FSDP, in Axolotl's settings."""

from __future__ import annotations

import json
from typing import Any

from runner.plan import Machines, Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common, deepspeed
from runner.tools.files import Artifact

DEEPSPEED_FILE = "deepspeed.json"


def settings(
    recipe: Recipe, place: Place, machines: Machines, precision: str = "", max_grad_norm: float | None = None
) -> tuple[dict[str, Any], tuple[Artifact, ...]]:
    """Axolotl's settings for the recipe's distribution, and the files that they name. One GPU needs none, unless something lies
    beside it.

    precision, max_grad_norm: a stage's own, where they are not the whole recipe's.
    """
    if by_fsdp(recipe):
        return _fsdp(recipe), ()
    if by_zero(recipe):
        longest = recipe.train.max_grad_norm if max_grad_norm is None else max_grad_norm
        whole = deepspeed.config(recipe, precision or recipe.model.precision, longest)
        text = json.dumps(whole, indent=2) + "\n"
        return {"deepspeed": f"{place.config_dir}/{DEEPSPEED_FILE}"}, (Artifact(DEEPSPEED_FILE, text),)
    if machines.world_size == 1:
        return {}, ()
    return {
        "ddp": True,
        "ddp_bucket_cap_mb": common.ddp_bucket_mb(recipe),
        "ddp_find_unused_parameters": recipe.communication.ddp_find_unused_parameters,
    }, ()


def by_fsdp(recipe: Recipe) -> bool:
    """Whether FSDP splits the model; a single GPU has nothing to split."""
    return common.world_size(recipe) > 1 and recipe.distribution in ("auto", "fsdp")


def by_zero(recipe: Recipe) -> bool:
    """Whether DeepSpeed splits the model's state, or moves some of it off a single GPU."""
    return by_zero_alone(recipe) or (common.world_size(recipe) > 1 and recipe.distribution.startswith("zero"))


def by_zero_alone(recipe: Recipe) -> bool:
    """Whether DeepSpeed has something to do on a single GPU too."""
    return recipe.distribution.startswith("zero") and any(offloaded(recipe).values())


def offloaded(recipe: Recipe) -> dict[str, str]:
    """Where the recipe's own lines put optimizer and weights: cpu, nvme, or empty for the GPUs."""
    section = recipe.settings.get("sharding") or {}
    named = {name: str(section.get(f"offload_{name}") or "none") for name in ("optimizer", "weights")}
    return {name: "" if where == "none" else where for name, where in named.items()}


def optimizer(recipe: Recipe, chosen: str) -> str:
    """The optimizer in Axolotl's name. bitsandbytes cannot hold FSDP's shards; torchao's 8-bit AdamW is the same rule."""
    return "adamw_torch_8bit" if chosen == "adamw_bnb_8bit" and by_fsdp(recipe) else chosen


def _fsdp(recipe: Recipe) -> dict[str, Any]:
    """FSDP2, full shard, one unit a transformer layer; a person's own settings where the recipe says nothing."""
    own = deepspeed.own_file(recipe)
    config: dict[str, Any] = {
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "FULL_STATE_DICT",
        "offload_params": False,
        **(own.data if own else {}),
        **fsdp_decided(recipe),
    }
    if layer_class := recipe.facts.layer_class:
        config.setdefault("transformer_layer_cls_to_wrap", layer_class)
    return {
        "fsdp_version": 2,
        "fsdp_config": config,
        # Otherwise every GPU holds whole gradients, not a share of them, from the first micro batch of a step to the last
        # (torch, FSDPParamGroup.post_backward).
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


def fsdp_decided(recipe: Recipe) -> dict[str, Any]:
    """What the recipe's own lines say of FSDP, and what a run cannot be without: a model is saved whole."""
    placed = deepspeed.written(recipe, "sharding", "offload_weights")
    return {"state_dict_type": "FULL_STATE_DICT"} | ({"offload_params": placed == "cpu"} if placed else {})
