"""Published runs: how far the plan was off on GPU runs of other people, by kind of run.

The errors are in the catalog; benchmarks/outside.py makes them from published rows. An error is planned over measured,
less 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from runner import catalog
from runner.parts.planner.workload import Run, Workload
from runner.tools.files import read_json

FILE = catalog.HERE / "outside.json"
# With this many rows, their own lowest and highest values cover nine of ten later ones.
ENOUGH = 19
# Published figures are rounded, and versions differ.
LEAST = 0.01
# How far formulas and fake-tensor runs differ in nine of ten cells (benchmarks/results/estimate-accuracy.txt): the range
# of memory without a published run.
UNLIKE = 0.05


@dataclass(frozen=True)
class Kind:
    """What distinguishes runs: what is trained (full, last, lora, qlora, dpo, images), sharding, loss, and the card's
    label."""

    method: str
    sharding: str
    loss: str
    gpu: str

    def __str__(self) -> str:
        return f"{self.method}, {self.sharding}, {self.loss}, {self.gpu.removeprefix('NVIDIA-')}"


def kind(run: Run) -> Kind:
    if not isinstance(run, Workload):
        return Kind("images", run.sharding, "none", run.machines.gpu)
    method = "last" if run.unfrozen else "full"
    if run.adapter:
        method = "qlora" if run.adapter.four_bit else "lora"
    return Kind("dpo" if run.objective != "sft" else method, run.sharding, run.fused_loss, run.machines.gpu)


@dataclass(frozen=True)
class Spread:
    """The lowest and the highest error of nine in ten published runs, the number of those runs, and what they share
    with this one, in words."""

    low: float
    high: float
    rows: int
    shared: str = ""

    def of(self, figure: float) -> tuple[float, float]:
        """The range of a planned figure."""
        return figure / (1 + self.high), figure / (1 + self.low)

    def __str__(self) -> str:
        low, high = (round(100 * (share - 1)) for share in self.of(1.0))
        less, more = (f"{'−' if count < 0 else '+' if count else ''}{abs(count)}" for count in (low, high))
        return f"{less} to {more} % on {self.runs}"

    @property
    def runs(self) -> str:
        return f"{self.rows} published runs{self.shared}"


def range_of(errors: Sequence[float]) -> tuple[float, float]:
    """The range of nine in ten more such errors, whatever their distribution: of n in order, the next is between the
    r-th and the r-th from the end in n + 1 - 2 r of n + 1 cases. A little wider, because later runs have other sources
    too, and at least LEAST wide on each side."""
    ordered = sorted(errors)
    rank = max(1, int(0.03 * (len(ordered) + 1)))
    return min(ordered[rank - 1], -LEAST), max(ordered[-rank], LEAST)


@cache
def _known(what: str) -> tuple[tuple[Kind, float], ...]:
    kept = read_json(FILE) if FILE.is_file() else None
    return tuple((Kind(*named), error) for *named, error in (kept or {}).get(what, ()))


# By figure: the fields that runs may share, the closest first, with the words for it, of which the first that enough runs
# share counts; and the least width on each side without a run like this. Time has one level: ranges of runs that share
# the card, and not the sharding, held 83 % of runs whose source and kind were left out.
_LEVELS = {
    "allocated": (
        ((("method", "sharding", "loss"), "like this"), (("method", "sharding"), "with this method")),
        UNLIKE,
    ),
    "time": (((("method", "sharding", "loss", "gpu"), "like this"),), 0.0),
}


def allocated(run: Run) -> Spread:
    """The errors of planned memory of tensors."""
    return _found(kind(run), "allocated")


def time(run: Run) -> Spread:
    """The errors of the seconds of a planned step."""
    return _found(kind(run), "time")


@cache
def _found(this: Kind, what: str) -> Spread:
    known = _known(what)
    if what == "time" and this.sharding not in {other.sharding for other, _ in known}:
        # Runs over an unnamed network are better than no run of this sharding.
        known += tuple(each for each in _known("unnamed_network") if each[0].sharding == this.sharding)
    return spread(this, known, what)


def spread(this: Kind, known: Sequence[tuple[Kind, float]], what: str) -> Spread:
    """The range of these errors of runs for a run of this kind."""
    levels, least = _LEVELS[what]
    everything = [error for _, error in known]
    nearest: tuple[list[float], str] | None = None
    for fields, shared in levels:
        same = attrgetter(*fields)
        alike = [error for other, error in known if this.method != "images" and same(this) == same(other)]
        if len(alike) >= ENOUGH:
            return Spread(*range_of(alike), len(alike), f" {shared}")
        if alike and not nearest:
            nearest = alike, shared
    count = len(everything)
    if not nearest:
        # It may be as far off as the farthest of all.
        return Spread(min([-least, *everything]), max([least, *everything]), count, ", none like this")
    # Too few runs are like it to count alone.
    (low, high), (alike, shared) = range_of(everything), nearest
    return Spread(min(low, *alike), max(high, *alike), count, f", {len(alike)} {shared}")
