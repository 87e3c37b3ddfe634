"""How several GPUs share one training: DDP, DeepSpeed ZeRO or FSDP, in Axolotl's settings."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner import catalog
from runner.plan import EngineConfig, Place
from runner.recipe import reading
from runner.recipe.document import Document, Path_, applies, holds, merged
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.files import Artifact
from runner.tools.problem import Problem, Stop

DEEPSPEED_FILE = "deepspeed.json"


def settings(
    recipe: Recipe, place: Place, precision: str = ""
) -> tuple[EngineConfig, tuple[Artifact, ...]]:
    """Axolotl's settings for the recipe's distribution, and the files that they name. One GPU needs
    none, unless something is offloaded. precision: a stage's own."""
    if common.by_fsdp(recipe):
        # FSDP2, full shard, one unit for each transformer layer.
        document = own_file(recipe)
        fsdp = {
            **common.table("fsdp"),
            **(document.data if document else {}),
            **fsdp_decided(recipe),
        }
        layer_class = recipe.facts.layer_class
        if layer_class:
            fsdp.setdefault("transformer_layer_cls_to_wrap", layer_class)
        # Otherwise every GPU holds whole gradients during a step (torch,
        # FSDPParamGroup.post_backward).
        step = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        return {"fsdp_version": 2, "fsdp_config": fsdp, "accelerator_config": step}, ()
    if common.by_zero(recipe):
        text = json.dumps(config(recipe, precision or recipe.model.precision), indent=2) + "\n"
        return {"deepspeed": f"{place.config_dir}/{DEEPSPEED_FILE}"}, (
            Artifact(DEEPSPEED_FILE, text),
        )
    if common.world_size(recipe) == 1:
        return {}, ()
    return {
        "ddp": True,
        "ddp_bucket_cap_mb": common.ddp_bucket_mb(recipe),
        "ddp_find_unused_parameters": recipe.communication.ddp_find_unused_parameters,
    }, ()


def optimizer(recipe: Recipe, chosen: str) -> str:
    """Axolotl's name of it. bitsandbytes does not support FSDP's shards; torchao's 8-bit AdamW is
    the same rule."""
    sharded_name = catalog.optimizers()[chosen].sharded
    if isinstance(sharded_name, str) and common.by_fsdp(recipe):
        return sharded_name
    return chosen


def fsdp_decided(recipe: Recipe) -> EngineConfig:
    """The FSDP settings from the recipe's own lines, and the one that a run needs: a model is saved
    completely."""
    placed = recipe.document.lookup(("sharding", "offload_weights"))
    return {"state_dict_type": "FULL_STATE_DICT"} | (
        {"offload_params": placed == "cpu"} if placed else {}
    )


# Numbers in a bucket of gradients: a million a GPU, because with more GPUs short messages are
# inefficient (Megatron-LM, distributed_data_parallel_config.py, bucket_size), at least 40 million,
# at most DeepSpeed's own 500 million.
BUCKET, BUCKET_A_GPU, MOST_BUCKET = 40_000_000, 1_000_000, 500_000_000
# Numbers in one of the five buffers that weights on a disk come through; DeepSpeed's default.
WEIGHTS_BUFFER = 100_000_000
# Settings that a file cannot decide: with them, DeepSpeed would build its own optimizer and
# schedule.
NOT_ITS_OWN = ("optimizer", "scheduler")


def own_file(recipe: Recipe) -> Document | None:
    """The user's own file; None if the recipe names none. Raises Stop if it cannot be read."""
    name = recipe.document.lookup(("sharding", "file"))
    if not name:
        return None
    start = "Write the settings of DeepSpeed or FSDP in it."
    document = reading.read(recipe.folder / str(name), "configuration", start)
    if not isinstance(document.data, dict):
        raise Stop(
            Problem(
                document.file,
                1,
                1,
                "This file contains no settings.",
                "It is a mapping of names to values.",
            )
        )
    return document


def config(recipe: Recipe, precision: str) -> EngineConfig:
    """A DeepSpeed config: the runner's defaults, the user's own file over them, and the recipe over
    both. accelerate fills in `auto` from Axolotl's settings (transformers' DeepSpeed guide)."""
    document = own_file(recipe)
    file_settings = {}
    for key, value in (document.data if document else {}).items():
        if key not in NOT_ITS_OWN:
            file_settings[key] = value
    chosen = merged(file_settings, decided(recipe, precision, recipe.train.max_grad_norm))
    zero = chosen["zero_optimization"]
    gpus = common.world_size(recipe)
    defaults: EngineConfig = {}
    for row in common.table("zero")["rows"]:
        if applies(zero, row["when"], row.get("unless", ())):
            defaults = merged(defaults, row["sets"])
    sizes: EngineConfig = {"reduce_bucket_size": min(MOST_BUCKET, max(BUCKET, BUCKET_A_GPU * gpus))}
    if holds(zero, "offload_param.device=nvme"):
        # One process's part of the largest weight must fit into a buffer (0.18.9,
        # partitioned_param_swapper.py).
        facts = recipe.model_facts
        if facts:
            largest = facts.hidden_size * max(facts.vocab_size, facts.intermediate_size)
        else:
            largest = 0
        sizes["offload_param"] = {"buffer_size": max(WEIGHTS_BUFFER, -(-largest // gpus))}
    return merged(merged(defaults, {"zero_optimization": sizes}), chosen)


def decided(recipe: Recipe, precision: str, max_grad_norm: float) -> EngineConfig:
    """The settings from the recipe's own lines, and those that a run needs."""
    stage = int(recipe.distribution.removeprefix("zero"))
    zero: EngineConfig = {"stage": stage}
    if stage == 3:
        # Without it a checkpoint of ZeRO-3 has no complete weights, and best_model/ could not be
        # loaded.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    mb = recipe.document.lookup(("communication", "ddp_bucket_mb"))
    if mb:
        # DeepSpeed counts gradients, in the run's precision, and the recipe MB.
        zero["reduce_bucket_size"] = int(mb) * 1_000_000 // (4 if precision == "fp32" else 2)
    for ours, theirs in (
        ("offload_optimizer", "offload_optimizer"),
        ("offload_weights", "offload_param"),
    ):
        device = recipe.document.lookup(("sharding", ours))
        if device:
            if device == "nvme":
                offload_path = {"nvme_path": recipe.document.lookup(("sharding", "nvme_path"))}
            else:
                offload_path = {}
            zero[theirs] = {"device": device, **offload_path}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": precision in ("bf16", "fp8")},
        "fp16": {"enabled": precision == "fp16"},
        "gradient_clipping": max_grad_norm,
        **common.table("deepspeed"),
    }


def overruled(
    file_settings: Mapping[str, object], decides: Mapping[str, object], path: Path_ = ()
) -> Iterator[tuple[Path_, Any, Any]]:
    """The contradictions of a user's own file: the path in it, its value, and the value that is
    used."""
    for key, value in file_settings.items():
        key_path = (*path, key)
        if not path and key in NOT_ITS_OWN:
            yield key_path, value, None
        elif key in decides:
            holds = decides[key]
            if isinstance(value, Mapping) and isinstance(holds, Mapping):
                yield from overruled(value, holds, key_path)
            elif value not in (holds, "auto"):
                yield key_path, value, holds
