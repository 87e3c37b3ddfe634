"""What lies beside the GPUs: main memory and disk that it takes, and the time that it costs. Bytes and seconds, of one machine."""

from runner.catalog import Gpu
from runner.parts.planner import parameters, state
from runner.parts.planner.workload import FULL, HALF, Workload

# In the list of what a run writes.
ON_DISK = "weights and state on the disk"
# Beside a trained number that the optimizer has in main memory: its fp32 weight and gradient and two moments (DeepSpeed 0.18.9,
# estimate_zero3_model_states_mem_needs: 16 bytes, 18 with the weight in half precision).
STATE = 4 * FULL
# Memory that the system cannot move is handed out in powers of two (the same function's additional_buffer_factor).
PINNED = 1.5
# What DeepSpeed keeps for a disk, for each process: buffers of the optimizer and of weights, and weights that stay in main memory
# (0.18.9, runtime/zero/offload_config.py: buffer_count, max_in_cpu).
STATE_BUFFERS, WEIGHTS_BUFFERS, WEIGHTS_IN_MEMORY = 4, 5, 10**9
# Bytes that a step moves from and to a disk for a trained number: weight and moments there and back, its gradient likewise
# (Rajbhandari et al. 2021, ZeRO-Infinity, arXiv 2104.07857, section 4.1).
MOVED_A_STEP = 2 * STATE
# Of PCIe's rate what a copy reaches: 12 of 16 GB/s (ZeRO-Infinity, section 4).
PCIE_SHARE = 0.75
# Numbers a second that AdamW goes through on the processors of a machine: 10^9 in 0.26 s at most, with two sockets, whose memory
# sets the pace (Ren et al. 2021, ZeRO-Offload, arXiv 2101.06840, table 4: 10^10 in 2.57 s); a core by itself 0.3 × 10^9 (torch 2.13's
# fused AdamW made 0.47 to 0.63 on one or two busy cores).
ADAM, ADAM_A_CORE = 3.9e9, 0.3e9
# However much slower the plain one is, which goes over its tensors many times: 5.7 in that table, 6 to 7 in torch 2.13.
PLAIN = 6


def main_memory(workload: Workload) -> dict[str, int]:
    """What lies in main memory all the time, by what it is."""
    trained, machines = parameters.trainable(workload), workload.machines
    placed, wide = workload.offload, workload.widths.linear
    if workload.sharding == "fsdp":
        frozen = wide * (parameters.total(workload.model) - trained) if not workload.adapter else state.whole(workload)
        return {"weights and state beside the GPUs": (STATE * trained + frozen) // machines.nodes} if placed else {}
    parts = {}
    if placed.optimizer == "cpu":
        parts["optimizer beside the GPUs"] = round(PINNED * STATE * trained / machines.nodes)
    elif placed.optimizer == "nvme":
        gradients = PINNED * wide * trained / machines.nodes
        buffers = STATE_BUFFERS * FULL * min(workload.group, trained // machines.world_size)
        parts["buffers of the optimizer on a disk"] = round(gradients) + machines.gpus_per_node * buffers
    every = parameters.total(workload.model)
    if placed.weights == "cpu":
        parts["weights beside the GPUs"] = round(PINNED * wide * every / machines.nodes)
    elif placed.weights == "nvme":
        numbers = WEIGHTS_BUFFERS * placed.buffer + min(WEIGHTS_IN_MEMORY, every // machines.world_size)
        parts["buffers of weights on a disk"] = machines.gpus_per_node * wide * numbers
    return parts


def on_disk(workload: Workload) -> int:
    """What lies on the disk of one machine."""
    placed, nodes = workload.offload, workload.machines.nodes
    state_ = STATE * parameters.trainable(workload) if placed.optimizer == "nvme" else 0
    weights = workload.widths.linear * parameters.total(workload.model) if placed.weights == "nvme" else 0
    return (state_ + weights) // nodes


def stepping(workload: Workload, gpu: Gpu) -> float:
    """A step of the optimizer on the processors: gradients come from the GPUs and weights go back in half precision, each GPU's
    own share; under FSDP in fp32, after every micro batch."""
    trained, machines = parameters.trainable(workload), workload.machines
    cores = min(ADAM, ADAM_A_CORE * machines.cpus) / (PLAIN if workload.optimizer == "adamw_torch" else 1)
    down, up = (
        (FULL * workload.accumulation, 0) if workload.sharding == "fsdp" else (HALF * workload.accumulation, HALF)
    )
    travelling = (down + up) * trained / machines.world_size / rate(gpu)
    moved = MOVED_A_STEP * trained / machines.nodes if workload.offload.optimizer == "nvme" else 0
    return trained / machines.nodes / cores + travelling + moved / (workload.offload.mb_s * 1e6)


def fetching(workload: Workload, gpu: Gpu) -> float:
    """Weights that come to the GPUs in a step, each GPU's own share, once forward and once backward in every micro batch; what of
    it computing hides is not taken off."""
    if not workload.offload.weights:
        return 0.0
    wide = FULL if workload.sharding == "fsdp" and not workload.adapter else workload.widths.linear
    size = 2 * wide * parameters.total(workload.model) * workload.accumulation
    from_disk = size / workload.machines.nodes / (workload.offload.mb_s * 1e6)
    over_pcie = size / workload.machines.world_size / rate(gpu)
    return max(over_pcie, from_disk if workload.offload.weights == "nvme" else 0.0)


def rate(gpu: Gpu) -> float:
    """Bytes a second between a card and main memory."""
    return gpu.pcie_gb_s * 1e9 * PCIE_SHARE
