"""Forecast: everything that a plan says about a recipe. The one definition that `plan`, `check` and reports share."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import catalog, parts
from runner.catalog import Gpu
from runner.parts.planner import constants, published_runs
from runner.parts.planner import row_counts as counted
from runner.parts.planner.formulas import MOST_TRIED, Advice, Counts, Formulas
from runner.parts.planner.memory import EVALUATION, Memory, usable
from runner.parts.planner.parameters import FAMILIES, UnknownArchitecture
from runner.parts.planner.published_runs import Spread
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.workload import ASSUMED, MULTIPLE, Network, Run, Workload, network, times_in
from runner.plan import RUNS, Plan, Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.parts.planner.duration import Duration
    from runner.parts.planner.preparing import Preparation


@dataclass(frozen=True)
class Forecast:
    """What one stage needs. formulas: of its engine, for its workload. gpu: None if the catalog does not know it.
    price: of one GPU hour, None for none."""

    stage: Stage
    formulas: Formulas
    rows: Rows
    gpu: Gpu | None
    price: float | None

    @property
    def workload(self) -> Run:
        return self.formulas.work

    @cached_property
    def counts(self) -> Counts:
        return self.formulas.counts

    @cached_property
    def memory(self) -> Memory:
        return self.formulas.memory

    @property
    def steps(self) -> int | None:
        """Steps of the optimizer; None if the rows are unknown."""
        return self.formulas.steps

    @property
    def warmup_steps(self) -> int:
        """Steps with a rising learning rate, as the engine counts them."""
        return self.formulas.warmup_steps

    @cached_property
    def time(self) -> Duration | None:
        return self.formulas.time(self.gpu) if self.gpu else None

    @cached_property
    def memory_spread(self) -> Spread:
        """How far planned memory was off on published runs."""
        return published_runs.allocated(self.workload)

    @property
    def memory_range(self) -> tuple[int, int]:
        """The range of bytes that each GPU needs, in nine of ten cases, by the possible sizes of its tensors."""
        memory = self.memory
        tensors = memory.evaluation if memory.moment == EVALUATION else memory.tensors
        low, high = self.memory_spread.of(tensors)
        return round(memory.total - tensors + low), round(memory.total - tensors + high)

    @cached_property
    def time_source(self) -> str:
        """What the range of the time rests on, in words."""
        own, published = constants.constants(self.stage.machines.gpu), str(published_runs.time(self.workload))
        said = published if not own.source else f"measured: {own.source}"
        if own.source and own.spread is None:
            said = f"at the pace of {own.source}; {published}"
        network, stated = self.workload.network, self.workload.disk_spread == (1.0, 1.0)
        if self.stage.machines.nodes > 1 and network.assumed:
            said += f"; {network.least:g} to {network.most:g} Gbit/s between machines"
        return f"{said}; half to twice as long to start{'' if stated else ', read and save'}"

    @property
    def usable(self) -> int | None:
        return usable(self.gpu) if self.gpu else None

    @property
    def fits(self) -> bool | None:
        return None if self.usable is None else self.memory.total <= self.usable

    @property
    def never_fits(self) -> bool:
        """Whether it does not fit even where its tensors turn out as small as in nine of ten published runs. Own runs do
        not count here, so that every command and every machine answers the same."""
        with constants.taking({}):
            return self.usable is not None and replace(self).memory_range[0] > self.usable

    def with_longest(self, tokens: int) -> Forecast:
        """The same for rows of language of which the longest has this many tokens; with 0, rows fill `sequence_len`."""
        return replace(self, formulas=self.formulas.changed(longest=tokens))

    @cached_property
    def full(self) -> Forecast:
        """The same with rows that fill `sequence_len`, where the longest row is an estimate; else itself."""
        return self.with_longest(0) if self.rows.longest_source else self

    @property
    def most_row_tokens(self) -> int | None:
        """Tokens of the longest row that the card may have room for; None if it may have room for every row."""
        work = self.workload
        if not isinstance(work, Workload) or work.packing or not self.with_longest(0).never_fits:
            return None
        return MULTIPLE * largest(lambda count: not self.with_longest(count * MULTIPLE).never_fits)

    @property
    def shorter_rows(self) -> int | None:
        """A power of two for `sequence_len` that cuts no row, with room for what an estimate may miss; None if rows are
        not much shorter."""
        work = self.workload
        if not isinstance(work, Workload) or work.packing or not work.longest:
            return None
        all_rows = work.lengths.longest(work.rows or 1, math.inf) if work.lengths else 0
        enough = max(work.longest, all_rows) * MISSED if self.rows.longest_source else work.longest
        rounded: int = 2 ** math.ceil(math.log2(enough))
        return rounded if 2 * rounded <= work.sequence_len else None

    @property
    def gpu_hours(self) -> float | None:
        return self.time.total_seconds / 3600 * self.stage.machines.world_size if self.time else None

    @property
    def cost(self) -> float | None:
        return self.gpu_hours * self.price if self.gpu_hours is not None and self.price is not None else None

    @property
    def largest_micro_batch(self) -> int | None:
        """The most rows at once that the card has room for; 0 if not even one is, None if the card is unknown."""
        if (room := self.usable) is None:
            return None

        def taken(rows: int) -> int:
            evaluation = {"evaluation_batch_size": rows} if self.workload.evaluation_follows else {}
            return self.formulas.changed(micro_batch_size=rows, **evaluation).memory.total

        return largest(lambda rows: taken(rows) <= room)

    def offers(self, recipe: Recipe, budget: float) -> Sequence[Advice[Run]]:
        """The changes that bring the memory of a GPU to `budget` bytes by these formulas, those that lose least
        first."""
        return self.formulas.offers(recipe, self.stage, self.gpu, budget) if self.gpu else []

    def on(self, count: int) -> Forecast:
        """The same stage on another number of machines; one GPU shares nothing."""
        if count == self.stage.machines.nodes:
            return self
        machines = replace(self.stage.machines, nodes=count, uneven=())
        way = self.workload.sharding
        if not (machines.world_size == 1 and self.workload.offload):
            way = "none" if machines.world_size == 1 else "ddp" if way == "none" else way
        return replace(
            self,
            formulas=self.formulas.changed(machines=machines, sharding=way),
            stage=replace(self.stage, machines=machines),
        )


# An estimate of the longest row is multiplied by this before rows are cut by it.
MISSED = 1.25


def largest(fits: Callable[[int], bool]) -> int:
    """The largest count for which `fits(count)` is true; 0 if it is for none, more than `MOST_TRIED` where it is for
    all."""
    low, high = 0, 1
    while high <= MOST_TRIED and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def of(
    recipe: Recipe,
    plan: Plan,
    price: float | None = None,
    given_rows: int | None = None,
    look: bool = True,
    any_architecture: bool = False,
) -> list[Forecast]:
    """A Forecast for every stage that there are formulas for.

    look: whether data prepared here, data files and the hub's cache may be asked; without, the answer is the same on
    every machine. Raises UnknownArchitecture if a model's architecture has no formulas; any_architecture: not here, but
    where its figures are asked for.
    """
    forecasts = []
    run_dir = Path(RUNS) / recipe.name if look else None
    if price is None:
        price = (recipe.settings.get("limits") or {}).get("price_per_gpu_hour")
    for stage in plan.stages:
        if stage.engine not in parts.table("formulas"):
            continue
        rows = counted.of(recipe, plan, stage, run_dir, given_rows)
        # Loaded when needed: `recipe check` counts its milliseconds.
        module = importlib.import_module(parts.table("formulas")[stage.engine])
        formulas: Formulas | None = module.of_stage(recipe, stage, rows, look)
        if formulas is not None:
            formulas = formulas.changed(network=_network(plan), **_disk(recipe, plan, stage))
            forecast = Forecast(stage, formulas, rows, catalog.gpu(stage.machines.gpu), price)
            assert any_architecture or forecast.counts  # UnknownArchitecture comes here, and not from half of a plan
            forecasts.append(forecast)
    return forecasts


def _network(plan: Plan) -> Network:
    """The network between the machines: the recipe's values, or those of its kind."""
    own = (plan.site if plan.place.on_cluster else plan.nodes).get("network") or {}
    kind = own.get("kind") or ("ethernet" if plan.place.on_cluster else "plain")
    return network(kind, own.get("gbit_s"), own.get("links"))


