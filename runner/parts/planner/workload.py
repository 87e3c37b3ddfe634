"""Workload: the one input of a language model's estimate, from a stage's config; its steps, tokens
and checkpoints."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

from runner import catalog
from runner.catalog.tables import VALIDATION_BLOCKS
from runner.parts.planner.row_counts import UNKNOWN, RowLengths, Rows
from runner.plan import EngineConfig, Machines, Stage
from runner.tools import packaged
from runner.trainer.intervals import LEAST_SECONDS, seconds_between

TABLES = packaged.toml(__file__, "tables.toml")
# If nothing is on a claim: a disk of this machine's own, assumed.
OWN_DISK_MB_S = 1000.0
# Imports, tokenising a small set, loading kernels; assumed.
START_SECONDS = 60.0
# The shortest and the longest likely time of what is assumed, or was measured on one machine, as
# shares of it.
ASSUMED = (0.5, 2.0)
# Axolotl rounds padded rows up to this, unless its settings say otherwise (0.19.0,
# core/builders/causal.py); TRL 1.9 does not round preferences.
MULTIPLE = 64
# The share of a link's nominal rate that training reaches, by published runs over 1,600 Gbit/s
# (llm-foundry).
REACHED = 0.80
# Bytes per number.
HALF, FULL = 2, 4


class Network(NamedTuple):
    """gbit_s: the rate of training over all links of a machine together, one direction, 10^9 bits a
    second; least, most: its range. title: in words. source: of an assumed rate; empty if the recipe
    states it."""

    title: str
    gbit_s: float
    least: float
    most: float
    source: str = ""


def network(network_kind: str, gbit_s: float | None = None, links: int | None = None) -> Network:
    """network_kind: ethernet or rdma, of pods, or plain, of machines without Kubernetes. gbit_s:
    the nominal rate of a link, links: their number in a machine, as far as the recipe states
    them."""
    count = links or 1
    if count == 1:
        links_in_words = "one link"
    else:
        links_in_words = f"{count} links"
    if gbit_s:
        rate = count * gbit_s * REACHED
        return Network(
            f"{links_in_words} of {gbit_s:g} Gbit/s, of which training reaches four fifths",
            rate,
            rate,
            rate,
        )
    of_catalog = Network(**catalog.table("networks")[network_kind])
    title = of_catalog.title.replace("one link", links_in_words)
    return of_catalog._replace(
        title=title,
        gbit_s=count * of_catalog.gbit_s,
        least=count * of_catalog.least,
        most=count * of_catalog.most,
    )


class Adapter(NamedTuple):
    """A LoRA adapter (Hu et al. 2021, arXiv 2106.09685): rank, names of the linear layers, dropout
    0 to 1. four_bit: whether the base is held in 4 bits (QLoRA, Dettmers et al. 2023, arXiv
    2305.14314); eight_bit: in 8 (LLM.int8, Dettmers et al. 2022, arXiv 2208.07339). dora: whether
    it also learns the length of each row of a weight (Liu et al. 2024, arXiv 2402.09353).
    parameters: names of experts' weights. pattern: of the layers' whole names, if only some
    transformer layers have an adapter; memory of activations is counted as if all had."""

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0
    four_bit: bool = False
    dora: bool = False
    parameters: tuple[str, ...] = ()
    eight_bit: bool = False
    pattern: str = ""

    @property
    def packed(self) -> bool:
        return self.four_bit or self.eight_bit

    def packed_bytes(self, count: int) -> int:
        """Bytes of this many packed numbers, without scales."""
        return count // (2 if self.four_bit else 1)


@dataclass(frozen=True)
class Offload:
    """The state outside the GPUs. optimizer, weights: where, cpu or nvme, empty for the GPUs. path:
    the folder on a disk, mb_s: its speed. buffer: numbers in each of the buffers that weights on a
    disk come through."""

    optimizer: str = ""
    weights: str = ""
    path: str = ""
    mb_s: float = 2000.0
    buffer: int = 10**8

    def __bool__(self) -> bool:
        return bool(self.optimizer or self.weights)


@dataclass(frozen=True)
class Checkpoints:
    """count: over the whole run; within: between two of the engine's own. first: seconds of
    training until the first one; between: to the next; writing: seconds of one."""

    count: int
    within: int
    first: float
    between: float
    writing: float

    @property
    def seconds(self) -> float:
        return self.count * self.writing


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every training run needs of its GPUs."""

    machines: Machines
    precision: str = "bf16"  # of the multiplied weights: bf16, fp16 or fp32
    micro_batch_size: int = 1  # rows on one GPU at once
    evaluation_batch_size: int = 1  # the same in evaluation
    evaluation_follows: bool = True  # it equals the micro batch, because the recipe names none
    accumulation: int = 1  # micro batches a step
    optimizer: str = "adamw_torch_fused"
    sharding: str = "none"  # none, ddp, zero1, zero2, zero3 or fsdp
    context: int = 1  # GPUs that share each row; their messages are not in the time
    tensor: int = 1  # GPUs that share each matrix; nor are theirs
    copies: int = 1  # of the model that FSDP splits
    offload: Offload = Offload()  # what is beside the GPUs
    network: Network = field(default_factory=lambda: network("ethernet"))  # between machines
    expandable_segments: bool = True  # PyTorch's allocator lets blocks grow in place
    epochs: float = 1.0
    max_steps: int = 0  # 0 if epochs decide
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    # No figure depends on it, so a run is calculated once for all rates.
    learning_rate: float = field(default=0.0, compare=False)
    rows: int | None = None  # for training; None if they were not counted
    evaluation_rows: int | None = None  # likewise
    keep: int = 1  # checkpoints kept
    evaluation_steps: int = 0  # between two evaluations; 0 if epochs decide
    engine_save_steps: int = 0  # between two checkpoints of the engine; 0 if epochs decide
    save_steps: int = 0  # between two checkpoints of the runner; 0 if the clock decides
    # How fast checkpoints are written and models read, 10^6 bytes a second, and the shortest and
    # the longest likely time of that, as shares.
    disk_mb_s: float = OWN_DISK_MB_S
    disk_spread: tuple[float, float] = ASSUMED
    shared_disk: bool = False  # it is a claim that all machines share

    @property
    def rule(self) -> catalog.Optimizer:
        """The facts of its optimizer."""
        return catalog.optimizers()[self.optimizer]

    @property
    def fewest_rows(self) -> int:
        """The smallest micro batch that this training can learn from."""
        return 1

    @property
    def replicas(self) -> int:
        """How many micro batches are computed at the same time."""
        return max(1, self.machines.world_size // (self.context * self.tensor))

    @property
    def effective_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation * self.replicas

    def with_rows(self, rows: int, accumulation: int | None = None) -> Self:
        """The same with another micro batch; evaluation follows unless the recipe says how many
        rows it takes. accumulation: as before if it is None."""
        if self.evaluation_follows:
            evaluated = rows
        else:
            evaluated = self.evaluation_batch_size
        batches = accumulation or self.accumulation
        return replace(
            self, micro_batch_size=rows, evaluation_batch_size=evaluated, accumulation=batches
        )

    def times_in(self, interval: int, steps: int) -> int:
        """How often something happens in this many steps: after each `interval` or, for 0, each
        epoch, and at the end."""
        if interval:
            return math.ceil(steps / interval)
        return max(1, math.ceil(self.epochs))

    def checkpoints(self, steps: int, step_seconds: float, writing: float) -> Checkpoints:
        """Those of the engine, with evaluations, and the runner's between, each of `writing`
        seconds."""
        training = steps * step_seconds
        ends = self.times_in(self.engine_save_steps, steps)
        interval = training / ends
        if self.save_steps:
            first_after = between = self.save_steps * step_seconds
        else:
            first_after = LEAST_SECONDS
            between = seconds_between(writing)
        # Two at the same time are one.
        within = max(0, math.ceil(interval / between - 1e-9) - 1)
        count = ends * (1 + within)
        first_after = min(first_after, interval)
        return Checkpoints(count, within, first_after, min(between, interval), writing)

    def rate(self, gpu: catalog.Gpu) -> float:
        """Operations a second on a card's data sheet, in the run's precision."""
        table = {"bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops, "fp32": gpu.fp32_tflops}
        return (table[self.precision] or gpu.fp32_tflops) * 1e12

    def runs_on(self, gpu: catalog.Gpu) -> bool:
        """Whether a card supports the run's precision."""
        return gpu.bf16 or self.precision != "bf16"


@dataclass(frozen=True)
class Workload(Run):
    """What one training run of a language model asks of its GPUs."""

    model: catalog.Model
    adapter: Adapter | None = None
    # Patterns of the parameters that are trained; empty means all (or, with an adapter, the adapter
    # alone).
    unfrozen: tuple[str, ...] = ()
    fp32_weights: bool = False  # trained weights are in fp32, whatever they are multiplied in
    fp8: bool = False
    attention: str = "flash_attention_2"  # or sdpa, flex_attention, eager
    checkpointing: bool = True
    sequence_len: int = 1024  # tokens of the longest row
    bucket_bytes: int = 25_000_000  # of gradients that are sent together
    # DeepSpeed's own: numbers that ZeRO-3 gathers ahead (None for transformers' rule), numbers
    # within which it keeps weights that are needed again, and numbers that a step of its optimizer
    # handles at a time.
    prefetch: int | None = None
    reuse: int = 10**9
    group: int = 10**9
    # none, fused (Liger: no whole logits in training), cut (Cut Cross-Entropy: none at all) or
    # chunked
    fused_loss: str = "none"
    # sft; dpo, orpo, simpo, kto or reward on preferences; grpo on the model's own answers, and ebft
    # if their features are compared
    objective: str = "sft"
    generations: int = 1  # answers to each prompt
    generated: int = 0  # the most tokens of an answer, assumed for every one
    by_vllm: float = 0.0  # the share of a GPU for vLLM, which writes them; 0 for transformers
    near: bool = False  # they are also compared with the first model's (beta)
    packing: bool = False  # rows fill the length
    evaluation_packing: bool = False  # in evaluation too
    several: bool = False  # a row that fills the length is several of the data's, as many as fit
    joined: bool = False  # the rows of a micro batch are one, without padding
    padded_to: int = MULTIPLE  # tokens; padded rows are rounded up to a multiple of this
    lengths: RowLengths = UNKNOWN  # of the data's rows in tokens; empty if they were not counted
    longest: int = 0  # tokens of the longest row; 0 if unknown
    compile: bool = False  # torch.compile runs
    # Norms, rotation and feed-forward (or, beside an adapter, its matrices) are fused kernels.
    fused_kernels: bool = False

    @property
    def batch_tokens(self) -> int | None:
        """Tokens that fit into a step, whatever their rows; None if a step counts rows."""
        if self.several:
            return self.effective_batch_size * self.sequence_len
        return None

    @property
    def batch_rows(self) -> int | None:
        """The data's rows of a step; None if the number in a packed row is unknown."""
        if not self.several:
            return self.effective_batch_size
        if not self.lengths:
            return None
        return max(1, round(self.effective_batch_size * self.lengths.packed(self.sequence_len)))

    @property
    def most_tokens(self) -> int:
        """Tokens of a row in the largest micro batch, which decides over memory: some micro batch
        has the longest row, and the others in it are padded to that. Packed rows fill the whole
        length, and so may uncounted ones."""
        if self.packing or not self.longest:
            return self.sequence_len
        if self.generated:
            return min(self.sequence_len, self.longest)
        return min(self.sequence_len, -(-self.longest // self.padded_to) * self.padded_to)

    @property
    def steps(self) -> int | None:
        """Steps of the optimizer; None if the rows are unknown. Axolotl counts the rows of all
        epochs together, so that one smaller step ends the run and not each epoch (0.19.0,
        calculate_total_num_steps), and gives that to the Trainer."""
        if self.max_steps:
            return self.max_steps
        rows = self.packed(self.rows)
        if rows is None:
            return None
        return max(1, math.ceil(rows * self.epochs / self.effective_batch_size))

    def packed(self, rows: int | None) -> float | None:
        """These rows of the data as rows of the model: several in one of the whole length, or cut
        out of their text."""
        if not (self.packing and self.lengths and rows):
            return rows
        length = self.sequence_len
        if self.several:
            rows_in_one = self.lengths.packed(length)
        else:
            rows_in_one = length / self.lengths.mean
        return max(1.0, rows / rows_in_one)

    @property
    def row_tokens(self) -> float:
        """Tokens that a GPU computes for one row, padding counted if there is some: up to the
        longest row of its micro batch. The whole length if the rows' own length is unknown."""
        length = self.sequence_len
        if self.packing or not self.lengths:
            return length
        if self.joined:
            return self.lengths.longest(
                1, length
            )  # the mean of all rows, because nothing is padded
        multiple = 1 if self.answers > 1 else self.padded_to
        return self.lengths.longest(self.micro_batch_size * self.answers, length, multiple)

    @property
    def attended(self) -> float:
        """Tokens that a mean token attends to: rows packed into one do not see each other."""
        rows_are_apart = self.joined
        if self.packing:
            rows_are_apart = self.several
        if self.lengths and rows_are_apart:
            return self.lengths.attended(self.sequence_len)
        return self.row_tokens

    def compared(self, tokens: int) -> int:
        """How many of the tokens of whole rows have logits: with own answers, the prompts have
        none."""
        if self.objective == "reward":
            return 0  # its score is one number a row
        if self.generated:
            return tokens * self.generated // self.most_tokens
        return tokens

    @property
    def answers(self) -> int:
        """Rows that the model reads for one of the data: a preference has a chosen and a rejected
        answer (TRL 1.9)."""
        if self.objective in ("dpo", "orpo", "simpo", "reward"):
            return 2
        return 1

    @property
    def fewest_rows(self) -> int:
        """Two for KTO, which compares an answer with the others of its micro batch (TRL 1.9)."""
        if self.objective == "kto":
            return 2
        return 1

    @property
    def passes_beside(self) -> int:
        """Forward passes over a row without gradients, of the first model or of other answers to
        the same prompt: KTO runs the first model on both answers, and its own on the other one (TRL
        1.9, trainer/kto_trainer.py). EBFT's is that of features."""
        return {"dpo": 1, "kto": 3, "ebft": 1}.get(self.objective, 0) + self.near

    @property
    def whole_logits(self) -> bool:
        """Whether the logits of a whole micro batch are there at once."""
        return self.fused_loss not in ("fused", "cut")

    @property
    def width(self) -> int:
        """Bytes per number inside linear layers and attention."""
        if self.precision == "fp32":
            return FULL
        return HALF

    @cached_property
    def stream_width(self) -> int:
        """Bytes per number of the residual stream."""
        if self.in_fp32(self.model.embedding):
            return FULL
        return self.width

    @cached_property
    def masters(self) -> bool:
        """Whether trained weights are held in fp32 and multiplied in half precision. DeepSpeed puts
        every weight of a model into half precision and holds fp32 copies of its own (0.18.9,
        runtime/engine.py, _configure_distributed_model)."""
        return (
            self.fp32_weights and self.precision != "fp32" and not self.sharding.startswith("zero")
        )

    @cached_property
    def in_full(self) -> bool:
        """Whether all weights are held in fp32: if all are trained, and under FSDP, whose shards
        have one precision."""
        return self.masters and (not self.unfrozen or self.sharding == "fsdp")

    @cached_property
    def raised(self) -> bool:
        """Whether norms and embeddings are used in fp32 while the rest is multiplied in half
        precision: if all weights are held in fp32; and Axolotl does it without an adapter, unless
        FlashAttention, FlexAttention or Cut Cross-Entropy needs half precision
        (ModelLoader._configure_embedding_dtypes). FSDP and DeepSpeed use everything in half
        precision."""
        if self.precision == "fp32" or self.sharding == "fsdp" or self.sharding.startswith("zero"):
            return False
        if self.in_full:
            return True
        needs_half = self.attention not in ("sdpa", "eager") or self.fused_loss == "cut"
        return not self.adapter and not needs_half

    def in_fp32(self, name: str) -> bool:
        """Whether the embedding or the head, by its name, is held in fp32 and multiplied in half
        precision."""
        if self.raised:
            return True
        return self.masters and self.sharding != "fsdp" and self.trains(name)

    def runs_on(self, gpu: catalog.Gpu) -> bool:
        """FlashAttention 2 needs what bf16 needs."""
        attends = gpu.bf16 or self.attention != "flash_attention_2"
        return super().runs_on(gpu) and attends and (gpu.fp8 or not self.fp8)

    def trains(self, name: str) -> bool:
        """Whether the base model's parameter of that name is trained."""
        return not self.adapter and matches(self.unfrozen, name)


@lru_cache(maxsize=4096)
def matches(unfrozen: tuple[str, ...], name: str) -> bool:
    """Whether a parameter of that name is trained where these are; none means all. As Axolotl reads
    `unfrozen_parameters`: periods are literal, and a pattern may match anywhere unless anchored."""
    bare = (re.sub(r"\[\d*:\d*\]$", "", pattern).replace(".", r"\.") for pattern in unfrozen)
    return not unfrozen or any(re.search(pattern, name) for pattern in bare)


def from_stage(stage: Stage, model: catalog.Model, rows: Rows | None = None) -> Workload:
    """The workload of a stage that Axolotl trains, from the config that Axolotl gets. rows: those
    of the data."""
    config = stage.config
    runner = config.get("recipe_runner") or {}
    zero = _zero_section(stage)
    answers = _answers(config)
    if config.get("reward_model"):
        # It has no LM head, as if that was the embedding.
        model = replace(model, tied=True)
    return Workload(
        **_alike("run", config),
        model=model,
        machines=stage.machines,
        adapter=_adapter(config, model),
        unfrozen=tuple(config.get("unfrozen_parameters") or ()),
        precision=_precision(config),
        fp32_weights=runner.get("master_weights") == "fp32",
        attention=_attention(config),
        evaluation_batch_size=int(
            config.get("eval_batch_size") or config.get("micro_batch_size") or 1
        ),
        sharding=_sharding(stage, zero),
        offload=_offload(stage, zero),
        bucket_bytes=_bucket_bytes(config, zero),
        **_zero_sizes(zero),
        fused_loss=_fused_loss(config),
        **answers,
        **_packing(config),
        **_schedule(config, runner),
        **_rows(rows or Rows(), runner, answers["generations"], answers["generated"]),
        **cadence(config, runner),
        keep=_checkpoints_kept(config),
        fused_kernels=any(config.get(name) for name in TABLES["fused"]["kernels"]),
    )


def _zero_section(stage: Stage) -> Mapping[str, Any]:
    """The ZeRO section of DeepSpeed's file; empty if the stage has none."""
    if not stage.config.get("deepspeed"):
        return {}
    for file in stage.files:
        if file.path.endswith("deepspeed.json"):
            section: Mapping[str, Any] = json.loads(file.text)["zero_optimization"]
            return section
    return {}


def _zero_sizes(zero: Mapping[str, Any]) -> Mapping[str, Any]:
    zero_sizes = {}
    for our, their in TABLES["zero"].items():
        if zero.get(their, "auto") != "auto":
            zero_sizes[our] = int(zero[their])
    return zero_sizes


def _bucket_bytes(config: EngineConfig, zero: Mapping[str, Any]) -> int:
    """DeepSpeed counts a bucket in numbers of the run's precision, DDP in MB."""
    numbers = zero.get("reduce_bucket_size", "auto")
    if numbers == "auto":
        return int(config.get("ddp_bucket_cap_mb") or 25) * 1_000_000
    if config.get("bf16") or config.get("fp16"):
        return HALF * int(numbers)
    return FULL * int(numbers)


def _precision(config: EngineConfig) -> str:
    for precision, settings in TABLES["precision"].items():
        if any(map(config.get, settings)):
            return str(precision)
    return "fp32"


def _attention(config: EngineConfig) -> str:
    usual = "flash" if config.get("flash_attention") else "sdpa"
    attention = str(config.get("attn_implementation") or usual)
    if "flash" in attention:
        return "flash_attention_2"
    return attention


def _fused_loss(config: EngineConfig) -> str:
    for loss, setting in TABLES["fused"]["losses"].items():
        if config.get(setting):
            return str(loss)
    return "none"


def _answers(config: EngineConfig) -> Mapping[str, Any]:
    """The fields about what is learned from, and about answers that the model writes itself."""
    trl = config.get("trl") or {}
    if config.get("reward_model"):
        objective = "reward"
    else:
        objective = config.get("rl") or "sft"
    near = objective in ("grpo", "ebft") and bool(config.get("rl_beta"))
    if objective not in ("sft", *TABLES["logits"]):
        objective = "dpo"
    by_vllm = 0.0
    if trl.get("use_vllm") and trl.get("vllm_mode") != "server":
        by_vllm = float((config.get("vllm") or {}).get("gpu_memory_utilization") or 0)
    return {
        "objective": objective,
        "generations": int(trl.get("num_generations") or 1),
        "generated": int(trl.get("max_completion_length") or 0),
        "by_vllm": by_vllm,
        "near": near,
    }


def _packing(config: EngineConfig) -> Mapping[str, Any]:
    """The fields about rows that fill the length. They may be blocks: Axolotl takes rows as they
    are where `type` is empty."""
    data_sets = config.get("datasets") or ()
    blocks = any(data_set.get("type") == "" for data_set in data_sets)
    packing = bool(config.get("sample_packing"))
    return {
        "packing": packing or blocks,
        "several": packing and not blocks,
        "padded_to": int(config.get("pad_to_multiple_of") or MULTIPLE),
        "evaluation_packing": blocks or bool(config.get("eval_sample_packing", packing)),
    }


def _schedule(config: EngineConfig, runner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields about steps. A curriculum's sequence lengths share one count of steps and one
    schedule, and each stage makes its part of them."""
    part = runner.get("blocks") or {}
    if part:
        max_steps = int(part["last_step"] - part["first_step"])
    else:
        # Below 1, transformers counts epochs.
        max_steps = max(0, int(config.get("max_steps") or 0))
    # This schedule has no warmup, whatever the config says (transformers 5.16).
    if config.get("lr_scheduler") == "constant":
        return {"max_steps": max_steps, "warmup_ratio": 0.0, "warmup_steps": 0}
    ratio = float(config.get("warmup_ratio") or runner.get("warmup_ratio") or 0)
    steps = int(config.get("warmup_steps") or 0)
    remaining_steps = max(0, steps - int(part.get("first_step", 0)))
    return {"max_steps": max_steps, "warmup_ratio": ratio, "warmup_steps": remaining_steps}


def _rows(
    rows: Rows, runner: Mapping[str, object], generations: int, generated: int
) -> Mapping[str, Any]:
    """The fields about the data's rows, each with as many answers of `generated` tokens as the
    model writes."""
    fields: dict[str, Any] = {
        "rows": rows.training,
        "evaluation_rows": rows.validation,
        "lengths": rows.lengths,
        "longest": rows.longest,
    }
    if rows.training is not None:
        fields["rows"] = rows.training * generations
    if runner.get("blocks"):
        fields["evaluation_rows"] = VALIDATION_BLOCKS
    if rows.lengths:
        fields["lengths"] = rows.lengths.scaled(1.0, generated)
    if rows.longest:
        fields["longest"] = rows.longest + generated
    return fields


def _checkpoints_kept(config: EngineConfig) -> int:
    """The best one is kept beside the latest."""
    kept = int(config.get("save_total_limit") or 1)
    if config.get("load_best_model_at_end"):
        return max(kept, 2)
    return max(kept, 1)


def _alike(table: str, config: EngineConfig) -> Mapping[str, Any]:
    """The fields that the settings of a config have as they are."""
    fields_alike = {}
    for field_name, (name, usual) in TABLES[table].items():
        fields_alike[field_name] = type(usual)(config.get(name) or usual)
    return fields_alike


def _adapter(config: EngineConfig, model: catalog.Model) -> Adapter | None:
    if config.get("adapter") not in ("lora", "qlora"):
        return None
    layers = config.get("lora_target_modules") or ()
    experts = tuple(config.get("lora_target_parameters") or ())
    if isinstance(layers, str):
        pattern = layers
    else:
        pattern = ""
    if pattern:
        targets = tuple(model.named(pattern))
    else:
        targets = tuple(dict.fromkeys(layers))
    if config.get("lora_target_linear") or not (targets or experts):
        targets = model.linear
    return Adapter(
        **_alike("adapter", config),
        targets=targets,
        four_bit=bool(config.get("load_in_4bit")) or config.get("adapter") == "qlora",
        parameters=experts,
        pattern=pattern,
    )


def _sharding(stage: Stage, zero: Mapping[str, object]) -> str:
    if stage.machines.world_size == 1 and not stage.config.get("deepspeed"):
        return "none"
    if stage.config.get("fsdp_config") or stage.config.get("fsdp"):
        return "fsdp"
    if stage.config.get("deepspeed"):
        return f"zero{zero.get('stage', 2)}"
    return "ddp"


def _offload(stage: Stage, zero: Mapping[str, Any]) -> Offload:
    if (stage.config.get("fsdp_config") or {}).get("offload_params"):
        return Offload("cpu", "cpu")
    optimizer = zero.get("offload_optimizer") or {}
    weights = zero.get("offload_param") or {}
    path = optimizer.get("nvme_path") or weights.get("nvme_path") or ""
    return Offload(
        _device(optimizer),
        _device(weights),
        path=str(path),
        buffer=int(weights.get("buffer_size") or Offload.buffer),
    )


def _device(offload: Mapping[str, object]) -> str:
    """Where DeepSpeed moves a part of the state; empty if it stays."""
    device = str(offload.get("device", "none"))
    if device == "none":
        return ""
    return device


def cadence(engine: Mapping[str, Any], runner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a Run about its evaluations and checkpoints, by the settings of the engine and
    of the runner."""

    def every(event: str) -> int:
        if engine.get(f"{event}_strategy", "steps") == "steps":
            return int(engine.get(f"{event}_steps") or 0)
        return 0

    save_steps = int(runner.get("save_steps") or 0)
    return {
        "evaluation_steps": every("eval"),
        "engine_save_steps": every("save"),
        "save_steps": save_steps,
    }
