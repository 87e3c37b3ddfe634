"""Advice: what makes a run fit, cheapest first, each as the line to change and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import activations, duration, memory, parameters
from runner.estimate.workload import Workload
from runner.recipe.recipe import Recipe

# What a change costs beyond time, weighed against it: 0.5 counts like a run that takes half as long again. Our judgement.
_NOTHING, _EXACTNESS, _LEARNING, _ANOTHER_MODEL, _ANOTHER_GPU = 0.0, 0.1, 0.5, 1.0, 1.5
SEQUENCES = (16384, 8192, 4096, 2048, 1024, 512, 256, 128)


@dataclass(frozen=True)
class Advice:
    """A change: the lines to write, what it costs in words, and the workload after it.

    time: seconds of a row after the change over seconds before. loss: what it costs beyond time, in the same measure.
    """

    lines: tuple[str, ...]
    cost: str
    workload: Workload
    time: float = 1.0
    loss: float = _NOTHING

    def __str__(self) -> str:
        return f"{', '.join(f'`{line}`' for line in self.lines)} ({self.cost})"


def largest_micro_batch(workload: Workload, budget: float) -> int:
    """The most rows at once that keep a GPU within `budget` bytes; 0 where not even one does."""
    low, high = 0, 1
    while high <= 4096 and memory.estimate(_with_rows(workload, high)).total <= budget:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if memory.estimate(_with_rows(workload, middle)).total <= budget:
            low = middle
        else:
            high = middle
    return low


def _with_rows(workload: Workload, rows: int) -> Workload:
    together = workload.evaluation_batch_size == workload.micro_batch_size
    return replace(
        workload,
        micro_batch_size=rows,
        evaluation_batch_size=rows if together else workload.evaluation_batch_size,
    )


def cheapest(recipe: Recipe, workload: Workload, gpu: Gpu, budget: float, count: int = 3) -> list[Advice]:
    """The cheapest changes that bring a GPU's memory to at most `budget` bytes: single ones, and pairs where too few
    single ones are enough."""
    singles = [advice for offer in OFFERS for advice in offer(recipe, workload, budget)]
    found = [advice for advice in singles if _fits(advice, budget)]
    if len(found) < count:
        # In a pair the second change is looked for on top of the first.
        for first in [advice for advice in singles if not _fits(advice, budget) and advice.loss < _ANOTHER_MODEL]:
            for offer in OFFERS:
                seconds = [
                    second for second in offer(recipe, first.workload, budget) if not _keys(first) & _keys(second)
                ]
                pairs = [_both(first, second) for second in seconds if _fits(second, budget)]
                # A pair of which one half is enough says nothing new.
                found += [pair for pair in pairs if not any(set(one.lines) < set(pair.lines) for one in found)]
    if budget == memory.usable(gpu):
        found += _larger_gpu(workload)
    timed = {frozenset(advice.lines): replace(advice, time=_time(advice.workload, workload, gpu)) for advice in found}
    ranked = sorted(timed.values(), key=lambda advice: (round(advice.time + advice.loss, 2), len(advice.lines)))
    chosen: list[Advice] = []
    for advice in ranked:
        # One way of each kind: three sequence lengths are one idea.
        if all(_keys(advice) != _keys(known) for known in chosen):
            chosen.append(advice)
    return [replace(advice, cost=_priced(advice)) for advice in chosen[:count]]


def _priced(advice: Advice) -> str:
    change = round((advice.time - 1) * 100)
    pace = f"{change} % slower" if change > 1 else f"{-change} % faster" if change < -1 else "no slower"
    return f"{advice.cost}; {pace}" if advice.cost else pace


def _fits(advice: Advice, budget: float) -> bool:
    return memory.estimate(advice.workload).total <= budget


def _keys(advice: Advice) -> set[str]:
    return {line.partition(":")[0] for line in advice.lines}


def _both(first: Advice, second: Advice) -> Advice:
    cost = "; ".join(part for part in (first.cost, second.cost) if part)
    return Advice((*first.lines, *second.lines), cost, second.workload, loss=max(first.loss, second.loss))


def _time(after: Workload, before: Workload, gpu: Gpu) -> float:
    def of_a_row(workload: Workload) -> float:
        card = catalog.gpu(workload.machines.gpu) or gpu
        whole = duration.pass_seconds(workload, card, workload.micro_batch_size) * workload.accumulation
        return (whole + duration.waiting(workload, card)) / (workload.micro_batch_size * workload.accumulation)

    return of_a_row(after) / of_a_row(before)


def _has(recipe: Recipe, section: str, setting: str) -> bool:
    return section in recipe.settings and setting in recipe.settings[section]


def _smaller_batch(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    """The largest divisor of the micro batch that fits, accumulation making up for it; one that is too large comes too,
    because another change beside it may be enough."""
    if workload.micro_batch_size == 1 or not _has(recipe, "train", "micro_batch_size"):
        return
    divisors = [n for n in range(workload.micro_batch_size - 1, 0, -1) if workload.micro_batch_size % n == 0]
    for rows in divisors:
        changed = replace(
            _with_rows(workload, rows), accumulation=workload.accumulation * workload.micro_batch_size // rows
        )
        advice = Advice(
            (
                f"train.micro_batch_size: {rows}",
                f"train.gradient_accumulation_steps: {changed.accumulation}",
            ),
            "same effective batch",
            changed,
        )
        if rows == 1 or _fits(advice, budget):
            yield advice
            return


def _checkpointing(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if not workload.checkpointing:
        yield Advice(("model.gradient_checkpointing: true",), "", replace(workload, checkpointing=True))


def _fused_loss(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if workload.fused_loss == "none" and _has(recipe, "train", "cross_entropy"):
        yield Advice(("train.cross_entropy: auto",), "", replace(workload, fused_loss="fused"))


def _flash(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    gpu = catalog.gpu(workload.machines.gpu)
    if workload.attention != "flash_attention_2" and gpu and gpu.bf16:
        yield Advice(("model.attention: flash_attention_2",), "", replace(workload, attention="flash_attention_2"))


def _sharding(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if workload.sharding == "ddp" and "distribution" in recipe.settings:
        for way in ("zero2", "zero3", "fsdp"):
            yield Advice((f"distribution: {way}",), "more communication", replace(workload, sharding=way))


def _eight_bit(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if "8bit" not in workload.optimizer and _has(recipe, "train", "optimizer"):
        changed = replace(workload, optimizer="adamw_bnb_8bit")
        yield Advice(("train.optimizer: adamw_bnb_8bit",), "slightly less exact steps", changed, loss=_EXACTNESS)


def _four_bit(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if workload.adapter and not workload.adapter.four_bit and _has(recipe, "train", "adapter"):
        changed = replace(workload, adapter=replace(workload.adapter, four_bit=True))
        yield Advice(
            ("train.adapter: qlora",), "the base model in 4 bits, slightly less exact", changed, loss=_EXACTNESS
        )


def _shorter(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    if not _has(recipe, "model", "sequence_len"):
        return
    for length in (length for length in SEQUENCES if length < workload.sequence_len):
        advice = Advice(
            (f"model.sequence_len: {length}",),
            "longer rows are left out",
            replace(workload, sequence_len=length),
            loss=_LEARNING,
        )
        if length == SEQUENCES[-1] or _fits(advice, budget):
            yield advice
            return


def _lower_rank(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    setting = next((name for name in ("lora_rank", "rank") if _has(recipe, "train", name)), None)
    if not workload.adapter or not setting:
        return
    for rank in (rank for rank in (64, 32, 16, 8) if rank < workload.adapter.rank):
        advice = Advice(
            (f"train.{setting}: {rank}",),
            "the adapter learns less",
            replace(workload, adapter=replace(workload.adapter, rank=rank)),
            loss=_LEARNING,
        )
        if rank == 8 or _fits(advice, budget):
            yield advice
            return


def _smaller_model(recipe: Recipe, workload: Workload, budget: float) -> Iterator[Advice]:
    """The largest smaller model of the catalog that fits."""
    if not _has(recipe, "model", "base"):
        return
    others = [catalog.model(name) for name in catalog.model_ids()]
    size = parameters.total(workload.model)
    smaller = [other for other in others if other and other.model_type in parameters.FAMILIES]
    smaller = sorted((other for other in smaller if parameters.total(other) < size), key=parameters.total, reverse=True)
    for other in smaller:
        adapter = workload.adapter and replace(workload.adapter, targets=other.linear)
        changed = replace(workload, model=other, adapter=adapter, unfrozen=_moved(workload, other))
        advice = Advice((f"model.base: {other.id}",), "a smaller model", changed, loss=_ANOTHER_MODEL)
        if _fits(advice, budget):
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


def _larger_gpu(workload: Workload) -> list[Advice]:
    """The smallest card of the catalog that the run fits as it stands."""
    need = memory.estimate(workload).total
    cards = [catalog.gpu(name) for name in catalog.gpu_names()]
    able = [card for card in cards if memory.usable(card) >= need and (card.bf16 or workload.precision != "bf16")]
    if not able:
        return []
    card = min(able, key=lambda card: card.usable_gib)
    changed = replace(workload, machines=replace(workload.machines, gpu=card.name))
    return [Advice((f"machines.gpu: {card.name}",), "a larger card", changed, loss=_ANOTHER_GPU)]


Offer = Callable[[Recipe, Workload, float], Iterator[Advice]]

# Each kind of change costs one line here.
OFFERS: tuple[Offer, ...] = (
    _smaller_batch,
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
