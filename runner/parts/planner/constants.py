"""Constants of a card, measured by benchmarks/memory_on_gpu.py or assumed; and the range of errors
of plans on published GPU runs, by kind of run, as benchmarks/outside.py found (planned over
measured, minus 1). Both are in the catalog."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from runner import catalog
from runner.catalog.hardware import GIB
from runner.parts.planner.workload import Network, Run, Workload
from runner.recipe import units
from runner.tools.files import Record, read_record
from runner.tools.text import macros

FOLDER = catalog.HERE / "measured"
FILE = catalog.HERE / "outside.json"
# With this many runs, their own lowest and highest values cover nine of ten later ones.
ENOUGH = 19


@dataclass(frozen=True)
class Constants(Record):
    """Constants of one card that no formula gives. slack: share that the allocator holds beyond
    live tensors. context: bytes of the driver, of kernels and of cuBLAS. slowness: seconds of a
    step over those of the formulas. spread: the fastest and the slowest likely time, as shares of
    the time, None if too little was measured. source: card, date, versions and count of cells;
    empty if assumed."""

    slack: float = 0.04
    context: int = int(0.6 * GIB)
    slowness: float = 1.0
    spread: tuple[float, float] | None = None
    source: str = ""


ASSUMED = Constants()

# The constants that replace the catalog's within `taking`, by card.
_own: ContextVar[Mapping[str, Constants]] = ContextVar("own", default=MappingProxyType({}))


@contextmanager
def taking(by_card: Mapping[str, Constants]) -> Iterator[None]:
    """Plans with these constants of cards instead of the catalog's."""
    token = _own.set(by_card)
    try:
        yield
    finally:
        _own.reset(token)


def constants(gpu: str) -> Constants:
    """The constants of a card: those of `taking`, else the catalog's."""
    by_card = _own.get()
    if gpu in by_card:
        return by_card[gpu]
    return from_catalog(gpu)


def from_catalog(gpu: str) -> Constants:
    """The constants of the results file of a card, the same on every machine."""
    return _read(FOLDER, gpu)


@cache
def _read(folder: Path, gpu: str) -> Constants:
    measured = read_record(folder / f"memory-{gpu}.json")
    return Constants.of(measured.get("constants", {}))


def measured(slack: list[float], context: list[int], pace: list[float]) -> Constants:
    """The slack that nine of ten cells stay below, because too low a plan ends a run; medians of
    context and pace."""
    import statistics  # slow to load, and seldom needed

    if pace:
        slowness = statistics.median(pace)
    else:
        slowness = 1.0
    if pace:
        spread = (_quantile(pace, 0.1) / slowness, _quantile(pace, 0.9) / slowness)
    else:
        spread = None
    return Constants(_quantile(slack, 0.9), round(statistics.median(context)), slowness, spread)


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    place = int(share * len(ordered))
    return ordered[min(len(ordered) - 1, place)]


def sources() -> Any:
    """The macros of `sources.txt.jinja`, each a function to text."""
    return macros(
        Path(__file__).with_name("sources.txt.jinja"), percent=percent, pace=units.speed, GIB=GIB
    )


def basis(gpus: Iterable[str], network: Network | None = None) -> str:
    """The sources of a plan's figures, in words. network: between machines, None for one
    machine."""
    return str(sources().basis({gpu: constants(gpu).source for gpu in gpus}, network))


def kind(run: Run) -> dict[str, str]:
    """What distinguishes runs: training (full, last, lora, qlora, dpo, images), sharding, loss, the
    card's label."""
    method = "images"
    loss = "none"
    if isinstance(run, Workload):
        if run.adapter:
            if run.adapter.four_bit:
                adapter = "qlora"
            else:
                adapter = "lora"
        else:
            adapter = ""
        if run.objective != "sft":
            method = "dpo"
        elif adapter:
            method = adapter
        elif run.unfrozen:
            method = "last"
        else:
            method = "full"
        loss = run.fused_loss
    return {"method": method, "sharding": run.sharding, "loss": loss, "gpu": run.machines.gpu}


def percent(ratio: float) -> str:
    """How many per cent more or less than the whole a share is, with a sign."""
    more = round(100 * (ratio - 1))
    if more > 0:
        return f"+{more}"
    if more < 0:
        return f"−{-more}"
    return "0"


class Spread(NamedTuple):
    """The lowest and highest error of nine in ten of `rows` published runs; shared: what they share
    with this one."""

    low: float
    high: float
    rows: int
    shared: str = ""

    def of(self, figure: float) -> tuple[float, float]:
        """The range of a planned figure."""
        return figure / (1 + self.high), figure / (1 + self.low)

    def __str__(self) -> str:
        less, more = map(percent, self.of(1.0))
        return f"{less} to {more} % on {self.runs}"

    @property
    def runs(self) -> str:
        return f"{self.rows} published runs{self.shared}"


@cache
def _ranges() -> Mapping[str, Sequence[Any]]:
    return read_record(FILE)


def spread(run: Run, figure: str) -> Spread:
    """The errors of what was planned: `allocated`, the memory of tensors, or `time`, the seconds of
    a step. The ranges are in order: the first one with nothing that this run lacks applies."""
    properties = kind(run).items()
    ranges = _ranges()[figure]
    fitting = (figures for shared, *figures in ranges if shared.items() <= properties)
    return Spread(*next(fitting))
