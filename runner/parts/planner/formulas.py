"""Formulas for what a stage needs: a class for each engine (`formulas` in a part's table), here Axolotl's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from runner import catalog
from runner.catalog import Gpu
from runner.parts.planner import duration, memory, parameters, state
from runner.parts.planner.duration import Duration
from runner.parts.planner.memory import Memory
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.workload import TABLES, Offload, Run, Workload, from_stage
from runner.plan import Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.text import template


@dataclass(frozen=True)
class Counts:
    """Parameters: of the model itself, tied ones once; trained ones; and the adapter's, 0 if there is none."""

    total: int
    trainable: int
    adapter: int = 0


# Larger micro batches are not tried.
MOST_TRIED = 4096
# Dotted settings with their values.
Changes = Mapping[str, Any]


class Loss(IntEnum):
    """How a change harms what is learned, the least first."""

    NOTHING = 0
    EXACTNESS = 1  # numbers with fewer digits
    LEARNING = 2  # fewer rows, fewer steps, or less that can be learned
    ANOTHER_MODEL = 3


def splits(run: Run, smaller: bool) -> Iterator[tuple[int, int]]:
    """Micro batches and accumulations with the same product as the run's: the next smaller micro batch and so on, or
    the next larger ones; none above MOST_TRIED."""
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
        """Raises UnknownArchitecture if the model's architecture has no formulas."""

    @property
    def memory(self) -> Memory:
        """Of each GPU."""

    @property
    def steps(self) -> int | None:
        """Steps of the optimizer; None if the rows are unknown."""

    @property
    def warmup_steps(self) -> int:
        """Steps with a rising learning rate, as the engine counts them."""

    def time(self, gpu: Gpu) -> Duration | None:
        """None if the rows are unknown."""

    def offers(self, recipe: Recipe, stage: Stage, gpu: Gpu, budget: float) -> Iterable[Changes]:
        """The changes that bring the memory of a GPU to `budget` bytes, the least loss first."""

    def written(self, stage: Stage) -> dict[str, int]:
        """The files that the run leaves on disk and fetches, by kind, in bytes; one is a `checkpoint`."""

    def beside(self, stage: Stage) -> dict[str, int]:
        """Main memory of a machine beyond processes and shared memory, by part."""

    def notes(self) -> Mapping[str, str]:
        """Remarks on the parts of `memory`, and on `steps`, in words."""

    def changed(self, **fields: Any) -> Formulas:
        """The same for a workload with other fields."""


@dataclass(frozen=True)
class Traced:
    """The results of a trace: counts, bytes, floating-point operations of one micro batch, seconds of tracing. weights,
    gradients, optimizer: held between steps. activations: alive after the forward pass beyond those. peak,
    evaluation_peak: most bytes alive in training and in evaluation. peak_at: the operation at the peak."""

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
    """The fields of a run that a trace replaces: ZeRO and offloading are not traced."""
    if not isinstance(run, Workload) or not (run.sharding.startswith("zero") or run.offload):
        return {}
    # Everything is on one GPU, in the precision that the split weights have.
    return {"sharding": "none", "offload": Offload(), "fp32_weights": run.masters}


def of_stage(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> LanguageFormulas | None:
    """The formulas for a stage; None if its model is unknown. look: whether to read the hub's cache."""
    # The stage's model is the recipe's own, else that of its config in the catalog or in the hub's cache.
    name, revision = (str(stage.config.get(key) or "") for key in ("base_model", "revision_of_model"))
    recipe = recipe.of_stage(stage.name)
    model = recipe.model_facts or catalog.model(name, recipe.folder)
    if model is None and look:
        model = catalog.cached_model(name, revision or "main")
    if model is None:
        return None
    work = from_stage(stage, model, rows)
    stated = (recipe.settings.get("train") or {}).get("eval_batch_size")
    follows = stated is None and work.evaluation_batch_size == work.micro_batch_size
    speed = (recipe.settings.get("sharding") or {}).get("nvme_mb_s") or work.offload.mb_s
    offload = replace(work.offload, mb_s=float(speed))
    return LanguageFormulas(replace(work, evaluation_follows=follows, offload=offload))


@dataclass(frozen=True)
class LanguageFormulas:
    """The formulas for one run of a language model."""

    work: Workload

    @property
    def name(self) -> str:
        return self.work.model.id

    @property
    def counts(self) -> Counts:
        parameters.family(self.work.model)
        # The layer of a reward model's score; PEFT trains a copy of it (0.20, `modules_to_save`).
        score = self.work.model.hidden_size if self.work.objective == "reward" else 0
        total = parameters.total(self.work.model) + (2 if self.work.adapter else 1) * score
        return Counts(total, parameters.trainable(self.work) + score, parameters.adapter(self.work))

    @property
    def memory(self) -> Memory:
        return memory.estimate(self.work)

    @property
    def steps(self) -> int | None:
        return self.work.steps

    @property
    def warmup_steps(self) -> int:
        """A whole number, and two instead of one (Axolotl 0.19.0, _configure_warmup_and_logging)."""
        if self.work.warmup_steps or not self.steps:
            return self.work.warmup_steps
        rising = int(self.steps * self.work.warmup_ratio)
        return 2 if rising == 1 else rising

    def time(self, gpu: Gpu) -> Duration | None:
        return duration.estimate(self.work, gpu)

    def offers(self, recipe: Recipe, stage: Stage, gpu: Gpu, budget: float) -> Iterable[Changes]:
        from runner.parts.planner import memory_offers

        found = memory_offers.cheapest(memory_offers.Lines.of(recipe, stage), self.work, gpu, budget)
        return [advice.changes for advice in found]

    def written(self, stage: Stage) -> dict[str, int]:
        """Prepared rows, a checkpoint, the best model, a model merged with its adapter; and the download."""
        work = self.work
        rows = ((work.rows or 0) + (work.evaluation_rows or 0)) * work.answers
        # A row as text, and its tokens, labels and mask as Arrow keeps them.
        sizes = {"prepared data": 0 if work.max_steps else round(rows * (work.lengths.mean or work.sequence_len) * 21)}
        sizes |= {"checkpoint": state.checkpoint(work), "best model": state.saved_weights(work)}
        halves = work.widths.linear * parameters.total(work.model)
        if work.adapter:
            sizes["merged model"] = halves
        if on_disk := state.on_disk(work):
            sizes[state.ON_DISK] = on_disk
        if stage.model or not str(stage.config.get("base_model") or "").startswith("/"):
            sizes["model download"] = halves
        return sizes

    def beside(self, stage: Stage) -> dict[str, int]:
        """Offloaded state, and the largest moment: loading, saving, resuming or merging."""
        parts = state.main_memory(self.work)
        name, size = max(state.moments(self.work).items(), key=lambda moment: moment[1])
        return parts | {name: size}

    def notes(self) -> Mapping[str, str]:
        text = template(Path(__file__).with_name("notes.txt.jinja")).render(
            work=self.work,
            reference=state.reference(self.work),
            gradients=state.held(self.work).gradients,
            tables=TABLES,
            units=units,
        )
        return dict(line.split(": ", 1) for line in text.splitlines())

    def changed(self, **fields: Any) -> LanguageFormulas:
        return LanguageFormulas(replace(self.work, **fields))
