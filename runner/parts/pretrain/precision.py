"""The precision of a pipeline's stages, and what makes them faster, decided from the GPU that the recipe names."""

from __future__ import annotations

from typing import Any

from runner import catalog
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl, common, sharding

# Axolotl 0.19.0 hands FP8 to its own trainer alone, which DPO does not use; and an adapter sits beside frozen weights,
# whose products FP8 would have to convert anew at every step.
FP8_STAGES = ("pretrain", "sft")


def precision_of(recipe: Recipe, kind: str) -> str:
    """fp8, bf16 or fp32: what a stage multiplies in, by its own line or the model's, and by the GPU that the recipe names."""
    section = recipe.settings.get(kind)
    stated = (section and section.get("precision")) or recipe.model.precision
    if stated == "fp32":
        return "fp32"
    gpu = catalog.gpu(recipe.machines.gpu)
    can = kind in FP8_STAGES and (stated == "fp8" or (gpu is not None and gpu.fp8))
    if stated in ("auto", "fp8") and can:
        return "fp8"
    return gpu.precision(fp16=False) if gpu and stated == "auto" else "bf16"


def compile_mode(recipe: Recipe, kind: str) -> str | None:
    """The mode of torch.compile; None leaves it out. Autotuning pays on Hopper; under FP8 its search gains nothing."""
    stated = recipe.speed.compile
    if stated != "auto":
        return None if stated == "off" else stated
    gpu = catalog.gpu(recipe.machines.gpu)
    hopper = gpu is not None and gpu.capability[0] == 9
    return "max-autotune" if hopper and precision_of(recipe, kind) != "fp8" else "default"


def faster(recipe: Recipe, kind: str) -> dict[str, Any]:
    """What makes a stage faster without changing what it learns: 8-bit products, compiling, fused kernels."""
    speed = recipe.speed
    config: dict[str, Any] = {}
    if precision_of(recipe, kind) == "fp8":
        config |= {"fp8": True}
        if sharding.by_fsdp(recipe):
            # Shards travel as 8-bit numbers, half the bytes of bf16.
            config |= {"fp8_enable_fsdp_float8_all_gather": True}
    if mode := compile_mode(recipe, kind):
        config |= {"torch_compile": True, "torch_compile_mode": mode}
    if speed.fused_kernels or speed.fused_cross_entropy:
        config |= {
            "plugins": [axolotl.LIGER, axolotl.PLUGIN],
            "liger_rope": speed.fused_kernels,
            "liger_rms_norm": speed.fused_kernels,
            "liger_glu_activation": speed.fused_kernels,
            # DPO needs the probabilities of answers, which the fused loss never holds.
            "liger_fused_linear_cross_entropy": speed.fused_cross_entropy and kind != "dpo",
        }
    return config


def master_weights(recipe: Recipe, kind: str) -> str:
    """The format that trained weights are kept in; what is frozen stays as small as it can be."""
    if precision_of(recipe, kind) == "fp32":
        return "fp32"
    if kind == "lora":
        return "bf16"
    several = common.world_size(recipe) > 1
    return {"auto": "fp32" if several else "bf16"}.get(recipe.model.master_weights, recipe.model.master_weights)
