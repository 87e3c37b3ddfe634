"""Outside: how far the plan was from GPU runs that others have published, by kind of run.

The errors are in the catalog; benchmarks/outside.py makes them from published rows. An error is planned over measured,
less 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from runner import catalog
from runner.parts.planner.workload import Run, Workload
from runner.tools.files import read_json

FILE = catalog.HERE / "outside.json"
# With this many rows, their own lowest and highest values cover nine of ten later ones.
ENOUGH = 19
# Published figures are rounded, and versions differ.
LEAST = 0.01
# How far formulas and fake-tensor runs differ in nine of ten cells (benchmarks/results/estimate-accuracy.txt), which is
# all that is known of memory without a published run.
UNLIKE = 0.05


@dataclass(frozen=True)
class Kind:
    """What tells runs apart: what is trained (full, last, lora, qlora, dpo, images), sharding, loss, and the card's
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
    return Kind("dpo" if run.objective == "dpo" else method, run.sharding, run.fused_loss, run.machines.gpu)


@dataclass(frozen=True)
class Spread:
    """The lowest and the highest error that nine of ten published runs lay between, how many runs those were, and what
    they have to do with this one, in words."""

    low: float
    high: float
    rows: int
    shared: str = ""

    def of(self, figure: float) -> tuple[float, float]:
        """What a planned figure may turn out to be."""
        return figure / (1 + self.high), figure / (1 + self.low)

    def __str__(self) -> str:
        """How much less and more than planned it may be, for people."""
        less, more = (round(100 * (share - 1)) for share in self.of(1.0))
        return f"{_signed(less)} to {_signed(more)} % on {self.runs}"

    @property
    def runs(self) -> str:
        """The runs that the range comes from, in words."""
        return f"{self.rows} published runs{self.shared}"


def _signed(count: int) -> str:
    return f"{'−' if count < 0 else '+' if count else ''}{abs(count)}"


def range_of(errors: Sequence[float]) -> tuple[float, float]:
    """Between which nine of ten more such errors are to be expected, whatever their distribution: of n in order, the
    next lies between the r-th and the r-th from the end in n + 1 - 2 r of n + 1 cases. A little wider, because what
    comes after is of other sources too, and at least LEAST wide on each side."""
    ordered = sorted(errors)
    rank = max(1, int(0.03 * (len(ordered) + 1)))
    return min(ordered[rank - 1], -LEAST), max(ordered[-rank], LEAST)


@cache
def _known(what: str) -> tuple[tuple[Kind, float], ...]:
    kept = read_json(FILE) if FILE.is_file() else None
    return tuple((Kind(*named), error) for *named, error in (kept or {}).get(what, ()))


# What runs may share, the closest first, and the words for it. The first that enough runs share counts. Time has one
# level: ranges of runs that share the card, and not the sharding, held 83 % of runs whose source and kind were left
# out.
_Same = Callable[[Kind, Kind], bool]
_MEMORY: tuple[tuple[_Same, str], ...] = (
    (lambda a, b: (a.method, a.sharding, a.loss) == (b.method, b.sharding, b.loss), "like this"),
    (lambda a, b: (a.method, a.sharding) == (b.method, b.sharding), "with this method"),
)
_TIME: tuple[tuple[_Same, str], ...] = ((lambda a, b: a == b, "like this"),)


def allocated(run: Run) -> Spread:
    """How far planned memory of tensors may be off."""
    return _found(kind(run), "allocated")


def time(run: Run) -> Spread:
    """How far a planned step may be off, as seconds."""
    return _found(kind(run), "time")


@cache
def _found(this: Kind, what: str) -> Spread:
    known = _known(what)
    if what == "time" and this.sharding not in {other.sharding for other, _ in known}:
        # Runs over an unnamed network are better than none of this sharding.
        known += tuple(each for each in _known("unnamed_network") if each[0].sharding == this.sharding)
    return spread(this, known, what)


def spread(this: Kind, known: Sequence[tuple[Kind, float]], what: str) -> Spread:
    """What these errors of runs say of a run of this kind."""
    # least: how wide the range is at least on each side where no published run is like this one.
    levels, least = {"allocated": (_MEMORY, UNLIKE), "time": (_TIME, 0.0)}[what]
    everything = [error for _, error in known]
    nearest: tuple[list[float], str] | None = None
    for same, shared in levels:
        alike = [error for other, error in known if this.method != "images" and same(this, other)]
        if len(alike) >= ENOUGH:
            return Spread(*range_of(alike), len(alike), f" {shared}")
        if alike and not nearest:
            nearest = alike, shared
    count = len(everything)
    if not nearest:
        # Then it may be as far off as the farthest of them.
        return Spread(min([-least, *everything]), max([least, *everything]), count, ", none like this")
    # Some are like it, and too few to be alone.
    (low, high), (alike, shared) = range_of(everything), nearest
    return Spread(min(low, *alike), max(high, *alike), count, f", {len(alike)} {shared}")
