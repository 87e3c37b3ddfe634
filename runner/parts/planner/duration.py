"""Time: how long a run takes, from operations, bytes moved and messages sent. Seconds
throughout."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from runner.catalog import Gpu
from runner.parts.planner import constants, memory, parameters
from runner.parts.planner.state import (
    adapted,
    checkpoint,
    fetching,
    held,
    stepping,
    trained_bytes,
    whole,
    whole_model,
)
from runner.parts.planner.workload import (
    ASSUMED,
    FULL,
    HALF,
    START_SECONDS,
    TABLES,
    Checkpoints,
    Run,
    Workload,
)
from runner.plan import Machines

# Not on any data sheet. Each share, here and in tables.toml, is that of published runs
# (benchmarks/results/outside.txt); the measurements of a card by benchmarks/memory_on_gpu.py
# correct their sum (`constants`).
BANDWIDTH_SHARE = 0.75
PACE: Mapping[str, float] = TABLES["pace"]
LAUNCHES: Mapping[str, float] = TABLES["launches"]
LINKS: Mapping[str, Mapping[str, float]] = TABLES["links"]


class ByKind(NamedTuple):
    """A figure of linear layers, and one of attention."""

    linear: float
    attention: float


def shares(gpu: Gpu) -> ByKind:
    """The shares of a data sheet's rate that a card reaches."""
    generations = TABLES["shares"].items()
    reached = [pair for least, pair in generations if gpu.capability >= float(least)]
    return ByKind(*reached[0])


class Duration(NamedTuple):
    """steps: of the optimizer, a count. The rest in seconds: of one step, of its waiting for other
    GPUs, of all steps, of evaluations, of starting and saving. tokens_a_step, rows_a_step: over all
    GPUs; tokens are 0 for images. flops: of one micro batch. spread: the fastest and the slowest
    likely time of steps and evaluations, as shares; overhead_range: the same of starting and
    saving, in seconds; network_seconds: how much less and more all steps take over the fastest and
    the slowest assumed network. checkpoints: their count, and their share of the overhead."""

    steps: int
    step_seconds: float
    waiting_seconds: float
    training_seconds: float
    evaluation_seconds: float
    overhead_seconds: float
    rows_a_step: int
    tokens_a_step: float
    tokens: float
    evaluations: int
    checkpoints: Checkpoints
    flops: float
    spread: tuple[float, float]
    overhead_range: tuple[float, float]
    network_seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def total_seconds(self) -> float:
        return self.training_seconds + self.evaluation_seconds + self.overhead_seconds

    @property
    def range_seconds(self) -> tuple[float, float]:
        less, more = self.network_seconds
        least_overhead, most_overhead = self.overhead_range
        fastest, slowest = self.spread
        passes = self.training_seconds + self.evaluation_seconds
        shortest = (passes - less) * fastest + least_overhead
        longest = (passes + more) * slowest + most_overhead
        return shortest, longest

    def as_json(self) -> dict[str, Any]:
        """Every field, and what follows from them."""
        derived = ("total_seconds", "range_seconds", "samples_a_second", "tokens_a_second")
        return self._asdict() | {name: getattr(self, name) for name in derived}

    @property
    def samples_a_second(self) -> float:
        return self.rows_a_step / self.step_seconds

    @property
    def tokens_a_second(self) -> float:
        return self.tokens_a_step / self.step_seconds


