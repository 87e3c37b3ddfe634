"""Advice: what makes a run of a language model fit, cheapest first, each as the line to change and what it costs."""

from __future__ import annotations

from dataclasses import replace

from runner import catalog
from runner.catalog import Gpu
from runner.estimate import duration, memory
from runner.estimate.formulas import Advice
from runner.estimate.offers import ANOTHER_GPU, ANOTHER_MODEL, OFFERS, Lines, fits
from runner.estimate.workload import Workload


def cheapest(lines: Lines, workload: Workload, gpu: Gpu, budget: float, count: int = 3) -> list[Advice[Workload]]:
    """The cheapest changes that bring a GPU's memory to at most `budget` bytes: single ones, and pairs where too few
    single ones are enough."""
    singles = [advice for offer in OFFERS for advice in offer(lines, workload, budget)]
    enough = [advice for advice in singles if fits(advice, budget)]
    if len(enough) < count:
        # In a pair the second change is looked for on top of the first.
        for first in [advice for advice in singles if not fits(advice, budget) and advice.loss < ANOTHER_MODEL]:
            for offer in OFFERS:
                seconds = [
                    second for second in offer(lines, first.workload, budget) if not _keys(first) & _keys(second)
                ]
                pairs = [_both(first, second) for second in seconds if fits(second, budget)]
                # A pair of which one half is enough says nothing new.
                enough += [pair for pair in pairs if not any(set(half.lines) < set(pair.lines) for half in enough)]
    if budget == memory.usable(gpu):
        enough += _larger_gpu(workload)
    timed = {frozenset(advice.lines): replace(advice, time=_time(advice.workload, workload, gpu)) for advice in enough}
    ranked = sorted(timed.values(), key=lambda advice: (round(advice.time + advice.loss, 2), len(advice.lines)))
    chosen: list[Advice[Workload]] = []
    for advice in ranked:
        # One way of each kind: three sequence lengths are one idea.
        if all(_keys(advice) != _keys(known) for known in chosen):
            chosen.append(advice)
    return [replace(advice, cost=_priced(advice)) for advice in chosen[:count]]


def _priced(advice: Advice[Workload]) -> str:
    change = round((advice.time - 1) * 100)
    pace = f"{change} % slower" if change > 1 else f"{-change} % faster" if change < -1 else "no slower"
    return f"{advice.cost}; {pace}" if advice.cost else pace


def _keys(advice: Advice[Workload]) -> set[str]:
    return {line.partition(":")[0] for line in advice.lines}


def _both(first: Advice[Workload], second: Advice[Workload]) -> Advice[Workload]:
    cost = "; ".join(part for part in (first.cost, second.cost) if part)
    return Advice((*first.lines, *second.lines), cost, second.workload, loss=max(first.loss, second.loss))


def _time(after: Workload, before: Workload, gpu: Gpu) -> float:
    def of_a_row(workload: Workload) -> float:
        card = catalog.gpu(workload.machines.gpu) or gpu
        return duration.step_seconds(workload, card) / (workload.micro_batch_size * workload.accumulation)

    return of_a_row(after) / of_a_row(before)


def _larger_gpu(workload: Workload) -> list[Advice[Workload]]:
    """The smallest card of the catalog that the run fits as it stands."""
    card = memory.smallest_card(memory.estimate(workload).total, workload)
    if card is None:
        return []
    changed = replace(workload, machines=replace(workload.machines, gpu=card.name))
    return [Advice((f"machines.gpu: {card.name}",), "a larger card", changed, loss=ANOTHER_GPU)]
