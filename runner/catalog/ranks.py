"""Ranks: which process came late to what all of them do together, by what PyTorch's watchdog says in their logs.

PyTorch's own words, of 2.1 to 2.9 (ProcessGroupNCCL.cpp): `[Rank 3] Watchdog caught collective operation timeout:
WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, …, Timeout(ms)=600000) ran for …`, and since 2.3 `… Rank 3] … last enqueued NCCL work: 1582,
last completed NCCL work: 1579.` A process that never came to a collective waits for nothing, and has no such line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WAITED = re.compile(
    r"\[Rank (\d+)\] Watchdog caught\s+collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"[^\n]*?Timeout\(ms\)=(\d+)"
)
_REACHED = re.compile(r"Rank (\d+)\][^\n]*last enqueued NCCL work: (-?\d+)")
# PyTorch's mark of the process that writes a line.
_SPEAKS = re.compile(r"\[[rR]ank ?(\d+)\]")


@dataclass(frozen=True)
class Waiting:
    """What the processes say of a collective that nobody ended. waited: the number of it for each rank that waited; reached:
    the last one that each has begun; known: every rank that is known to be there."""

    what: str
    minutes: float
    waited: dict[int, int]
    reached: dict[int, int]
    known: frozenset[int]

    @property
    def late(self) -> list[int]:
        """The ranks that the others waited for; none where all were there."""
        if silent := sorted(self.known - set(self.waited)):
            return silent
        for numbers in (self.waited, self.reached):
            if len(set(numbers.values())) > 1:
                return sorted(rank for rank, number in numbers.items() if number == min(numbers.values()))
        return []


def waiting(text: str, world_size: int = 0) -> Waiting | None:
    """What logs say, of one machine or, where `world_size` says how many ranks there are, of all of them together; None where
    nobody has waited in vain."""
    found = _WAITED.findall(text)
    if not found:
        return None
    waited: dict[int, int] = {}
    for rank, number, _, _ in found:
        waited.setdefault(int(rank), int(number))
    reached = {int(rank): int(number) for rank, number in _REACHED.findall(text)}
    speaking = {int(rank) for rank in _SPEAKS.findall(text)} | set(waited) | set(reached)
    known = frozenset(range(world_size)) if world_size else _of_one_machine(speaking)
    return Waiting(found[0][2], int(found[0][3]) / 60_000, waited, reached, known)


def _of_one_machine(speaking: set[int]) -> frozenset[int]:
    """The ranks that must be on the machine that these are on: every machine has equally many, numbered on from the one before."""
    first, last = min(speaking), max(speaking)
    count = next(count for count in range(last - first + 1, last + 2) if first // count == last // count)
    return frozenset(range(first // count * count, (first // count + 1) * count))


def late(text: str, world_size: int = 0) -> str:
    """Who came late, as a sentence; empty where the logs do not say who waited."""
    told = waiting(text, world_size)
    if told is None:
        return ""
    number = max(told.waited.values())
    at = f"collective {number} ({told.what}), for {told.minutes:g} minutes"
    if not told.late:
        here = _ranks(sorted(told.known))
        if not world_size:
            return f"{here[0].upper()}{here[1:]} waited at {at}; the logs of other machines may say for whom."
        return f"All of {here} were at {at}: none came late, so the network or a GPU stood still."
    names = _ranks(told.late)
    others = _ranks(sorted(set(told.waited) - set(told.late)))
    return f"{names[0].upper()}{names[1:]} came late, or not at all: {others} waited at {at}."


def _ranks(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0 to 2 and 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    # Of two neighbours each is named, of more the first and the last.
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
