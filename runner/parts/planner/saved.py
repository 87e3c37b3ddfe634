"""What a language model takes on disk: its weights, and a checkpoint to go on from. Bytes."""

from runner.parts.planner import parameters, state
from runner.parts.planner.workload import FULL, Workload


def whole(workload: Workload) -> int:
    """The whole model as it is loaded: a number is as wide as it is held."""
    return (FULL if workload.in_full else workload.widths.linear) * parameters.total(workload.model)


def weights(workload: Workload) -> int:
    """What is trained, as it is saved: the adapter alone, or the whole model. FSDP saves what it trains in fp32,
    as it is held."""
    if workload.adapter:
        return state.adapter_bytes(workload)
    return FULL * parameters.total(workload.model) if workload.sharding == "fsdp" else whole(workload)


def checkpoint(workload: Workload) -> int:
    """Weights, and the optimizer's state from all GPUs that share it, or from main memory. Under FSDP the weights lie there
    twice: model.safetensors for whoever loads the model, and pytorch_model_fsdp.bin for going on (transformers 5.16,
    Trainer._save_optimizer_and_scheduler)."""
    shards = workload.machines.world_size if workload.sharding not in ("none", "ddp") else 1
    optimizer = state.held(workload).optimizer * shards
    copies = 2 if workload.sharding == "fsdp" else 1
    if workload.offload.optimizer:
        # DeepSpeed's has the fp32 weights in it.
        optimizer = (8 if workload.sharding == "fsdp" else 12) * parameters.trainable(workload)
    return copies * weights(workload) + optimizer