def _disk(recipe: Recipe, plan: Plan, stage: Stage) -> dict[str, Any]:
    """How fast the claim is that a stage writes to, and that machines share it; each has its own if it is none."""
    if (claim := plan.claim_of(plan.place_of(stage).run_dir)) is None:
        return {}
    where = ("openshift", "claims", list(plan.site["claims"]).index(claim), "write_mb_s")
    speed, stated = float(claim["write_mb_s"]), recipe.document.lookup(where)
    return {"disk_mb_s": speed, "disk_spread": (1.0, 1.0) if stated else ASSUMED, "shared_disk": True}


def basis(forecasts: list[Forecast], nodes: Iterable[int] = ()) -> str:
    """What the figures rest on, for people. nodes: other counts of machines that are shown."""
    said = constants.basis(forecast.stage.machines.gpu for forecast in forecasts)
    if max((*nodes, *(forecast.stage.machines.nodes for forecast in forecasts)), default=1) == 1:
        return said
    network = forecasts[0].workload.network
    if not network.assumed:
        return f"{said} Each machine has {network.title}, according to the recipe."
    return f"{said} Assumed between machines: {network.title}. `gbit_s` and `links` under `network` describe yours."


def unknown_architecture(recipe: Recipe, error: UnknownArchitecture) -> Problem:
    return recipe.document.problem(
        ("model", "base"),
        f"There are no formulas for models of type '{error}', so memory and time are unknown.",
        f"`recipe plan --exact` measures a step of the real model. There are formulas for {', '.join(FAMILIES)}.",
    )


