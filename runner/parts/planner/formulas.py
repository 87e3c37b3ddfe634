"""The formulas of stages that Axolotl trains; what a trace finds in their place; and the changes
that let them train in less memory, by formulas alone, which `recipe_offers` tries on recipes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from runner import catalog
from runner.parts.planner import duration, memory, parameters, state
from runner.parts.planner.forecast import Changes, Counts, Forecast, Loss, splits
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.workload import TABLES, Offload, Run, Workload, from_stage
from runner.plan import Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.scenarios.language.translation import unfrozen_parameters
from runner.tools.text import template

# How many changes are combined at most, and how many insufficient changes are extended in each
# round.
TOGETHER, KEPT = 3, 6
SEQUENCES = (16384, 8192, 4096, 2048, 1024, 512, 256, 128)
RANKS = (64, 32, 16, 8)


@dataclass(frozen=True)
class Traced:
    """The results of a trace: counts, bytes, floating-point operations of one micro batch, seconds
    of tracing. weights, gradients, optimizer: held between steps. activations: alive after the
    forward pass beyond those. peak, evaluation_peak: most bytes alive in training and in
    evaluation. peak_at: the operation at the peak."""

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    peak_at: str
    evaluation_peak: int
    flops: int
    seconds: float


def left_out(run: Run) -> dict[str, Any]:
    """The fields of a run that a trace replaces: ZeRO and offloading are not traced."""
    if not isinstance(run, Workload):
        return {}
    if not run.sharding.startswith("zero") and not run.offload:
        return {}
    # Everything is on one GPU, in the precision that the split weights have.
    return {"sharding": "none", "offload": Offload(), "fp32_weights": run.masters}


@dataclass(frozen=True)
class LanguageForecast(Forecast):
    """The needs of a stage that trains a language model."""

    workload: Workload

    @property
    def model(self) -> str:
        return self.workload.model.id

    @cached_property
    def counts(self) -> Counts:
        model = self.workload.model
        parameters.family(model)
        total = parameters.total(model)
        trainable = parameters.trainable(self.workload)
        adapter = parameters.adapter(self.workload)
        if self.workload.objective == "reward":
            # The layer of a reward model's score; PEFT trains a copy of it (0.20,
            # `modules_to_save`).
            total += model.hidden_size
            trainable += model.hidden_size
            if self.workload.adapter:
                total += model.hidden_size
        seeing = parameters.tower(self.workload.model).whole
        return Counts(total, trainable, adapter, seeing)

    @cached_property
    def memory(self) -> memory.Memory:
        return memory.estimate(self.workload)

    @property
    def steps(self) -> int | None:
        return self.workload.steps

    @property
    def warmup_steps(self) -> int:
        """A whole number, and two instead of one (Axolotl 0.19.0,
        _configure_warmup_and_logging)."""
        if self.workload.warmup_steps or not self.steps:
            return self.workload.warmup_steps
        rising = int(self.steps * self.workload.warmup_ratio)
        if rising == 1:
            return 2
        return rising

    def time_on(self, gpu: catalog.Gpu) -> duration.Duration | None:
        return duration.estimate(self.workload, gpu)

    def fitting(self, recipe: Recipe, gpu: catalog.Gpu, budget: float) -> Iterable[Changes]:
        lines = Lines(recipe, self.stage)
        return [advice.changes for advice in cheapest(lines, self.workload, gpu, budget)]

    def written(self) -> dict[str, int]:
        """Prepared rows, a checkpoint, the best model, a model merged with its adapter; and the
        download."""
        work = self.workload
        sizes = {"prepared data": 0}
        if not work.max_steps:
            rows = (work.rows or 0) + (work.evaluation_rows or 0)
            row_tokens = work.lengths.mean or work.sequence_len
            # A row as text, and its tokens, labels and mask as Arrow keeps them.
            sizes["prepared data"] = round(rows * work.answers * row_tokens * 21)
        sizes["checkpoint"] = state.checkpoint(work)
        sizes["best model"] = state.saved_weights(work)
        halves = work.width * parameters.total(work.model)
        if work.adapter:
            sizes["merged model"] = halves
        on_disk = state.on_disk(work)
        if on_disk:
            sizes[state.ON_DISK] = on_disk
        base_model = str(self.stage.config.get("base_model") or "")
        if self.stage.model or not base_model.startswith("/"):
            # The hub's files are in half precision, whatever the recipe computes in.
            sizes["model download"] = 2 * parameters.total(work.model)
        return sizes

    def beside(self) -> dict[str, int]:
        """Offloaded state, and the largest moment: loading, saving, resuming or merging."""
        parts = state.main_memory(self.workload)
        moments = state.moments(self.workload)
        largest_moment = max(moments, key=lambda name: moments[name])
        return parts | {largest_moment: moments[largest_moment]}

    def notes(self) -> Mapping[str, str]:
        text = template(Path(__file__).with_name("notes.txt.jinja")).render(
            work=self.workload,
            reference=state.reference(self.workload),
            gradients=state.held(self.workload).gradients,
            tables=TABLES,
            units=units,
        )
        return dict(line.split(": ", 1) for line in text.splitlines())


def of_stage(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> LanguageForecast | None:
    """The forecast for a stage; None if its model is unknown. look: whether to read the hub's
    cache."""
    # The stage's model is the recipe's own, else that of its config in the catalog or in the hub's
    # cache.
    name = str(stage.config.get("base_model") or "")
    revision = str(stage.config.get("revision_of_model") or "")
    recipe = recipe.of_stage(stage.name)
    model = recipe.model_facts or catalog.model(name, recipe.folder)
    if model is None and look:
        model = catalog.cached_model(name, revision or "main")
    if model is None:
        return None
    work = from_stage(stage, model, rows)
    train = recipe.settings.get("train") or {}
    sharding = recipe.settings.get("sharding") or {}
    states_rows = train.get("eval_batch_size") is not None
    follows = not states_rows and work.evaluation_batch_size == work.micro_batch_size
    speed = sharding.get("nvme_mb_s") or work.offload.mb_s
    offload = replace(work.offload, mb_s=float(speed))
    return LanguageForecast(stage, replace(work, evaluation_follows=follows, offload=offload), rows)


class Advice(NamedTuple):
    """A change by formulas alone: settings, the workload after it, and its loss."""

    changes: Changes
    workload: Workload
    loss: Loss = Loss.NOTHING


class Lines:
    """Where a recipe has the settings of a stage. recipe: the stage's own. home: its section
    `train`, by its name in the whole recipe."""

    def __init__(self, whole_recipe: Recipe, stage: Stage) -> None:
        self.whole = whole_recipe
        self.stage = stage
        self.recipe = whole_recipe.of_stage(stage.name)
        self.home = whole_recipe.setting_of(stage.name, "train")

    def batch(self, rows: int, accumulation: int) -> dict[str, float]:
        return {
            f"{self.home}.micro_batch_size": rows,
            f"{self.home}.gradient_accumulation_steps": accumulation,
        }

    def find(self, *settings: str) -> str | None:
        """The dotted name of the first of these settings that the recipe has; None if it has
        none."""
        for home in ("train", "model", "speed"):
            for setting in settings:
                if home in self.recipe.settings and setting in self.recipe.settings[home]:
                    return self.whole.setting_of(self.stage.name, f"{home}.{setting}")
        return None


def _within_the_model(lines: Lines, work: Workload, budget: float) -> Iterator[Advice]:
    """Smaller numbers: of each kind the largest that fits; else the smallest, to combine with
    another change. After them other ways to compute the same, or nearly the same."""
    yield from _smaller_micro_batch(lines, work, budget)
    yield from _smaller_evaluation(lines, work, budget)
    yield from _shorter_rows(lines, work, budget)
    yield from _lower_rank(lines, work, budget)
    yield from _other_kernels(lines, work)
    if work.sharding == "ddp" and "distribution" in lines.recipe.settings:
        for sharding in ("zero2", "zero3", "fsdp"):
            yield Advice({"distribution": sharding}, replace(work, sharding=sharding))
    yield from _outside_the_gpu(lines, work)
    yield from _fewer_digits(lines, work)


def _best(
    candidates: list[Advice],
    budget: float,
    need: Callable[[memory.Memory], int] = attrgetter("total"),
) -> list[Advice]:
    """The first of these that needs at most `budget` bytes, else the last."""
    for advice in candidates:
        if need(memory.estimate(advice.workload)) <= budget:
            return [advice]
    return candidates[-1:]


def _smaller_micro_batch(lines: Lines, work: Workload, budget: float) -> Iterator[Advice]:
    if lines.find("micro_batch_size"):
        candidates = []
        for rows, accumulation in splits(work, True):
            if rows >= work.fewest_rows:
                changes = lines.batch(rows, accumulation)
                candidates.append(Advice(changes, work.with_rows(rows, accumulation)))
        yield from _best(candidates, budget)


def _smaller_evaluation(lines: Lines, work: Workload, budget: float) -> Iterator[Advice]:
    if not lines.find("eval_batch_size") or memory.estimate(work).in_evaluation <= budget:
        return
    setting = f"{lines.home}.eval_batch_size"
    candidates = []
    for power in reversed(range((work.evaluation_batch_size - 1).bit_length())):
        rows = 2**power
        fewer = replace(work, evaluation_batch_size=rows, evaluation_follows=False)
        candidates.append(Advice({setting: rows}, fewer))
    yield from _best(candidates, budget, attrgetter("in_evaluation"))


def _shorter_rows(lines: Lines, work: Workload, budget: float) -> Iterator[Advice]:
    setting = lines.find("sequence_len")
    if setting:
        candidates = []
        for length in SEQUENCES:
            if length < work.sequence_len:
                shorter = replace(work, sequence_len=length)
                candidates.append(Advice({setting: length}, shorter, Loss.LEARNING))
        yield from _best(candidates, budget)


def _lower_rank(lines: Lines, work: Workload, budget: float) -> Iterator[Advice]:
    adapter = work.adapter
    setting = lines.find("lora_rank", "rank")
    if adapter and setting:
        candidates = []
        for rank in RANKS:
            if rank < adapter.rank:
                smaller = replace(work, adapter=adapter._replace(rank=rank))
                candidates.append(Advice({setting: rank}, smaller, Loss.LEARNING))
        yield from _best(candidates, budget)


def _other_kernels(lines: Lines, work: Workload) -> Iterator[Advice]:
    """Checkpointing, a fused loss and FlashAttention, which compute the same."""
    if not work.checkpointing:
        yield Advice({"model.gradient_checkpointing": True}, replace(work, checkpointing=True))
    setting = lines.find("cross_entropy", "fused_cross_entropy")
    if work.fused_loss == "none" and work.objective == "sft" and setting:
        value: bool | str = "auto"
        if setting.endswith("fused_cross_entropy"):
            value = True
        yield Advice({setting: value}, replace(work, fused_loss="fused"))
    gpu = catalog.gpu(work.machines.gpu)
    flash = replace(work, attention="flash_attention_2")
    # FlashAttention works in half precision only.
    if flash != work and work.precision != "fp32" and gpu and flash.runs_on(gpu):
        yield Advice({"model.attention": "flash_attention_2"}, flash)


def _fewer_digits(lines: Lines, work: Workload) -> Iterator[Advice]:
    """The optimizer's state in 8 bits, the base in 4, or trained weights in half precision."""
    plain_optimizer = work.optimizer in ("adamw_torch_fused", "adamw_torch")
    if plain_optimizer and (setting := lines.find("optimizer")):
        eight_bit = replace(work, optimizer="adamw_bnb_8bit")
        yield Advice({setting: "adamw_bnb_8bit"}, eight_bit, Loss.EXACTNESS)
    if work.adapter and not work.adapter.packed and lines.find("adapter"):
        four_bit = replace(work, adapter=work.adapter._replace(four_bit=True))
        yield Advice({"train.adapter": "qlora"}, four_bit, Loss.EXACTNESS)
    if work.masters and (setting := lines.find("master_weights")):
        yield Advice({setting: "bf16"}, replace(work, fp32_weights=False), Loss.LEARNING)


