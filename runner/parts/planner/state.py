"""The bytes of a run between steps: on one GPU weights, gradients and optimizer state, with what
sharding and offloading do; in the main memory of one machine; and in its files on disk."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from runner.catalog import Gpu
from runner.parts.planner import parameters
from runner.parts.planner.workload import FULL, HALF, TABLES, Workload

# The name of offloaded state in the list of files that a run writes.
ON_DISK = "weights and state on the disk"
PACE: Mapping[str, float] = TABLES["offload"]
# Of each process, beside a disk: DeepSpeed's buffers of the optimizer and of weights, and weights
# that stay in main memory (0.18.9, runtime/zero/offload_config.py: buffer_count, max_in_cpu).
STATE_BUFFERS, WEIGHTS_BUFFERS, WEIGHTS_IN_MEMORY = 4, 5, 10**9
# Python with torch, transformers and Axolotl loaded, one process a GPU; assumed.
PROCESS = int(4.5 * 2**30)


class State(NamedTuple):
    """Held between steps, in bytes on each GPU. gradients: of all trained weights, once they exist.
    buffers: communication. layer: whole weights of one layer while the model runs; root: of
    everything outside the layers; both 0 if nothing is sharded. gathered: both."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int = 0
    layer: int = 0
    root: int = 0

    @property
    def gathered(self) -> int:
        return self.layer + self.root

    @property
    def running(self) -> int:
        """All but gradients, while the model runs."""
        return self.weights + self.optimizer + self.buffers + self.gathered


@lru_cache(maxsize=1024)
def held(workload: Workload) -> State:
    """Held between steps. Sharding as in Rajbhandari et al. 2019 (arXiv 1910.02054, section 5)."""
    if workload.sharding.startswith("zero"):
        return _zero(workload, int(workload.sharding[-1]))
    if workload.sharding == "fsdp":
        return _fsdp(workload)
    gradients = trained_bytes(workload)
    weights = weights_of(workload) + reference(workload)
    buffers = 0
    # DDP copies gradients into buckets of its own (gradient_as_bucket_view is off in accelerate).
    if workload.sharding == "ddp":
        buffers = gradients
    return State(weights, gradients, _optimizer(workload), buffers)


def _fsdp(workload: Workload) -> State:
    """FSDP2: trained weights are in fp32 (accelerate 1.13.0 fails to raise them, so the runner
    does), and everything is split; while the model runs, a layer is whole in the run's precision,
    and so is the unit of embedding and head."""
    wide = workload.width
    shards = workload.machines.world_size // max(1, workload.copies)
    layer_numbers = parameters.of_layers(workload.model, ())[0].whole
    layer = wide * layer_numbers
    in_layers = layer_numbers * workload.model.num_hidden_layers
    root = wide * (parameters.total(workload.model) - in_layers)
    adapter = workload.adapter
    if adapter and adapter.packed:
        # Weights in 4 or 8 bits travel packed, and each is unpacked when it is used.
        linear = parameters.in_linear(workload.model)
        layer += adapter.packed_bytes(linear) - wide * linear
    layer = layer // workload.tensor
    root = root // workload.tensor
    if workload.offload:
        return State(0, 0, 0, layer=layer, root=root)
    weights = weights_of(workload) + reference(workload)
    gradients = trained_bytes(workload)
    optimizer = _optimizer(workload)
    if not workload.adapter:
        count = parameters.trainable(workload)
        if not workload.in_full:
            weights += (FULL - wide) * count
        gradients = FULL * count
    # The scales of packed weights are not parameters: every GPU holds all of them, as published
    # states show.
    scales = _scales(workload)
    return State(
        scales + (weights - scales) // shards,
        gradients // shards,
        optimizer // shards,
        0,
        layer,
        root,
    )


