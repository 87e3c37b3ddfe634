"""Forecast: what each stage of a recipe needs. `plan`, `check` and reports share this one
definition, which has the formulas of an engine as a subclass (`formulas` in a part's table)."""

import importlib
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from runner import catalog, parts
from runner.parts.contract import Formulas
from runner.parts.planner import constants, row_counts
from runner.parts.planner.duration import Duration
from runner.parts.planner.memory import EVALUATION, Memory, usable
from runner.parts.planner.parameters import has_formulas
from runner.parts.planner.workload import ASSUMED, Network, Run, Workload, network
from runner.plan import RUNS, Plan, Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Severity, plural
from runner.tools.text import macros

# An estimate of the longest row is multiplied by this before rows are cut by it.
MISSED = 1.25
# The hint for a problem that several lines of a recipe cause together.
OFFERED = "`recipe plan` suggests changes with their time and cost, and `recipe plan --apply N` applies one."


def said(macro: str, **placeholders: object) -> tuple[str, str]:
    """The message and the remedy of a problem, by a macro of `problems.txt.jinja`."""
    problems = macros(Path(__file__).with_name("problems.txt.jinja"), units=units, OFFERED=OFFERED)
    text = str(getattr(problems, macro)(**placeholders))
    message, _, remedy = text.strip().partition("\n")
    return message, remedy


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


class Counts(NamedTuple):
    """Parameters: of the model itself, tied ones once; trained ones; the adapter's, 0 if there is
    none; and those of parts that see or hear, which text does not train."""

    total: int
    trainable: int
    adapter: int = 0
    seeing: int = 0


def splits(run: Run, smaller: bool) -> Iterator[tuple[int, int]]:
    """Micro batches and accumulations with the same product as the run's: the next smaller micro
    batch and so on, or the next larger ones; none above MOST_TRIED."""
    rows = run.micro_batch_size * run.accumulation
    present = run.micro_batch_size
    if smaller:
        sizes = range(min(present - 1, MOST_TRIED), 0, -1)
    else:
        sizes = range(present + 1, min(rows, MOST_TRIED) + 1)
    for size in sizes:
        if rows % size == 0:
            yield size, rows // size


