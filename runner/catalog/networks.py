"""Networks between machines: what a recipe says of its own, or what those of its kind reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.catalog.tables import table

# Of a link's nominal rate, what training reaches: published runs over 1,600 Gbit/s (mosaicml/llm-foundry) fit it.
REACHED = 0.80


@dataclass(frozen=True)
class Network:
    """gbit_s: what training reaches over all links of a machine together, one direction, 10^9 bits a second; least, most:
    between which that lies. title: in words. source: empty where the recipe says it."""

    title: str
    gbit_s: float
    least: float
    most: float
    source: str = ""

    @property
    def assumed(self) -> bool:
        return bool(self.source)


def network(kind: str, gbit_s: float | None = None, links: int | None = None) -> Network:
    """kind: ethernet or rdma, of pods, or plain, of machines without Kubernetes. gbit_s: the nominal rate of a link, links:
    how many a machine has, as far as the recipe says it."""
    count = links or 1
    if gbit_s:
        rate = count * gbit_s * REACHED
        each = "one link" if count == 1 else f"{count} links"
        return Network(f"{each} of {gbit_s:g} Gbit/s, of which training reaches four fifths", rate, rate, rate)
    known = Network(**table("networks")[kind])
    if count == 1:
        return known
    title = known.title.replace("one link", f"{count} links")
    return replace(known, title=title, gbit_s=count * known.gbit_s, least=count * known.least, most=count * known.most)
