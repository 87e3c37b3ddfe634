"""Constants of a card: measured by benchmarks/memory_on_gpu.py, or assumed. The results files, one for each card, are
in the catalog and in the wheel."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from runner import catalog
from runner.tools.files import read_json

FOLDER = catalog.HERE / "measured"
GIB = 2**30


@dataclass(frozen=True)
class Constants:
    """Constants of one card that no formula gives.

    slack: share that the allocator holds beyond live tensors. context: bytes of the driver, of kernels and of cuBLAS.
    slowness: seconds of a step over those of the formulas. spread: the fastest and the slowest likely time, as shares
    of the time, None if too little was measured. source: card, date, versions and count of cells; empty if all of it is
    assumed."""

    slack: float = 0.04
    context: int = int(0.6 * GIB)
    slowness: float = 1.0
    spread: tuple[float, float] | None = None
    source: str = ""


ASSUMED = Constants()


# These replace the catalog's, by card, within `taking`.
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
    """Of the card of that name, within `taking` the given ones."""
    return _own.get().get(gpu) or from_catalog(gpu)


def from_catalog(gpu: str) -> Constants:
    """The constants of the results file of a card, the same on every machine."""
    return _read(FOLDER, gpu)


@cache
def _read(folder: Path, gpu: str) -> Constants:
    file = folder / f"memory-{gpu}.json"
    results = read_json(file) if file.is_file() else None
    measurements = [(cell["measured"], cell["planned"]) for cell in (results or {}).get("cells", ())]
    cells = [(taken, planned["micro_batch_seconds"]) for taken, planned in measurements if taken["allocated_bytes"]]
    if not results or not cells:
        return ASSUMED
    found = measured(
        [taken["reserved_bytes"] / taken["allocated_bytes"] - 1 for taken, _ in cells],
        [taken["driver_bytes"] - taken["reserved_bytes"] for taken, _ in cells],
        [taken["micro_batch_seconds"] / planned for taken, planned in cells if planned],
    )
    versions = f"torch {results['versions']['torch']}, transformers {results['versions']['transformers']}"
    return replace(found, source=f"{results['gpu']}, {results['date']}, {len(cells)} cells, {versions}")


def measured(slack: list[float], context: list[int], pace: list[float]) -> Constants:
    """Constants from measurements. Nine of ten stay below the slack, because a plan that is too low ends a run; pace is
    the median."""
    import statistics  # slow to load, and seldom needed

    slowness = statistics.median(pace) if pace else 1.0
    spread = (_quantile(pace, 0.1) / slowness, _quantile(pace, 0.9) / slowness) if pace else None
    return Constants(_quantile(slack, 0.9), round(statistics.median(context)), slowness, spread)


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def basis(gpus: Iterable[str]) -> str:
    """The sources of a plan's figures, in words."""
    sources = {gpu: constants(gpu).source for gpu in gpus}
    known = [source for source in dict.fromkeys(sources.values()) if source]
    if not known:
        return "The numbers come from formulas that agree with fake-tensor runs and published GPU runs. CUDA context, allocator slack and the speed of the card come from those runs. This project has not measured on a GPU of this kind."
    rest = "" if all(sources.values()) else " For the other cards they come from published runs."
    return f"The numbers come from formulas that agree with fake-tensor runs. CUDA context, allocator slack and the speed of the card were measured: {'; '.join(known)}.{rest}"