@dataclass(frozen=True)
class Forecast(ABC):
    """What one stage needs, in bytes and seconds. gpu: None if the catalog does not know it. price:
    of one GPU hour, None for none."""

    stage: Stage
    workload: Run
    rows: row_counts.Rows
    gpu: catalog.Gpu | None = None
    price: float | None = None

    @property
    @abstractmethod
    def model(self) -> str:
        """The model, as a person calls it."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Raises UnknownArchitecture if the model's architecture has no formulas."""

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """Of each GPU."""

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Steps of the optimizer; None if the rows are unknown."""

    @property
    @abstractmethod
    def warmup_steps(self) -> int:
        """Steps with a rising learning rate, as the engine counts them."""

    @abstractmethod
    def time_on(self, gpu: catalog.Gpu) -> Duration | None:
        """None if the rows are unknown."""

    @abstractmethod
    def fitting(self, recipe: Recipe, gpu: catalog.Gpu, budget: float) -> Iterable[Changes]:
        """The changes that bring the memory of a GPU to `budget` bytes, the least loss first.
        recipe: the stage's."""

    @abstractmethod
    def written(self) -> dict[str, int]:
        """The files that the run leaves on disk and fetches, by kind, in bytes; one is a
        `checkpoint`."""

    @abstractmethod
    def beside(self) -> dict[str, int]:
        """Main memory of a machine beyond processes and shared memory, by part."""

    @abstractmethod
    def notes(self) -> Mapping[str, str]:
        """Remarks on the parts of `memory`, and on `steps`, in words."""

    @property
    def download(self) -> int | None:
        """The bytes of the base model that the run fetches; None for a model that is here."""
        return self.written().get("model download")

    def changed(self, **fields: Any) -> Self:
        """The same for a workload with other fields."""
        return replace(self, workload=replace(self.workload, **fields))

    @cached_property
    def time(self) -> Duration | None:
        if self.gpu:
            return self.time_on(self.gpu)
        return None

    @cached_property
    def memory_spread(self) -> constants.Spread:
        """How far planned memory was off on published runs."""
        return constants.spread(self.workload, "allocated")

    @property
    def memory_range(self) -> tuple[int, int]:
        """The range of bytes that each GPU needs, in nine of ten cases, by the possible sizes of
        its tensors."""
        memory = self.memory
        if memory.moment == EVALUATION:
            tensors = memory.evaluation
        else:
            tensors = memory.tensors
        low, high = self.memory_spread.of(tensors)
        beside = memory.total - tensors
        return round(beside + low), round(beside + high)

    @cached_property
    def time_source(self) -> str:
        """The sources of the time's range, in words."""
        card_constants = constants.constants(self.stage.machines.gpu)
        spread = constants.spread(self.workload, "time")
        if self.stage.machines.nodes > 1:
            network = self.workload.network
        else:
            network = None
        disk_is_stated = self.workload.disk_spread == (1.0, 1.0)
        return str(constants.sources().time(card_constants, spread, network, disk_is_stated))

    @property
    def usable(self) -> int | None:
        if self.gpu:
            return usable(self.gpu)
        return None

    @property
    def fits(self) -> bool | None:
        if self.usable is None:
            return None
        return self.memory.total <= self.usable

    @property
    def never_fits(self) -> bool:
        """Whether even the low end of the memory range does not fit. Own runs do not count, so that
        machines agree."""
        if self.usable is None:
            return False
        with constants.taking({}):
            least, _ = replace(self).memory_range
        return least > self.usable

    @cached_property
    def full(self) -> Self:
        """The same with rows that fill `sequence_len`, where the longest row is an estimate; else
        itself."""
        if self.rows.longest_source:
            return self.changed(longest=0)
        return self

    @property
    def shorter_rows(self) -> int | None:
        """A power of two for `sequence_len` that cuts no row, with room for errors; None if it
        saves little."""
        work = self.workload
        if not isinstance(work, Workload) or work.packing or not work.longest:
            return None
        if work.lengths:
            all_rows = work.lengths.longest(work.rows or 1, math.inf)
        else:
            all_rows = 0
        if self.rows.longest_source:
            enough = max(work.longest, all_rows) * MISSED
        else:
            enough = work.longest
        rounded: int = 2 ** math.ceil(math.log2(enough))
        if 2 * rounded <= work.sequence_len:
            return rounded
        return None

    @property
    def gpu_hours(self) -> float | None:
        if self.time:
            return self.time.total_seconds / 3600 * self.stage.machines.world_size
        return None

    @property
    def cost(self) -> float | None:
        if self.gpu_hours is not None and self.price is not None:
            return self.gpu_hours * self.price
        return None

    @property
    def largest_micro_batch(self) -> int | None:
        """The most rows at once that fit the card; None if the card is unknown."""
        room = self.usable
        if room is None:
            return None
        return largest(
            lambda rows: replace(self, workload=self.workload.with_rows(rows)).memory.total <= room
        )

    def offers(self, recipe: Recipe, budget: float) -> list[Changes]:
        """See `fitting`. recipe: the whole one, whose settings the changes name."""
        if not self.gpu:
            return []
        name = self.stage.name
        offered = self.fitting(recipe.of_stage(name), self.gpu, budget)
        offers_by_setting: list[Changes] = []
        for changes in offered:
            offers_by_setting.append(
                {recipe.setting_of(name, setting): value for setting, value in changes.items()}
            )
        return offers_by_setting


def largest(fits: Callable[[int], bool]) -> int:
    """The largest count for which `fits(count)` is true; 0 if there is none, more than `MOST_TRIED`
    if all are."""
    return bisect_left(range(1, 2 * MOST_TRIED), True, key=lambda count: not fits(count))