def _outside_the_gpu(lines: Lines, work: Workload) -> Iterator[Advice]:
    """The optimizer's state and step in main memory. FSDP moves the weights with them, and a single
    GPU needs DeepSpeed. An adapter's state is too small to be worth it."""
    if work.offload or work.adapter or "distribution" not in lines.recipe.settings:
        return
    optimizer = {"sharding.offload_optimizer": "cpu"}
    weights = {"sharding.offload_weights": "cpu"}
    if work.sharding == "fsdp":
        yield Advice({**optimizer, **weights}, replace(work, offload=Offload("cpu", "cpu")))
    elif work.sharding in ("none", "ddp"):
        moved = replace(work, sharding="zero2", offload=Offload("cpu"))
        yield Advice({"distribution": "zero2", **optimizer}, moved)
    else:
        yield Advice(optimizer, replace(work, offload=Offload("cpu")))


def _smaller_model(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice]:
    """The largest smaller model of the catalog that fits; one with a stricter licence only where no
    other does."""
    if not lines.find("base") or lines.recipe.pretrained:
        return
    for model in _smaller_models(workload):
        adapter = workload.adapter and workload.adapter._replace(targets=model.linear)
        patterns: list[str] = []
        if workload.unfrozen:
            # As many last layers, and the LM head if it was trained.
            count = min(sum(parameters.layers_trained(workload)), model.num_hidden_layers)
            patterns = unfrozen_parameters(model, count, lm_head=False)
            if workload.trains(parameters.head(workload.model)):
                patterns.append(f"^{parameters.head(model)}$")
        changed = replace(workload, model=model, adapter=adapter, unfrozen=tuple(patterns))
        advice = Advice({"model.base": model.id}, changed, Loss.ANOTHER_MODEL)
        if _fits(advice, budget):
            yield advice
            return


