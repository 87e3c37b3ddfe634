"""Formulas: what is reckoned of a stage. Each engine that trains has one class of them, looked up in `forecast`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from runner.catalog import Gpu
from runner.parts.planner.memory import Memory
from runner.parts.planner.workload import Offload, Run, Workload
from runner.plan import Stage
from runner.recipe.recipe import Recipe

if TYPE_CHECKING:
    from runner.parts.planner.duration import Duration

W_co = TypeVar("W_co", bound=Run, covariant=True)


@dataclass(frozen=True)
class Counts:
    """Parameters: of the model itself, tied ones once; trained ones; and the adapter's, 0 where there is none."""

    total: int
    trainable: int
    adapter: int = 0


# Micro batches beyond this are not looked for.
MOST_TRIED = 4096


class Loss(IntEnum):
    """What a change takes from what is learned; less comes first."""

    NOTHING = 0
    EXACTNESS = 1  # numbers with fewer digits
    LEARNING = 2  # fewer rows, fewer steps, or less that can be learned
    ANOTHER_MODEL = 3


@dataclass(frozen=True)
class Advice(Generic[W_co]):
    """A change by formulas alone: dotted settings with their values, the workload after it, and what it loses."""

    changes: Mapping[str, Any]
    workload: W_co
    loss: Loss = Loss.NOTHING


def splits(run: Run, smaller: bool) -> Iterator[tuple[int, int]]:
    """Micro batches and accumulations with the same product as the run's: the next smaller micro batch and so on, or the
    next larger ones; none above MOST_TRIED."""
    rows, own = run.micro_batch_size * run.accumulation, run.micro_batch_size
    for size in range(min(own - 1, MOST_TRIED), 0, -1) if smaller else range(own + 1, min(rows, MOST_TRIED) + 1):
        if rows % size == 0:
            yield size, rows // size


class Formulas(Protocol):
    """The formulas of one engine, applied to one workload. Bytes and seconds."""

    @property
    def work(self) -> Run: ...

    @property
    def name(self) -> str:
        """The model, as a person calls it."""

    @property
    def counts(self) -> Counts:
        """Raises UnknownArchitecture where the model's architecture has no formulas."""

    @property
    def memory(self) -> Memory:
        """What each GPU takes."""

    @property
    def steps(self) -> int | None:
        """Steps of the optimizer; None where nobody knows the rows."""

    @property
    def warmup_steps(self) -> int:
        """Steps with a rising learning rate, as the engine counts them."""

    def time(self, gpu: Gpu) -> Duration | None:
        """None where nobody knows the rows."""

    def rate(self, gpu: Gpu) -> float:
        """Operations a second that the card's data sheet promises."""

    def offers(self, recipe: Recipe, stage: Stage, gpu: Gpu, budget: float) -> Sequence[Advice[Run]]:
        """The changes that bring the memory of a GPU to `budget` bytes, those that lose least first."""

    def written(self, stage: Stage) -> dict[str, int]:
        """What the run leaves on disk and fetches, by kind; one is a `checkpoint`."""

    def beside(self, stage: Stage) -> dict[str, int]:
        """Main memory of a machine beyond processes and shared memory, by part."""

    def notes(self) -> Mapping[str, str]:
        """What the parts of `memory` come from, and what `steps` read, for people."""

    def changed(self, **fields: Any) -> Formulas:
        """The same for a workload with other fields."""


@dataclass(frozen=True)
class Traced:
    """What a trace found: counts, bytes, floating-point operations of one micro batch, seconds that the trace took.

    weights, gradients, optimizer: bytes held between steps. activations: bytes alive after the forward pass beyond
    those. peak, evaluation_peak: most bytes alive in training and in evaluation. peak_at: the operation at the peak.
    """

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    peak_at: str
    evaluation_peak: int
    flops: int
    seconds: float


def left_out(run: Run) -> dict[str, Any]:
    """The fields of a run that a trace takes otherwise: DDP and FSDP are as they are, ZeRO and offloading are not traced."""
    if not isinstance(run, Workload) or not (run.sharding.startswith("zero") or run.offload):
        return {}
    # Whole on one GPU, and in the numbers that the split ones have.
    return {"sharding": "none", "offload": Offload(), "fp32_weights": run.in_full}