def operations(workload: Workload, rows: float, training: bool = True) -> ByKind:
    """Operations of one micro batch: 2 a weight and token forward, as many for each of the two
    needed gradients (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), attention by half of its
    square (arXiv 2307.08691, 4.1).

    Checkpointing repeats each layer, whose last product is counted although PyTorch stops before
    it: without it, and with refitted shares, 215 published runs were no nearer (3.7 % off instead
    of 3.6, and more of them too low)."""
    model = workload.model
    length = workload.row_tokens
    tokens = rows * length / (workload.context * workload.tensor)
    layers = model.num_hidden_layers
    weights = 2 * parameters.in_linear(model)
    if workload.attention == "eager":
        half = 1.0
        backward_scores = 2.0
    else:
        half = 0.5
        backward_scores = 2.5
    scores = 4 * half * workload.attended * model.num_attention_heads * model.head_dim
    head = 2 * model.vocab_size * model.hidden_size
    if not training:
        linear = tokens * (layers * weights + head)
        return ByKind(linear, tokens * layers * scores)
    passed_back = layers_passed_back(workload)
    forward_layers = layers
    if workload.checkpointing:
        forward_layers += passed_back
    weight_gradients = sum(parameters.layers_trained(workload)) * weights
    if workload.trains(parameters.head(model)):
        weight_gradients += head
    added = 6 * parameters.adapter(workload)
    if workload.adapter and workload.adapter.dora and workload.adapter.dropout:
        # It multiplies again what dropout has left (peft 0.20.0, lora/dora.py): a trace counts 1.94
        # times the operations.
        weights += 2 * sum(adapted(workload))
    linear = (forward_layers + passed_back) * weights + 2 * head + weight_gradients + added
    passes = forward_layers + passed_back * backward_scores
    return ByKind(tokens * linear, tokens * passes * scores)


def traffic(workload: Workload, rows: float, training: bool = True) -> float:
    """Bytes that a micro batch moves through the card's memory for its tokens: kept activations are
    written and read in the forward pass, the backward pass moves about twice that, and the loss
    goes over its logits three times."""
    tokens = rows * workload.row_tokens / workload.context
    activations = 0
    for is_trained, count in Counter(parameters.layers_trained(workload)).items():
        activations += count * parameters.layer_activations(workload, is_trained)
    logits = memory.loss(workload, round(tokens), training)
    if not workload.adapter:
        method = "full"
    elif workload.adapter.packed:
        method = "qlora"
    else:
        method = "lora"
    if workload.fused_kernels or workload.compile:
        multiple: float = TABLES["traffic"]["fused"][method]
    else:
        multiple = TABLES["traffic"]["plain"][method]
    if not training:
        passes = 2
        logits_passes = 2
    else:
        passes = 8 if workload.checkpointing else 6
        logits_passes = 3
    return multiple * passes * (activations * tokens) + logits_passes * logits


def pass_seconds(workload: Workload, gpu: Gpu, rows: float, training: bool = True) -> float:
    """One micro batch on one GPU, forward and backward, or forward alone: what the card takes, or
    Python's launching of its kernels, where that takes longer."""
    seconds = max(card_seconds(workload, gpu, rows, training), launching(workload, training))
    return seconds * constants.constants(gpu.name).slowness


def card_seconds(workload: Workload, gpu: Gpu, rows: float, training: bool = True) -> float:
    """The card's own part of a micro batch: linear layers, attention and moving bytes."""
    counted = operations(workload, rows, training)
    reached = shares(gpu)
    peak = workload.rate(gpu)
    if workload.fp8 and gpu.fp8:
        gain = PACE["fp8_gain"]
    else:
        gain = 1.0
    linear = counted.linear / (reached.linear * gain * peak)
    attention = counted.attention / (reached.attention * peak)
    weights: float = held(workload).weights
    if training:
        weights *= 3
    adapter = workload.adapter
    if adapter:
        # 4-bit weights are unpacked in a micro batch, and DoRA measures weights. At 2 × 512 tokens
        # QLoRA was measured 1.44 to 1.51 times as slow as LoRA (h2oai/h2o-llmstudio, A100).
        layer_bytes = 0.0
        if adapter.packed:
            layer_bytes += PACE["unpacking"] * parameters.in_linear(workload.model)
        if adapter.dora:
            measured = sum(adapted(workload)) * (1 + workload.checkpointing)
            layer_bytes += PACE["measuring"] * measured
        weights += layer_bytes * workload.model.num_hidden_layers
    moved = traffic(workload, rows, training) + weights
    return linear + attention + moved / _bandwidth(gpu)


