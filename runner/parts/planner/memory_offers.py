"""Offers: each kind of change that can make a run of a language model take less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner import catalog
from runner.parts.planner import activations, memory, parameters
from runner.parts.planner.formulas import Advice, Loss, splits
from runner.parts.planner.workload import Workload
from runner.plan import Stage
from runner.recipe.recipe import Recipe

SEQUENCES = (16384, 8192, 4096, 2048, 1024, 512, 256, 128)


def fits(advice: Advice[Workload], budget: float) -> bool:
    return memory.estimate(advice.workload).total <= budget


@dataclass(frozen=True)
class Lines:
    """Where the lines of a stage stand in its recipe. section: its own, `train` where there is one stage."""

    recipe: Recipe
    section: str

    @classmethod
    def of(cls, recipe: Recipe, stage: Stage) -> Lines:
        names = (stage.name, stage.name.partition("-")[0], "train")
        return cls(recipe, next((name for name in names if name in recipe.settings), "train"))

    def find(self, *settings: str) -> str | None:
        """The dotted name of the first of these settings that the recipe has; None where it has none of them."""
        for section in (self.section, "model", "speed"):
            for setting in settings:
                if section in self.recipe.settings and setting in self.recipe.settings[section]:
                    return f"{section}.{setting}"
        return None


def _smaller_batch(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    """The largest smaller micro batch that fits, accumulation making up for it; 1 comes too where it is too large, because
    another change beside it may be enough."""
    if not lines.find("micro_batch_size"):
        return
    for rows, accumulation in splits(workload, smaller=True):
        changes = {
            f"{lines.section}.micro_batch_size": rows,
            f"{lines.section}.gradient_accumulation_steps": accumulation,
        }
        advice = Advice(changes, replace(workload.with_rows(rows), accumulation=accumulation))
        if rows == 1 or fits(advice, budget):
            yield advice
            return


def _smaller_evaluation(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    """The most rows at once in evaluation that fit, a power of two, where evaluation by itself needs too much."""
    if not lines.find("eval_batch_size") or memory.estimate(workload).in_evaluation <= budget:
        return
    rows = 1 << (workload.evaluation_batch_size.bit_length() - 1)
    rows = rows // 2 if rows == workload.evaluation_batch_size else rows
    while rows:
        changed = replace(workload, evaluation_batch_size=rows, evaluation_follows=False)
        if rows == 1 or memory.estimate(changed).in_evaluation <= budget:
            yield Advice({f"{lines.section}.eval_batch_size": rows}, changed)
            return
        rows //= 2


def _checkpointing(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    if not workload.checkpointing:
        yield Advice({"model.gradient_checkpointing": True}, replace(workload, checkpointing=True))


def _fused_loss(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    name = lines.find("cross_entropy", "fused_cross_entropy")
    if workload.fused_loss == "none" and workload.objective == "sft" and name:
        value = True if name.endswith("fused_cross_entropy") else "auto"
        yield Advice({name: value}, replace(workload, fused_loss="fused"))


def _flash(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    gpu = catalog.gpu(workload.machines.gpu)
    changed = replace(workload, attention="flash_attention_2")
    # It multiplies in half precision alone.
    if changed != workload and workload.precision != "fp32" and gpu and changed.runs_on(gpu):
        yield Advice({"model.attention": "flash_attention_2"}, changed)


def _sharding(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    if workload.sharding == "ddp" and "distribution" in lines.recipe.settings:
        for way in ("zero2", "zero3", "fsdp"):
            yield Advice({"distribution": way}, replace(workload, sharding=way))


def _eight_bit(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    name = lines.find("optimizer")
    if "8bit" not in workload.optimizer and name:
        yield Advice({name: "adamw_bnb_8bit"}, replace(workload, optimizer="adamw_bnb_8bit"), Loss.EXACTNESS)


def _four_bit(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    if workload.adapter and not workload.adapter.four_bit and lines.find("adapter"):
        changed = replace(workload, adapter=replace(workload.adapter, four_bit=True))
        yield Advice({"train.adapter": "qlora"}, changed, Loss.EXACTNESS)


def _shorter(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    name = lines.find("sequence_len")
    if not name:
        return
    for length in (length for length in SEQUENCES if length < workload.sequence_len):
        advice = Advice({name: length}, replace(workload, sequence_len=length), Loss.LEARNING)
        if length == SEQUENCES[-1] or fits(advice, budget):
            yield advice
            return


def _lower_rank(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    name = lines.find("lora_rank", "rank")
    if not workload.adapter or not name:
        return
    for rank in (rank for rank in (64, 32, 16, 8) if rank < workload.adapter.rank):
        changed = replace(workload, adapter=replace(workload.adapter, rank=rank))
        advice = Advice({name: rank}, changed, Loss.LEARNING)
        if rank == 8 or fits(advice, budget):
            yield advice
            return


def _smaller_model(lines: Lines, workload: Workload, budget: float) -> Iterator[Advice[Workload]]:
    """The largest smaller model of the catalog that fits."""
    if not lines.find("base"):
        return
    others = [other for name in catalog.model_ids() if (other := catalog.model(name))]
    others = [other for other in others if other.model_type in parameters.FAMILIES]
    size, half = parameters.total(workload.model), workload.precision == "fp16"
    smaller = [other for other in others if (other.parameters or 0) < size and (other.fp16 or not half)]
    smaller.sort(key=lambda other: other.parameters or 0, reverse=True)
    for other in smaller:
        adapter = workload.adapter and replace(workload.adapter, targets=other.linear)
        changed = replace(workload, model=other, adapter=adapter, unfrozen=_moved(workload, other))
        advice = Advice({"model.base": other.id}, changed, Loss.ANOTHER_MODEL)
        if fits(advice, budget):
            yield advice
            return


def _moved(workload: Workload, other: catalog.Model) -> tuple[str, ...]:
    """The same trained part in another model: as many last layers, and the LM head where it was trained."""
    if not workload.unfrozen:
        return ()
    old = workload.model
    count = min(sum(activations.layers_trained(workload)), other.num_hidden_layers)
    first = other.num_hidden_layers - count
    patterns = [f"^{other.layers_path}.{index}." for index in range(first, other.num_hidden_layers)]
    if workload.trains(old.embedding if old.tied else old.lm_head):
        patterns.append(f"^{other.embedding if other.tied else other.lm_head}$")
    return tuple(patterns)


Offer = Callable[[Lines, Workload, float], Iterator[Advice[Workload]]]

# Each kind of change costs one line here.
OFFERS: tuple[Offer, ...] = (
    _smaller_batch,
    _smaller_evaluation,
    _checkpointing,
    _fused_loss,
    _flash,
    _sharding,
    _eight_bit,
    _four_bit,
    _shorter,
    _lower_rank,
    _smaller_model,
)
WITHIN_A_MODEL = OFFERS[:-1]