# What to do about something that several lines of a recipe decide.
OFFERED = "`recipe plan` suggests changes with their time and cost, and `recipe plan --apply N` applies one."


def too_large(recipe: Recipe, forecast: Forecast, known_better: bool = False) -> Problem | None:
    """The verdict on memory, the same in every command, at the line that names the GPU: an error where a stage never
    fits, a note if it may fit, and where only rows of full length do not. None if all fits, or the GPU is unknown.

    known_better: whether somebody has allowed what never fits."""
    need, have, full = forecast.memory.total, forecast.usable, forecast.full.memory.total
    if forecast.gpu is None or have is None or max(need, full) <= have:
        return None
    work, source, count = forecast.workload, forecast.rows.longest_source, f"recipe prepare {recipe.document.file}"
    card = f"on each GPU, but {forecast.gpu.title} has {units.both(have)}."
    message, hint = f"Stage `{forecast.stage.name}` needs {units.both(need)} {card}", OFFERED
    if isinstance(work, Workload) and need <= have:
        message = f"Stage `{forecast.stage.name}` fits for rows of {work.most_tokens:,} tokens ({source}). "
        message += f"With rows of {work.sequence_len:,} tokens it needs {units.both(full)} {card}"
        shorter = forecast.shorter_rows
        cut = f", or write `sequence_len: {shorter}`, which cuts no row by this estimate" if shorter else ""
        hint = f"Run `{count}` to count every row{cut}."
    elif isinstance(work, Workload) and not work.packing and (source or not work.longest):
        hint += f" Shorter rows need less: run `{count}` to count them."
    severity = "error" if forecast.never_fits and not known_better else "note"
    return recipe.document.problem(("machines", "gpu"), message, hint, severity=severity)


def notes(recipe: Recipe, forecasts: list[Forecast]) -> Iterator[Problem]:
    """What holds and is still hardly meant: a learning rate that never stops rising, evaluations and checkpoints that
    never come."""
    for forecast in forecasts:
        steps, rising = forecast.steps, forecast.warmup_steps
        section = next(name for name in (forecast.stage.name, "pretrain", "train") if name in recipe.settings)
        yield from _patient(recipe, forecast, section, steps)
        if not steps:
            continue
        yield from _never(recipe, forecast, section, steps)
        if rising < steps:
            continue
        rate = forecast.workload.learning_rate
        yield recipe.document.problem(
            (section, "warmup_steps"),
            f"The learning rate rises over {rising:,} steps, but stage `{forecast.stage.name}` has {steps:,}. It never reaches {rate:g}, and ends at {rate * steps / rising:.2g}.",
            f"Write `warmup_steps: {max(1, steps // 10)}`, a tenth of the steps, unless you want so gentle a run.",
            severity="note",
        )