def _bandwidth(gpu: Gpu) -> float:
    """Bytes a second that a card moves through its memory."""
    return gpu.memory_gb_s * 1e9 * BANDWIDTH_SHARE


def launching(workload: Workload, training: bool = True) -> float:
    """Seconds that Python needs to launch a micro batch, however few its tokens: the operations
    that PyTorch dispatches, as benchmarks/launches.py counts them for each layer, and the hooks of
    ZeRO-3."""
    layers = workload.model.num_hidden_layers
    if workload.adapter:
        adapters = len(workload.adapter.targets)
    else:
        adapters = 0
    if training:
        of_adapter = LAUNCHES["adapter_forward"]
    else:
        of_adapter = LAUNCHES["adapter_alone"]
    operations = layers * (LAUNCHES["forward"] + of_adapter * adapters)
    if training:
        operations += _backward_launches(workload, adapters)
    seconds = operations * PACE["dispatch"]
    if training and workload.sharding == "zero3":
        hooks = PACE["hooks"] + PACE["adapter_hooks"] * adapters
        repeated = 1.0
        if workload.checkpointing:
            repeated += PACE["again"]
        seconds += layers * hooks * repeated
    if workload.compile:
        return seconds * PACE["compiled"]
    return seconds


def _backward_launches(workload: Workload, adapters: int) -> float:
    """Operations dispatched for the backward pass of a micro batch, and for what checkpointing
    repeats in it."""
    backward = LAUNCHES["backward"] + LAUNCHES["adapter_backward"] * adapters
    if workload.checkpointing:
        backward += LAUNCHES["checkpointing"] + LAUNCHES["adapter_forward"] * adapters
    trained = sum(parameters.layers_trained(workload))
    return layers_passed_back(workload) * backward + trained * LAUNCHES["trained"]


def layers_passed_back(workload: Workload) -> int:
    """How many layers the backward pass goes through. With checkpointing it is all of them:
    transformers then lets the embedding's output need a gradient (5.16,
    gradient_checkpointing_enable)."""
    layers = workload.model.num_hidden_layers
    if workload.checkpointing:
        return layers
    return layers - parameters.first_trained(workload)


def sent(workload: Workload) -> float:
    """Bytes that a GPU sends in a step. A ring moves 2(n-1)/n of the gradients (Patarasuk and Yuan
    2009); ZeRO-3 and FSDP gather all weights twice in every micro batch, and split gradients in
    each (arXiv 1910.02054, section 7)."""
    count = workload.machines.world_size
    if count == 1:
        return 0.0
    if workload.sharding == "ddp":
        gradients = trained_bytes(workload)  # DDP sends gradients in their own precision
    elif workload.adapter:
        gradients = FULL * parameters.trainable(workload)
    else:
        gradients = HALF * parameters.trainable(workload)
    if workload.sharding in ("zero3", "fsdp"):
        moved = 2 * whole(workload) + gradients
        return (count - 1) / count * moved * workload.accumulation
    return 2 * (count - 1) / count * gradients


def waiting(workload: Workload, gpu: Gpu, computing: float, gbit_s: float | None = None) -> float:
    """Seconds of a step that GPUs wait for each other: messages beyond the computing that hides
    them. computing: seconds of a step. gbit_s: rate between machines, None for the workload's own
    network."""
    machines = workload.machines
    messages = sent(workload) / slowest_link(machines, gpu, gbit_s or workload.network.gbit_s)
    if machines.nodes > 1:
        # Between machines messages also take time whatever their size; within one the shares of
        # published runs include it. Gathering and splitting go around a ring of all GPUs; sums may
        # take a tree over the machines (NCCL, src/graph/tuning.cc, ncclTopoTuneModel: ring and
        # tree).
        nodes = machines.nodes
        inside = LINKS[gpu.link]["hop"]
        between = PACE["hop"]
        ring = (nodes - 1) * between + (machines.world_size - nodes) * inside
        if workload.sharding in ("zero3", "fsdp"):
            messages += 3 * workload.model.num_hidden_layers * workload.accumulation * ring
        else:
            tree = 2 * (math.log2(nodes) * between + (machines.world_size / nodes - 1) * inside)
            buckets = math.ceil(trained_bytes(workload) / workload.bucket_bytes)
            messages += buckets * min(2 * ring, tree)
        hidden = LINKS["nvlink"]["hidden"]
    else:
        hidden = LINKS[gpu.link]["hidden"]
    if workload.sharding in ("ddp", "zero1"):
        computing /= workload.accumulation  # gradients travel in a step's last micro batch alone
    return max(PACE["least_waiting"] * messages, messages - hidden * computing)


