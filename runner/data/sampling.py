"""Draw: a seeded sample from a stream of any length, in the memory of the sample."""

from __future__ import annotations

import hashlib
import heapq
from bisect import insort
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Draw(Generic[Item]):
    """Keeps the `count` items whose keys have the smallest hashes, and of one owner at most `per_owner`.

    A hash of key and seed decides, so neither the order of the stream nor other items change what is drawn, and items
    of the same key are found without remembering all that went by (bottom-k sampling, Cohen and Kaplan 2007).
    duplicates, over_cap, not_drawn: items left out, as counts; with those kept they add up to those offered.
    """

    def __init__(self, count: int, per_owner: int, seed: int) -> None:
        self.count, self.per_owner, self.seed = count, per_owner, seed
        self.duplicates = self.over_cap = self.not_drawn = 0
        self._kept: dict[int, tuple[Item, str | None]] = {}
        self._largest: list[int] = []
        self._owners: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def offer(self, item: Item, key: str, owner: str | None) -> None:
        """Takes an item, or counts why not. owner: None where it has none; then it counts against nobody."""
        rank = int.from_bytes(hashlib.sha256(f"draw\n{self.seed}\n{key}".encode()).digest()[:16], "big")
        if rank in self._kept:
            self.duplicates += 1
            return
        ranks = self._owners.get(owner, []) if owner is not None else []
        if len(ranks) >= self.per_owner:
            self.over_cap += 1
            if rank > ranks[-1]:
                return
            self._forget(ranks[-1])
        elif len(self._kept) >= self.count:
            self.not_drawn += 1
            if rank > (largest := self._top()):
                return
            self._forget(largest)
        self._kept[rank] = (item, owner)
        heapq.heappush(self._largest, -rank)
        if owner is not None:
            insort(self._owners.setdefault(owner, []), rank)

    def items(self) -> list[Item]:
        """What was drawn, in an order that the seed fixes."""
        return [self._kept[rank][0] for rank in sorted(self._kept)]

    def _top(self) -> int:
        """The largest rank that is kept; the heap may still hold some that are not."""
        while -self._largest[0] not in self._kept:
            heapq.heappop(self._largest)
        return -self._largest[0]

    def _forget(self, rank: int) -> None:
        _, owner = self._kept.pop(rank)
        if owner is not None:
            self._owners[owner].remove(rank)
            if not self._owners[owner]:
                del self._owners[owner]
