"""Networks between machines, by the kind that a recipe names."""

from __future__ import annotations

from dataclasses import dataclass

from runner.catalog.tables import table


@dataclass(frozen=True)
class Network:
    """gbit_s: nominal rate of a machine's one link, one direction, 10^9 bits a second; title: in words."""

    title: str
    gbit_s: float
    source: str


def network(kind: str) -> Network:
    """kind: ethernet or rdma."""
    return Network(**table("networks")[kind])