def _zero(workload: Workload, stage: int) -> State:
    """DeepSpeed's ZeRO with half-precision weights: fp32 master and optimizer (AdamW's moments make
    it 12 bytes per trained weight) are split from stage 1, gradients from stage 2, weights from
    stage 3. A bucket of gradients is whole, in stages 1 and 2 twice, because `overlap_comm` fills
    one while the other travels (0.18.9, runtime/zero: stage_1_and_2.py, setup_buckets; stage3.py,
    ipg_buckets).

    In stage 3 some weights are whole: those needed again within `reuse` numbers, around the turn
    from forward to backward those half as far away; and those gathered ahead, each in one piece
    before it is copied out (0.18.9, runtime/zero: partitioned_param_coordinator.py,
    __params_to_release and fetch_sub_module). Offloaded state is not included; from stage 2 on
    gradients follow the optimizer once their bucket is full."""
    shards = workload.machines.world_size
    wide = workload.width
    count = parameters.trainable(workload)
    weights = weights_of(workload) + reference(workload)
    numbers = parameters.total(workload.model)
    optimizer_width = workload.rule.moments * workload.rule.kept(FULL)
    if wide == HALF:
        optimizer_width += FULL
    optimizer = int(optimizer_width * count) // shards
    gradients = wide * count
    if stage >= 2:
        gradients //= shards
    buffers = workload.bucket_bytes
    if stage < 3:
        buffers *= 2
    layer = root = 0
    if stage == 3:
        layer = wide * parameters.of_layers(workload.model, ())[0].whole
        kept = min(numbers, workload.reuse // 2)
        root = wide * max(workload.model.vocab_size * workload.model.hidden_size, kept)
        # Gathered ahead: 0.9 × hidden² where the file leaves it to transformers (5.16,
        # integrations/deepspeed.py).
        by_width = int(0.9 * workload.model.hidden_size**2)
        if workload.prefetch is None:
            ahead = by_width
        else:
            ahead = workload.prefetch
        buffers += 2 * wide * min(numbers, ahead)
        if workload.offload.weights:
            weights = 0
        else:
            weights = weights // shards
    if workload.offload.optimizer:
        optimizer = 0
        if stage > 1:
            gradients = 0
    return State(weights, gradients, optimizer, buffers, layer, root)


def reference(workload: Workload) -> int:
    """The frozen models beside the trained one, instead of which an adapter is switched off: that
    of preference training (TRL 1.9), and that of features (Axolotl 0.19.0, core/trainers/ebft)."""
    if workload.adapter:
        return 0
    models = 0
    if workload.passes_beside > 0:
        models += 1
    if workload.objective == "ebft" and workload.near:
        models += 1
    return models * weights_of(workload)


def packed(workload: Workload) -> bool:
    """Whether the weights beside an adapter are in 4 or 8 bits."""
    return workload.adapter is not None and workload.adapter.packed


def _bytes(workload: Workload, numbers: parameters.Numbers, trained: bool = True) -> int:
    """Bytes of these numbers of the base model. trained: whether they are trained, or frozen."""
    if workload.in_full or (trained and workload.masters):
        width = FULL
    else:
        width = workload.width
    outside_width = FULL if workload.raised else width
    return numbers.inside * width + numbers.outside * outside_width


def whole(workload: Workload) -> int:
    """Bytes of all weights as GPUs that share them gather them: in the run's precision, 4-bit ones
    packed."""
    if packed(workload):
        return weights_of(workload) - _scales(workload)
    return workload.width * parameters.total(workload.model) + adapter_bytes(workload)


def weights_of(workload: Workload) -> int:
    """All weights; in 4 bits half a byte a number, and their scales."""
    numbers = parameters.numbers(workload.model)
    packed_bytes = 0
    adapter = workload.adapter
    if adapter and adapter.packed:
        count = parameters.in_linear(workload.model) * workload.model.num_hidden_layers
        count += sum(prod(shape) for _, shape in parameters.tower_linear(workload.model))
        numbers = numbers._replace(inside=numbers.inside - count)
        packed_bytes = adapter.packed_bytes(count)
    if workload.adapter:
        trained = parameters.Numbers(0, 0)
    else:
        trained = parameters.numbers(workload.model, workload.unfrozen)
    raised = _bytes(workload, trained) - _bytes(workload, trained, trained=False)
    frozen = packed_bytes + _bytes(workload, numbers, trained=False) + _scales(workload)
    return frozen + raised + adapter_bytes(workload)


def _scales(workload: Workload) -> int:
    """Scales: of 4 bits a byte for 64 numbers, 4 for 16,384 (double quantisation); of 8 bits 4
    bytes an output."""
    adapter = workload.adapter
    if not adapter or not adapter.packed:
        return 0
    model = workload.model
    seeing = [shape for _, shape in parameters.tower_linear(model)]
    if adapter.eight_bit:
        outputs = sum(out for _, out in parameters.linear(model).values())
        seeing_outputs = sum(out for out, _ in seeing)
        return FULL * (model.num_hidden_layers * outputs + seeing_outputs)
    layer_scales = sum(map(_four_bit_scales, parameters.linear(model).values()))
    return model.num_hidden_layers * layer_scales + sum(map(_four_bit_scales, seeing))


def _four_bit_scales(shape: Sequence[int]) -> int:
    count = prod(shape)
    return count // 64 + FULL * count // 16384


def adapter_bytes(workload: Workload) -> int:
    """The adapter's weights: peft raises them to fp32, and DeepSpeed lowers every weight again."""
    width = FULL
    if workload.sharding.startswith("zero"):
        width = workload.width
    return width * parameters.adapter(workload)


def trained_bytes(workload: Workload) -> int:
    """Bytes of the trained weights, which are those of their gradients."""
    if workload.adapter:
        return adapter_bytes(workload)
    return _bytes(workload, parameters.numbers(workload.model, workload.unfrozen))


def adapted(workload: Workload) -> list[int]:
    """Numbers in each linear layer of a transformer layer that has an adapter."""
    if workload.adapter:
        targets = workload.adapter.targets
    else:
        targets = ()
    sizes = []
    for name, shape in parameters.linear(workload.model).items():
        if name in targets:
            sizes.append(prod(shape))
    return sizes


class DoraBytes(NamedTuple):
    """What DoRA holds in a layer (peft 0.20.0, lora/dora.py).

    measuring: while it measures the rows of the last weight: in fp32 that weight, B·A, B·A times
    its factor, and their sum; in half precision the identity that it multiplies for B·A. in_flight:
    in the backward pass, numbers of the rows. copied: until then, with dropout, a half-precision
    copy of the frozen weights, because it computes their outputs again from what dropout left."""

    measuring: int = 0
    in_flight: int = 0
    copied: int = 0


def by_length(workload: Workload, tokens: int) -> DoraBytes:
    adapter = workload.adapter
    if not adapter or not adapter.dora:
        return DoraBytes()
    shapes = []
    for name, shape in parameters.linear(workload.model).items():
        if name in adapter.targets:
            shapes.append(shape)
    fan_in, fan_out = shapes[-1]
    widest = FULL * tokens * max(out for _, out in shapes)
    copied = 0
    if adapter.dropout and workload.precision != "fp32":
        copied = HALF * sum(adapted(workload))
    weights = 4 * FULL * fan_in * fan_out
    identity = HALF * fan_in**2
    multiples: Mapping[str, float] = TABLES["dora"]
    factor = multiples["in_flight"]
    if adapter.dropout:
        factor += multiples["dropout"]
    if adapter.packed:
        factor += multiples["packed"]
    return DoraBytes(weights + identity + 2 * widest, round(factor * widest), copied)


def copies(workload: Workload) -> int:
    """The half-precision copies of fp32 weights in the layers: autocast makes each once and keeps
    it for the forward pass (ATen/autocast_mode.cpp, cached_cast), and without checkpointing
    autograd keeps it for the backward pass."""
    if not workload.masters or workload.sharding == "fsdp":
        return 0
    return HALF * parameters.in_linear(workload.model) * sum(parameters.layers_trained(workload))


def gradient(workload: Workload, numbers: parameters.Numbers) -> int:
    """Whole gradients of these weights in the backward pass: FSDP's, before they are split, in half
    precision."""
    if workload.sharding == "fsdp":
        return numbers.whole * workload.width
    return _bytes(workload, numbers)


def of_words(workload: Workload, name: str) -> int:
    """The same of the embedding or the head, by its name; 0 if it is frozen."""
    if workload.trains(name):
        count = workload.model.vocab_size * workload.model.hidden_size
    else:
        count = 0
    return gradient(workload, parameters.Numbers(0, count))


def _optimizer(workload: Workload) -> int:
    """What the optimizer keeps for each trained weight, by the catalog's table; FSDP's trained
    weights are in fp32."""
    rule = workload.rule
    size = 0.0
    lora = workload.adapter
    if lora:
        count = parameters.adapter(workload)
        wide = adapter_bytes(workload) / max(count, 1)
        if rule.factored:
            count //= lora.rank
        return int(rule.matrices * rule.kept(wide) * count)
    inside_width = _bytes(workload, parameters.Numbers(1, 0))
    outside_width = _bytes(workload, parameters.Numbers(0, 1))
    if workload.sharding == "fsdp":
        inside_width = outside_width = FULL
    for name, shape in parameters.trained(workload).items():
        if parameters.outside(name):
            moments = rule.moments
            width = rule.kept(outside_width)
        else:
            moments = rule.matrices
            width = rule.kept(inside_width)
        count = prod(shape)
        is_embedding = name == workload.model.embedding and rule.embeddings
        if rule.bits and (count < 4096 or is_embedding):
            width = FULL
        if rule.factored and len(shape) > 1:
            *matrices, fan_out, fan_in = shape
            count = prod(matrices) * (fan_out + fan_in)
        size += moments * width * count
    return int(size)


def beside(workload: Workload) -> int:
    """Bytes in main memory for all trained numbers: fp32 weight and gradient, and what the
    optimizer keeps, AdamW two moments (DeepSpeed 0.18.9, estimate_zero3_model_states_mem_needs: 16
    bytes, 18 with the weight in half precision)."""
    kept = workload.rule.moments * workload.rule.kept(FULL)
    return round((2 * FULL + kept) * parameters.trainable(workload))


def main_memory(workload: Workload) -> dict[str, int]:
    """Held in main memory during the whole run, by name."""
    trained = parameters.trainable(workload)
    machines = workload.machines
    placed = workload.offload
    wide = workload.width
    all_numbers = parameters.total(workload.model)
    parts = dict[str, int]()
    if workload.sharding == "fsdp":
        if not placed:
            return parts
        if workload.adapter:
            frozen = whole(workload)
        else:
            frozen = wide * (all_numbers - trained)
        state_and_weights = beside(workload) + frozen
        parts["weights and state beside the GPUs"] = state_and_weights // machines.nodes
        return parts
    if placed.optimizer == "cpu":
        optimizer = PACE["pinned"] * beside(workload) / machines.nodes
        parts["optimizer beside the GPUs"] = round(optimizer)
    elif placed.optimizer == "nvme":
        gradients = PACE["pinned"] * wide * trained / machines.nodes
        share = min(workload.group, trained // machines.world_size)
        buffers = machines.gpus_per_node * STATE_BUFFERS * FULL * share
        parts["buffers of the optimizer on a disk"] = round(gradients) + buffers
    if placed.weights == "cpu":
        weights = PACE["pinned"] * wide * all_numbers / machines.nodes
        parts["weights beside the GPUs"] = round(weights)
    elif placed.weights == "nvme":
        numbers = WEIGHTS_BUFFERS * placed.buffer
        numbers += min(WEIGHTS_IN_MEMORY, all_numbers // machines.world_size)
        parts["buffers of weights on a disk"] = machines.gpus_per_node * wide * numbers
    return parts


def on_disk(workload: Workload) -> int:
    """Offloaded to the disk of one machine."""
    placed = workload.offload
    size = 0
    if placed.optimizer == "nvme":
        size += beside(workload)
    if placed.weights == "nvme":
        size += workload.width * parameters.total(workload.model)
    return size // workload.machines.nodes


def stepping(workload: Workload, gpu: Gpu) -> float:
    """Seconds of the optimizer's step on the machine's processors: gradients come from the GPUs and
    weights go back in half precision, each GPU's own share; under FSDP in fp32, after every micro
    batch. A disk holds all that main memory would hold, read and written (Rajbhandari et al. 2021,
    ZeRO-Infinity, arXiv 2104.07857, section 4.1)."""
    trained = parameters.trainable(workload)
    machines = workload.machines
    if workload.optimizer == "adamw_torch_fused":
        slower = 1.0
    else:
        slower = workload.rule.beside or PACE["plain"]
    cores = min(PACE["adam"], PACE["adam_a_core"] * machines.cpus) / slower
    if workload.sharding == "fsdp":
        sent = FULL * workload.accumulation
    else:
        sent = HALF * (workload.accumulation + 1)
    seconds = trained / machines.nodes / cores
    seconds += sent * trained / machines.world_size / rate(gpu)
    if workload.offload.optimizer == "nvme":
        moved = 2 * beside(workload) / machines.nodes
        seconds += moved / (workload.offload.mb_s * 1e6)
    return seconds


def rate(gpu: Gpu) -> float:
    """Bytes a second between a card and main memory."""
    return gpu.pcie_gb_s * 1e9 * PACE["pcie"]


def fetching(workload: Workload, gpu: Gpu) -> float:
    """Seconds in which offloaded weights come to the GPUs in a step, each GPU's own share, once
    forward and once backward in every micro batch; computing that hides some of it is not
    subtracted."""
    if not workload.offload.weights:
        return 0.0
    if workload.sharding == "fsdp" and not workload.adapter:
        wide = FULL
    else:
        wide = workload.width
    size = 2 * wide * parameters.total(workload.model) * workload.accumulation
    over_pcie = size / workload.machines.world_size / rate(gpu)
    if workload.offload.weights != "nvme":
        return over_pcie
    from_disk = size / workload.machines.nodes / (workload.offload.mb_s * 1e6)
    return max(over_pcie, from_disk)


def moments(workload: Workload) -> dict[str, int]:
    """The bytes of main memory beyond the processes at each moment that takes more, measured by
    benchmarks/main_memory.py; the moments do not coincide."""
    between = held(workload)
    processes = workload.machines.gpus_per_node
    # Weights go from a mapped file to the GPU, also in 4 or 8 bits (`memory._moments`).
    loading = 0
    # The first process has whole weights before they are written: ZeRO-3 gathers them, and
    # safetensors (0.8) copies those of a GPU.
    saving = saved_weights(workload)
    # A single process reads the optimizer's state (transformers 5.16, Trainer), and under DeepSpeed
    # each its own share. DDP reads it onto each GPU.
    if workload.sharding == "ddp":
        resuming = 0
    else:
        resuming = processes * between.optimizer
    if workload.sharding == "fsdp":
        # Every process loads the whole model (Axolotl 0.19.0, loaders/model.py). FSDP gathers the
        # optimizer's state after the weights, in the precision of its shards, and its first process
        # reads both (accelerate 1.13.0, save_fsdp_model and save_fsdp_optimizer).
        if packed(workload):
            loading = 0
        else:
            loading = processes * whole_model(workload)
        saving = max(
            between.weights, between.optimizer
        ) * workload.machines.world_size or whole_model(workload)
        resuming = saving
    # A process of its own with the whole base model (`runner.trainer.merging`).
    if workload.adapter:
        merging = PROCESS + workload.width * parameters.total(workload.model)
    else:
        merging = 0
    return {
        "weights that every process loads": loading,
        "weights and state to save": saving,
        "state to continue from": resuming,
        "base model to merge with": merging,
    }


def whole_model(workload: Workload) -> int:
    """The whole model in the precision in which it is loaded."""
    if workload.in_full:
        width = FULL
    else:
        width = workload.width
    return width * parameters.total(workload.model)


def saved_weights(workload: Workload) -> int:
    """The saved weights: of the adapter alone, or of the whole model. FSDP saves trained weights in
    fp32."""
    if workload.adapter:
        return adapter_bytes(workload)
    if workload.sharding == "fsdp":
        return FULL * parameters.total(workload.model)
    return weights_of(workload)


def checkpoint(workload: Workload) -> int:
    """Weights, and the optimizer's state from all GPUs that share it, or from main memory. Under
    FSDP the weights are saved twice: model.safetensors for loading, and pytorch_model_fsdp.bin for
    resuming (transformers 5.16, Trainer._save_optimizer_and_scheduler)."""
    if workload.sharding not in ("none", "ddp"):
        shards = workload.machines.world_size
    else:
        shards = 1
    optimizer = held(workload).optimizer * shards
    if workload.sharding == "fsdp":
        copies = 2
    else:
        copies = 1
    if workload.offload.optimizer:
        # DeepSpeed's has the fp32 weights in it, and none has gradients.
        optimizer = beside(workload) - FULL * parameters.trainable(workload) * (
            1 + (workload.sharding == "fsdp")
        )
    return copies * saved_weights(workload) + optimizer
