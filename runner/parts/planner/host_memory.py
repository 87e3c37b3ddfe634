"""Main memory of one machine for a language model, at each moment that takes more than its processes; and the bytes of
its weights and checkpoints on disk. Measured by benchmarks/main_memory.py."""

from runner.parts.planner import parameters, state
from runner.parts.planner.workload import FULL, Workload

# Python with torch, transformers and Axolotl loaded, one process a GPU; assumed.
PROCESS = int(4.5 * 2**30)


def moments(workload: Workload) -> dict[str, int]:
    """The bytes beyond the processes at each moment; the moments do not coincide."""
    return {
        "weights that every process loads": loading(workload),
        "weights and state to save": saving(workload),
        "state to continue from": resuming(workload),
        "base model to merge with": merging(workload),
    }


def loading(workload: Workload) -> int:
    """Under FSDP every process loads the whole model (Axolotl 0.19.0, loaders/model.py). Otherwise, and in 4 bits
    (`state.loaded`), weights go from a mapped file to the GPU."""
    if workload.sharding != "fsdp" or state.packed(workload):
        return 0
    return workload.machines.gpus_per_node * whole(workload)


def saving(workload: Workload) -> int:
    """The first process has whole weights before they are written: FSDP and ZeRO-3 gather them, and safetensors (0.8)
    copies those of a GPU. FSDP gathers the optimizer's state after that, in the precision of its shards (accelerate
    1.13.0, save_fsdp_model and save_fsdp_optimizer)."""
    if workload.sharding != "fsdp":
        return weights(workload)
    held = state.held(workload)
    return max(held.weights, held.optimizer) * workload.machines.world_size or whole(workload)


def resuming(workload: Workload) -> int:
    """The optimizer's state in main memory: a single process reads it (transformers 5.16, Trainer), under FSDP the
    first one, and under DeepSpeed each its own share. DDP reads it onto each GPU."""
    held = state.held(workload).optimizer
    if workload.sharding == "fsdp":
        return saving(workload)
    return 0 if workload.sharding == "ddp" else workload.machines.gpus_per_node * held


def merging(workload: Workload) -> int:
    """A process of its own with the whole base model (`runner.trainer.merging`). 0 without an adapter."""
    return PROCESS + workload.widths.linear * parameters.total(workload.model) if workload.adapter else 0


def whole(workload: Workload) -> int:
    """The whole model in the precision in which it is loaded."""
    return (FULL if workload.in_full else workload.widths.linear) * parameters.total(workload.model)


def weights(workload: Workload) -> int:
    """The saved weights: of the adapter alone, or of the whole model. FSDP saves trained weights in fp32."""
    if workload.adapter:
        return state.adapter_bytes(workload)
    return FULL * parameters.total(workload.model) if workload.sharding == "fsdp" else state.weights_of(workload)


def checkpoint(workload: Workload) -> int:
    """Weights, and the optimizer's state from all GPUs that share it, or from main memory. Under FSDP the weights are
    saved twice: model.safetensors for loading, and pytorch_model_fsdp.bin for resuming (transformers 5.16,
    Trainer._save_optimizer_and_scheduler)."""
    shards = workload.machines.world_size if workload.sharding not in ("none", "ddp") else 1
    optimizer = state.held(workload).optimizer * shards
    copies = 2 if workload.sharding == "fsdp" else 1
    if workload.offload.optimizer:
        # DeepSpeed's has the fp32 weights in it, and none has gradients.
        optimizer = state.beside(workload) - FULL * parameters.trainable(workload) * (1 + (workload.sharding == "fsdp"))
    return copies * weights(workload) + optimizer