def _never(recipe: Recipe, forecast: Forecast, section: str, steps: int) -> Iterator[Problem]:
    work, keep = forecast.workload, recipe.settings[section].get("keep_checkpoints") or 0
    if keep > steps:
        yield recipe.document.problem(
            (section, "keep_checkpoints"),
            f"Stage `{forecast.stage.name}` makes {steps:,} steps, but should keep {keep:,} checkpoints.",
            "Write `keep_checkpoints: 2`, the best one and the latest.",
            severity="note",
        )
    every = {"eval_steps": work.evaluation_steps, "save_steps": work.save_steps}
    unreached = [name for name, first in every.items() if first > steps]
    if unreached:
        whats = {"eval_steps": "evaluation", "save_steps": "checkpoint"}
        yield recipe.document.problem(
            (section, unreached[0]),
            f"Stage `{forecast.stage.name}` ends after {steps:,} steps, before its first "
            f"{' and its first '.join(whats[name] for name in unreached)} at step {every[unreached[0]]:,}.",
            f"Write {' and '.join(f'`{name}: {max(1, steps // 10)}`' for name in unreached)}, a tenth of the steps, unless you want that.",
            severity="note",
        )


def _patient(recipe: Recipe, forecast: Forecast, section: str, steps: int | None) -> Iterator[Problem]:
    """Early stopping that comes after the end."""
    stopping, work = recipe.settings[section].get("early_stopping"), forecast.workload
    if not stopping or (steps is None and work.evaluation_steps):
        return
    evaluations = times_in(work.evaluation_steps, work, steps or 0)
    if stopping.patience >= evaluations:
        often = (
            f"`eval_steps: {max(1, steps // 10)}`, a tenth of the steps" if steps else "`eval_steps`, for more of them"
        )
        yield recipe.document.problem(
            (section, "early_stopping", "patience"),
            f"Early stopping waits for {stopping.patience} evaluations without improvement, but stage `{forecast.stage.name}` has {evaluations}, so it never ends early.",
            f"Lower `patience`, or write {often}.",
            severity="note",
        )


def late(recipe: Recipe, forecasts: list[Forecast], preparations: Sequence[Preparation] = ()) -> Iterator[Problem]:
    """What may end before it is done, where it takes as long as the plan thinks likely: training at the recipe's own
    limit, a stage's job at the cluster's deadline."""
    times, (stated, limit) = [each.time for each in forecasts if each.time], _time_limit(recipe)
    usual, longest = sum(time.total_seconds for time in times), sum(time.range_seconds[1] for time in times)
    # Beyond that the limit is broken, which is no note.
    if usual <= limit < longest:
        yield recipe.document.problem(
            ("limits", "time"),
            f"Training may take up to {units.duration(longest)}, but its limit is {stated}. It would end early, with its best model so far.",
            f"Write `time: {units.at_least(longest)}`, unless you want that.",
            severity="note",
            mending=units.at_least(longest),
        )
    yield from ended_by_deadline(recipe, forecasts, preparations)


def _time_limit(recipe: Recipe) -> tuple[str | None, float]:
    """As the recipe has it, and in seconds."""
    stated = (recipe.settings.get("limits") or {}).get("time")
    return stated, units.seconds(stated) if stated else math.inf


# No range of the time reaches this multiple of its middle; calculating it takes longer than the middle itself.
WIDEST = 5


def ended_by_deadline(
    recipe: Recipe, forecasts: list[Forecast], preparations: Sequence[Preparation] = ()
) -> Iterator[Problem]:
    """A stage's job that the cluster may end before it is done; of several the longest, because they have one
    deadline."""
    hours = (recipe.settings.get("openshift") or {}).get("deadline_hours")
    if hours is None:
        return
    _, limit = _time_limit(recipe)
    late: list[tuple[Duration | Preparation, str]] = [
        (time, forecast.stage.name)
        for forecast in forecasts
        # At its own limit training stops by itself.
        if (time := forecast.time)
        and time.total_seconds * WIDEST > hours * 3600
        and min(time.range_seconds[1], limit) > hours * 3600
    ]
    late += [(each, each.stage) for each in preparations if each.range_seconds[1] > hours * 3600]
    if late:
        longest, name = max(late, key=lambda one: one[0].range_seconds[1])
        most = longest.range_seconds[1]
        others = f", and {len(late) - 1} other{'s' if len(late) > 2 else ''} too long as well" if len(late) > 1 else ""
        enough = math.ceil(most / 3600 * 1.1)
        trains = name not in {each.stage for each in preparations}
        below = (
            ", or set `limits.time` below it, so that training stops by itself and saves its model" if trains else ""
        )
        yield recipe.document.problem(
            ("openshift", "deadline_hours"),
            f"Stage `{name}` should take {units.duration(longest.total_seconds)}, at most {units.duration(most)}{others}, but its job is stopped after {hours:g} hours.",
            f"Write `deadline_hours: {enough}` or more{below}.",
            severity="note",
            mending=enough,
        )
