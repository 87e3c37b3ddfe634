"""Advice: what makes a run of a language model fit by formulas, what loses least first. Whether it holds, trying it says."""

from dataclasses import replace

from runner import catalog
from runner.catalog import Gpu
from runner.parts.planner import duration, memory
from runner.parts.planner.formulas import Advice, Loss
from runner.parts.planner.memory_offers import OFFERS, WITHIN_A_MODEL, Lines, fits
from runner.parts.planner.workload import Workload

# Changes that are looked for together, and how many of those that are not enough are built on.
TOGETHER, KEPT = 3, 6


def cheapest(lines: Lines, workload: Workload, gpu: Gpu, budget: float, count: int = 8) -> list[Advice[Workload]]:
    """The changes that bring a GPU's memory to at most `budget` bytes: single ones, and several together where too few that
    lose nothing are enough alone."""
    started = [advice for offer in OFFERS for advice in offer(lines, workload, budget)]
    enough = [advice for advice in started if fits(advice, budget)]
    for _ in range(TOGETHER - 1):
        if sum(advice.loss == Loss.NOTHING for advice in enough) >= 2:
            break
        short = [advice for advice in started if not fits(advice, budget) and advice.loss < Loss.ANOTHER_MODEL]
        # What loses nothing, and of that what saves most, is built on first.
        short.sort(key=lambda advice: (advice.loss, memory.estimate(advice.workload).total))
        started = [
            _both(first, second)
            for first in short[:KEPT]
            for offer in WITHIN_A_MODEL
            for second in offer(lines, first.workload, budget)
            if not first.changes.keys() & second.changes.keys()
        ]
        # Several of which fewer are enough say nothing new.
        known = [half.changes.items() for half in enough]
        enough += [
            advice for advice in started if fits(advice, budget) and not any(k <= advice.changes.items() for k in known)
        ]
    timed = [replace(advice, time=_time(advice.workload, workload, gpu)) for advice in enough]
    chosen: list[Advice[Workload]] = []
    for advice in sorted(timed, key=lambda advice: (advice.loss, len(advice.changes), advice.time)):
        # One way of each kind: three sequence lengths are one idea.
        if all(advice.changes.keys() != known.changes.keys() for known in chosen):
            chosen.append(advice)
    return chosen[:count]


def _both(first: Advice[Workload], second: Advice[Workload]) -> Advice[Workload]:
    return Advice({**first.changes, **second.changes}, second.workload, max(first.loss, second.loss))


def _time(after: Workload, before: Workload, gpu: Gpu) -> float:
    def of_a_row(workload: Workload) -> float:
        card = catalog.gpu(workload.machines.gpu) or gpu
        return duration.step_seconds(workload, card) / (workload.micro_batch_size * workload.accumulation)

    return of_a_row(after) / of_a_row(before)