def named(table: Mapping[str, Any], of: object) -> dict[str, Any]:
    """Attributes of an object by the names of a table, which has the path of each, or another
    table; a number in a path is a place in a tuple. None has only None."""

    def within(owner: Any, name: str) -> Any:
        if owner is None:
            return None
        if name.isdigit():
            return owner[int(name)]
        return getattr(owner, name)

    def found(path: str) -> Any:
        return reduce(within, path.split("."), of)

    attributes = {}
    for name, entry in table.items():
        if isinstance(entry, str):
            attributes[name] = found(entry)
        else:
            attributes[name] = named(entry, of)
    return attributes


def stated(recipe: Recipe) -> dict[str, Any]:
    """The recipe's limits by name."""
    return recipe.settings.get("limits") or {}


def of(
    recipe: Recipe,
    plan: Plan,
    price: float | None = None,
    given_rows: int | None = None,
    look: bool = True,
    any_architecture: bool = False,
) -> list[Forecast]:
    """A Forecast for every stage that there are formulas for. look: whether to read prepared data,
    data files and the hub's cache; without, all machines answer the same. Raises
    UnknownArchitecture for a model without formulas; with any_architecture, only when its figures
    are read."""
    forecasts = []
    prepared = _prepared_folder(recipe, plan) if look else None
    if price is None:
        price = stated(recipe).get("price_per_gpu_hour")
    between = _network(plan)
    for stage in plan.stages:
        if stage.engine not in parts.table("formulas"):
            continue
        rows = row_counts.of(recipe, plan, stage, prepared, given_rows)
        # Loaded when needed: `recipe check` counts its milliseconds.
        module: Any = importlib.import_module(parts.table("formulas")[stage.engine])
        forecast = cast(Formulas, module).of_stage(recipe, stage, rows, look)
        if forecast is None:
            continue
        forecast = replace(forecast, gpu=catalog.gpu(stage.machines.gpu), price=price)
        forecast = forecast.changed(network=between, **_disk(recipe, plan, stage))
        # Raises UnknownArchitecture here, before half of a plan exists.
        assert any_architecture or forecast.counts
        forecasts.append(forecast)
    return forecasts


def _prepared_folder(recipe: Recipe, plan: Plan) -> Path:
    """Where data may be prepared already. A run folder with another name, such as a rehearsal's,
    has its own."""
    usual = Path(RUNS) / recipe.name / "data"
    data_folder = Path(plan.place.data_dir)
    if plan.place.on_cluster or data_folder.parent != Path(plan.place.run_dir):
        return usual
    if data_folder.is_dir() and data_folder != usual.absolute():
        return data_folder
    return usual


def _network(plan: Plan) -> Network:
    """Between the machines of a plan."""
    if plan.place.on_cluster:
        between_pods = plan.site.network
        return network(between_pods.kind, between_pods.gbit_s, between_pods.links)
    if plan.nodes and plan.nodes.network:
        return network("plain", plan.nodes.network.gbit_s, plan.nodes.network.links)
    return network("plain")


def _disk(recipe: Recipe, plan: Plan, stage: Stage) -> dict[str, Any]:
    """The fields of a workload about the claim that a stage writes to, whose speed all machines
    share; empty without one."""
    claim = plan.claim_of(plan.place_of(stage).run_dir)
    if not claim:
        return {}
    index = plan.claims.index(claim)
    spread = ASSUMED
    if recipe.document.lookup(("openshift", "claims", index, "write_mb_s")):
        spread = (1.0, 1.0)
    return {"disk_mb_s": float(claim.write_mb_s), "disk_spread": spread, "shared_disk": True}