def slowest_link(machines: Machines, gpu: Gpu, gbit_s: float) -> float:
    """Bytes a second between two GPUs, over the network if there are several machines. gbit_s: its
    rate."""
    link = gpu.link_gb_s * 1e9 * LINKS[gpu.link]["rate"]
    if machines.nodes > 1:
        between = gbit_s * 1e9 / 8
        if machines.gpus_per_node == 1:
            return between
        return min(link, between)
    return link


def updating(workload: Workload, gpu: Gpu) -> float:
    """The optimizer's step: weights, gradients and state are read, weights and state written. Plain
    AdamW goes over its lists of tensors about 20 times (a step of PEFT's full run on an L40S takes
    363 ms); the same is assumed of other optimizers with such lists. Clipping reads gradients twice
    and writes them."""
    if workload.offload.optimizer:
        return stepping(workload, gpu)
    state = held(workload)
    rule = workload.rule
    moved = 2 * state.optimizer + 3 * state.gradients
    has_lists = rule.lists or rule.largest
    if has_lists and not workload.sharding.startswith("zero"):
        moved = 20 * state.gradients
    seconds = (moved + 3 * state.gradients) / _bandwidth(gpu)
    if not rule.products:
        return seconds
    # Muon makes each trained matrix orthogonal; its products of a matrix m × n, m the smaller, are
    # 4m²n + 2m³ operations a round (Axolotl 0.19.0, contribs/mit/muon). FSDP's GPUs share the
    # matrices.
    operations = 0
    for name, shape in parameters.trained(workload).items():
        if len(shape) > 1 and not parameters.outside(name):
            smaller, larger = sorted(shape[-2:])
            operations += 4 * smaller**2 * larger + 2 * smaller**3
    if workload.sharding == "fsdp":
        split = workload.machines.world_size
    else:
        split = 1
    rate = shares(gpu).linear * (gpu.bf16_tflops or gpu.fp32_tflops) * 1e12
    return seconds + rule.products * operations / split / rate


def computing(workload: Workload, gpu: Gpu) -> float:
    """Seconds of a step's micro batches; in preference training also of what it compares with."""
    at_once = workload.micro_batch_size * workload.answers
    micro = pass_seconds(workload, gpu, at_once)
    if workload.passes_beside:
        micro += workload.passes_beside * pass_seconds(workload, gpu, at_once, training=False)
    answers = workload.micro_batch_size * workload.accumulation
    return micro * workload.accumulation + writing(workload, gpu, answers)


def writing(workload: Workload, gpu: Gpu, rows: int) -> float:
    """Seconds in which a GPU writes this many answers at once; 0 if there are none. An estimate,
    not measured: every token moves all weights and the keys and values so far, half of them on
    average. transformers also launches every kernel of a layer from Python; vLLM repeats a recorded
    graph."""
    if not workload.generated:
        return 0.0
    model = workload.model
    keys = workload.width * rows * workload.row_tokens * model.num_key_value_heads * model.head_dim
    cache = 2 * keys
    moved = whole(workload) + model.num_hidden_layers * cache / 2
    token_seconds = moved / _bandwidth(gpu)
    if not workload.by_vllm:
        slowness = constants.constants(gpu.name).slowness
        token_seconds = max(token_seconds, launching(workload, training=False) * slowness)
    return workload.generated * token_seconds