def _smaller_models(workload: Workload) -> list[catalog.Model]:
    """The models of the catalog that are smaller, the largest first; those with a stricter licence
    after all others."""
    size = parameters.total(workload.model)
    smaller = []
    for name in catalog.model_ids():
        model = catalog.model(name)
        if not model or not parameters.has_formulas(model.model_type):
            continue
        has_precision = model.fp16 or workload.precision != "fp16"
        if has_precision and (model.parameters or 0) < size:
            smaller.append(model)
    smaller.sort(key=lambda model: (model.free < workload.model.free, -(model.parameters or 0)))
    return smaller


def _fits(advice: Advice, budget: float) -> bool:
    return memory.estimate(advice.workload).total <= budget


def cheapest(
    lines: Lines, workload: Workload, gpu: catalog.Gpu, budget: float, count: int = 8
) -> list[Advice]:
    """The changes that bring a GPU's memory to at most `budget` bytes, the least loss first: single
    ones, and combinations if fewer than two single ones lose nothing."""
    started = [
        *_within_the_model(lines, workload, budget),
        *_smaller_model(lines, workload, budget),
    ]
    enough = [advice for advice in started if _fits(advice, budget)]
    for _ in range(TOGETHER - 1):
        if sum(advice.loss == Loss.NOTHING for advice in enough) >= 2:
            break
        short = []
        for advice in started:
            if advice.loss < Loss.ANOTHER_MODEL and not _fits(advice, budget):
                short.append(advice)
        # The least loss, and then the largest saving, is extended first.
        short.sort(key=lambda advice: (advice.loss, memory.estimate(advice.workload).total))
        started = []
        for advice in short[:KEPT]:
            for second in _within_the_model(lines, advice.workload, budget):
                if not advice.changes.keys() & second.changes.keys():
                    changes = {**advice.changes, **second.changes}
                    loss = max(advice.loss, second.loss)
                    started.append(Advice(changes, second.workload, loss))
        # A combination is dropped where a part of it is enough.
        enough_changes = [advice.changes.items() for advice in enough]
        for advice in started:
            is_needless = any(part <= advice.changes.items() for part in enough_changes)
            if not is_needless and _fits(advice, budget):
                enough.append(advice)
    chosen: dict[frozenset[str], Advice] = {}
    for advice in sorted(
        enough, key=lambda advice: (advice.loss, len(advice.changes), _row_seconds(advice, gpu))
    ):
        # One offer for each set of settings: three sequence lengths are one idea.
        chosen.setdefault(frozenset(advice.changes), advice)
    return list(chosen.values())[:count]


def _row_seconds(advice: Advice, gpu: catalog.Gpu) -> float:
    work = advice.workload
    card = catalog.gpu(work.machines.gpu) or gpu
    return duration.step_seconds(work, card) / (work.micro_batch_size * work.accumulation)