def basis(forecasts: list[Forecast], nodes: Iterable[int] = ()) -> str:
    """The sources of the figures, in words. nodes: other counts of machines that are shown."""
    machines = [forecast.stage.machines for forecast in forecasts]
    counts = [*nodes, *(machine.nodes for machine in machines)]
    network = None
    if max(counts, default=1) > 1:
        network = forecasts[0].workload.network
    return constants.basis([machine.gpu for machine in machines], network)


def unknown_architecture(recipe: Recipe, error: catalog.UnknownArchitecture) -> Problem:
    families = ", ".join(filter(has_formulas, catalog.table("families")))
    return recipe.problem(
        "model.base",
        f"There are no formulas for models of type '{error}', so memory and time are unknown.",
        f"`recipe plan --exact` measures a step of the real model. There are formulas for {families}.",
    )


def too_large(recipe: Recipe, forecast: Forecast, allowed: bool = False) -> Problem | None:
    """The verdict on memory, the same in every command, at the line that names the GPU: an error
    where a stage never fits; a note where it may fit, or where only rows of full length do not.
    None if all fits, or the GPU is unknown. allowed: whether `--allow` permits a stage that never
    fits."""
    need = forecast.memory.total
    have = forecast.usable
    full = forecast.full.memory.total
    if forecast.gpu is None or have is None or max(need, full) <= have:
        return None
    severity: Severity
    if forecast.never_fits and not allowed:
        severity = "error"
    else:
        severity = "note"
    message = said("too_large", forecast=forecast, file=recipe.document.file)
    return recipe.problem("machines.gpu", *message, severity=severity, check="gpu-memory")


def notes(recipe: Recipe, forecasts: list[Forecast]) -> Iterator[Problem]:
    """Notes on settings that are valid but hardly intended."""
    for forecast in forecasts:
        stage_recipe = recipe.of_stage(forecast.stage.name)
        name = forecast.stage.name
        work = forecast.workload
        steps = forecast.steps
        if steps is None and work.evaluation_steps:
            often = None
        else:
            often = work.times_in(work.evaluation_steps, steps or 0)
        stopping = stage_recipe.train.get("early_stopping")
        if stopping and often is not None and stopping.patience >= often:
            message = said("patience", name=name, stopping=stopping, often=often, steps=steps)
            yield stage_recipe.note(
                ("train", "early_stopping", "patience"), *message, check="never-stops-early"
            )
        if not steps:
            continue
        # Checkpoints, evaluations and a learning rate for more steps than the stage makes.
        keep = stage_recipe.train.get("keep_checkpoints") or 0
        tenth = max(1, steps // 10)
        count = f"{steps:,} {plural('step', steps)}"
        if keep > max(2, steps):
            message = (
                f"Stage `{name}` makes {count}, but should keep {keep:,} checkpoints.",
                "Write `keep_checkpoints: 2`, the best one and the latest.",
            )
            yield stage_recipe.note(("train", "keep_checkpoints"), *message, check="checkpoints")
        intervals = {
            "eval_steps": ("evaluation", work.evaluation_steps),
            "save_steps": ("checkpoint", work.save_steps),
        }
        unreached = {}
        for setting, (event, interval) in intervals.items():
            if interval > steps:
                unreached[setting] = (event, interval)
        if unreached:
            message = said(
                "never_reached", name=name, count=count, unreached=unreached, tenth=tenth
            )
            yield stage_recipe.note(
                ("train", next(iter(unreached))), *message, check="interval-unreached"
            )
        if forecast.warmup_steps >= steps:
            warmup = forecast.warmup_steps
            rate = work.learning_rate
            last = rate * steps / warmup
            message = (
                f"The learning rate rises over {warmup:,} steps, but stage `{name}` has {steps:,}. It never reaches {rate:g}, and ends at {last:.2g}.",
                f"Write `warmup_steps: {tenth}`, a tenth of the steps, unless you want such a slow start.",
            )
            yield stage_recipe.note(("train", "warmup_steps"), *message, check="warmup-unfinished")