def step_seconds(workload: Workload, gpu: Gpu, computed: float | None = None) -> float:
    """One step: micro batches, waits for offloaded weights and GPUs, the update. computed: the
    seconds of the micro batches, if known."""
    if computed is None:
        computed = computing(workload, gpu)
    offloaded = max(0.0, fetching(workload, gpu) - LINKS["pcie"]["hidden"] * computed)
    return computed + offloaded + waiting(workload, gpu, computed) + updating(workload, gpu)


def estimate(workload: Workload, gpu: Gpu) -> Duration | None:
    """The time of a run; None if the number of rows is unknown."""
    return _estimate(workload, gpu, constants.constants(gpu.name))


@lru_cache(maxsize=1024)
def _estimate(workload: Workload, gpu: Gpu, _: constants.Constants) -> Duration | None:
    """The constants of the card are part of the cache key, as in `memory`."""
    count = workload.steps
    if count is None:
        return None
    computed = computing(workload, gpu)
    evaluations = 0
    one_evaluation = 0.0
    if workload.evaluation_rows:
        # The first is before the run starts.
        evaluations = workload.times_in(workload.evaluation_steps, count) + 1
        rows = workload.evaluation_batch_size
        alone = replace(workload, packing=workload.evaluation_packing, micro_batch_size=rows)
        packed_rows = alone.packed(workload.evaluation_rows) or 0
        batches = math.ceil(packed_rows / workload.replicas / rows)
        batch_seconds = pass_seconds(alone, gpu, rows * workload.answers, training=False)
        batch_seconds += writing(workload, gpu, rows)
        one_evaluation = (1 + workload.passes_beside) * batches * batch_seconds
    reading = whole_model(workload)
    if workload.shared_disk:  # else each machine reads from its own
        reading *= workload.machines.nodes
    rows_at_once = workload.micro_batch_size * workload.answers
    return of_run(
        workload,
        gpu,
        count,
        step_seconds(workload, gpu, computed),
        partial(waiting, workload, gpu, computed),
        evaluations=evaluations,
        evaluation_seconds=evaluations * one_evaluation,
        reading=reading,
        checkpoint=checkpoint(workload),
        rows_a_step=workload.batch_rows or workload.effective_batch_size,
        tokens_a_step=workload.row_tokens * workload.effective_batch_size * workload.answers,
        flops=sum(operations(workload, rows_at_once)),
    )


def of_run(
    run: Run,
    gpu: Gpu,
    steps: int,
    step_seconds: float,
    wait: Callable[[float], float],
    *,
    reading: float,
    checkpoint: float,
    tokens_a_step: float,
    **figures: Any,
) -> Duration:
    """The duration of any run, from that of its steps and evaluations. wait: seconds of a step that
    GPUs wait for each other, at a number of Gbit/s. reading, checkpoint: bytes. figures: further
    fields of Duration."""

    def starting(start: float, disk: float) -> tuple[Checkpoints, float]:
        # On a slower disk checkpoints by the clock are rarer.
        bytes_a_second = run.disk_mb_s * 1e6
        checkpoints = run.checkpoints(steps, step_seconds, disk * checkpoint / bytes_a_second)
        reading_seconds = disk * reading / bytes_a_second
        return checkpoints, start * START_SECONDS + reading_seconds + checkpoints.seconds

    checkpoints, overhead = starting(1.0, 1.0)
    (_, least), (_, most) = map(starting, ASSUMED, run.disk_spread)
    usual = wait(run.network.gbit_s)
    return Duration(
        steps=steps,
        step_seconds=step_seconds,
        waiting_seconds=usual,
        training_seconds=steps * step_seconds,
        overhead_seconds=overhead,
        tokens_a_step=tokens_a_step,
        tokens=tokens_a_step * steps,
        checkpoints=checkpoints,
        # As measured on this card, else by the errors of published runs.
        spread=constants.constants(gpu.name).spread or constants.spread(run, "time").of(1.0),
        overhead_range=(least, most),
        network_seconds=(
            steps * (usual - wait(run.network.most)),
            steps * (wait(run.network.least) - usual),
        ),
        **figures,
    )
