"""Measured: what benchmarks/memory_on_gpu.py found on a card, instead of the assumptions for cards without a
measurement.

Its results files are in the catalog, one a card, and travel in the wheel.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner import catalog
from runner.tools.files import read_json

FOLDER = catalog.HERE / "measured"
GIB = 2**30


@dataclass(frozen=True)
class Constants:
    """What no formula gives, of one card.

    slack: what the allocator holds beyond live tensors, as a share of them. context: bytes of the driver, of kernels
    and of cuBLAS. slowness: seconds of a step over those that the formulas say. spread: the fastest and the slowest
    likely time, as shares of the time, None if too little was measured. source: card, date, versions and count of
    cells; empty if all of it is assumed.
    """

    slack: float = 0.04
    context: int = int(0.6 * GIB)
    slowness: float = 1.0
    spread: tuple[float, float] | None = None
    source: str = ""


ASSUMED = Constants()


# What takes the place of the catalog's, by card, while somebody plans with it (`calibration`).
_own: ContextVar[Mapping[str, Constants]] = ContextVar("own", default=MappingProxyType({}))


@contextmanager
def taking(own: Mapping[str, Constants]) -> Iterator[None]:
    """Plans with these constants of cards instead of the catalog's."""
    token = _own.set(own)
    try:
        yield
    finally:
        _own.reset(token)


def constants(gpu: str) -> Constants:
    """What is known of the card of that name."""
    return _own.get().get(gpu) or from_catalog(gpu)


def from_catalog(gpu: str) -> Constants:
    """What the results file of the card of that name says, the same on every machine."""
    return _read(FOLDER, gpu)


@cache
def _read(folder: Path, gpu: str) -> Constants:
    file = folder / f"memory-{gpu}.json"
    results = read_json(file) if file.is_file() else None
    if not results:
        return ASSUMED
    cells = [cell["measured"] | {"planned": cell["planned"]} for cell in results["cells"]]
    return from_cells([cell for cell in cells if cell["allocated_bytes"]], _source(results))


def _source(results: dict[str, Any]) -> str:
    versions, ran = results["versions"], sum(1 for cell in results["cells"] if cell["measured"]["allocated_bytes"])
    return f"{results['gpu']}, {results['date']}, {ran} cells, torch {versions['torch']}, transformers {versions['transformers']}"


def from_cells(cells: list[dict[str, Any]], source: str) -> Constants:
    """Constants from measured cells. Slack is taken so high that nine of ten cells stay below it, because a plan that
    says too little ends a run; pace is the median."""
    if not cells:
        return ASSUMED
    import statistics  # slow to load, and seldom needed

    slack = [cell["reserved_bytes"] / cell["allocated_bytes"] - 1 for cell in cells]
    context = [cell["driver_bytes"] - cell["reserved_bytes"] for cell in cells]
    pace = sorted(
        cell["micro_batch_seconds"] / cell["planned"]["micro_batch_seconds"]
        for cell in cells
        if cell["planned"]["micro_batch_seconds"]
    )
    slowness = statistics.median(pace) if pace else 1.0
    spread = (_quantile(pace, 0.1) / slowness, _quantile(pace, 0.9) / slowness) if pace else None
    return Constants(_quantile(slack, 0.9), round(statistics.median(context)), slowness, spread, source)


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def basis(gpus: Iterable[str]) -> str:
    """What a plan's figures rest on, for people."""
    sources = {gpu: constants(gpu).source for gpu in gpus}
    known = [source for source in dict.fromkeys(sources.values()) if source]
    if not known:
        return "The numbers come from formulas that agree with fake-tensor runs and published GPU runs. CUDA context, allocator slack and the speed of the card come from those runs. This project has not measured on a GPU of this kind."
    rest = "" if all(sources.values()) else " For the other cards they come from published runs."
    return f"The numbers come from formulas that agree with fake-tensor runs. CUDA context, allocator slack and the speed of the card were measured: {'; '.join(known)}.{rest}"
