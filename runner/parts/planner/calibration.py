"""Calibration: what a run took beside what was planned, shown at its end, and stored for later plans.

The store holds pace and allocator slack of this person's own runs, by card, in the user's configuration folder. `recipe
plan` alone reads it (`constants.taking`). What is checked, rendered and submitted is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import catalog
from runner.catalog.hardware import PROCESSOR
from runner.check.validate import changed
from runner.parts.planner import constants
from runner.parts.planner.constants import Constants
from runner.plan import Plan, Prediction
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run import run_manifest as planned
from runner.run.run_folder import RunFolder, find, require_of
from runner.run.run_manifest import RunManifest
from runner.run.stage_folder import StageFolder
from runner.tools.files import Record, settings_folder
from runner.tools.problem import Stop
from runner.trainer.records import Summary


@dataclass(frozen=True)
class Beside:
    """A stage that has trained on a GPU, beside what was planned for it."""

    run: RunFolder
    foreseen: Prediction
    summary: Summary

    @property
    def planned(self) -> float:
        """Seconds of a step by the formulas alone, or the second run would be compared with the first; 0 if unknown."""
        return self.foreseen.step_seconds or 0.0

    def __str__(self) -> str:
        """In words, for people who read about the run."""
        told, seen = [], self.foreseen
        if (taken := self.summary.step_seconds) and self.planned:
            told.append(
                f"a step took {units.speed(taken)} s, and {units.speed(self.planned)} were planned ({_than(taken / self.planned)})"
            )
        if (taken := self.summary.gpu_memory_gib) and seen.tensors:
            planned = seen.tensors / constants.GIB
            told.append(
                f"tensors took {taken:.1f} GiB of a GPU, and {planned:.1f} were planned ({_than(taken / planned)})"
            )
        return f"{seen.stage}: {'; '.join(told)}"

    def observed(self) -> Observed:
        """What is kept. Waiting is the network's, and no pace of the card."""
        waiting = self.foreseen.waiting_seconds or 0.0
        gib = constants.GIB
        return Observed(
            run=f"{self.run.state.id or self.run.path}/{self.foreseen.stage}",
            gpu=self.foreseen.label,
            seconds=max(0.0, (self.summary.step_seconds or 0.0) - waiting),
            planned=max(0.0, self.planned - waiting),
            allocated=round((self.summary.gpu_memory_gib or 0) * gib),
            reserved=round((self.summary.gpu_reserved_gib or 0) * gib),
        )


def _than(ratio: float) -> str:
    more = round(100 * (ratio - 1))
    return f"{'+' if more > 0 else '−' if more < 0 else ''}{abs(more)} %"


def beside(run: RunFolder, plan: Plan, planned: Iterable[Prediction]) -> list[Beside]:
    """The stages of a run that have trained on the card that they were planned for, each beside its plan. Empty for a
    rehearsal."""
    known = {each.stage: each for each in planned} if run.kind == "run" else {}
    found = []
    for stage in plan.stages:
        summary, foreseen = StageFolder(plan, stage).summary, known.get(stage.name)
        # What was changed since, or by `--set`, was never planned so.
        if not summary or foreseen is None or summary.fingerprint != plan.fingerprint:
            continue
        card = catalog.label_of(summary.gpu) if summary.gpu else PROCESSOR
        if card == foreseen.label and (summary.gpu or (foreseen.step_seconds and summary.step_seconds)):
            found.append(Beside(run, foreseen, summary))
    return found


def _by_recipe(recipe: Recipe, run: RunFolder) -> list[Beside]:
    """As it was planned before the run, where that is on record as it is compared here."""
    plan, on_record = inference.plan_of(recipe, run), RunManifest.read(run.path)
    if on_record.fingerprint == recipe.fingerprint and all(each.label for each in on_record.foreseen):
        return beside(run, plan, on_record.foreseen)
    return beside(run, plan, planned.predictions(changed(recipe, run.overrides)[0], plan))


def after(recipe: Recipe, run: RunFolder) -> Iterator[str]:
    """What to say of a run on this machine, once it is done; it is kept where the configuration folder can be
    written."""
    return _kept(_by_recipe(recipe, run))


def after_plan(plan: Plan, run: RunFolder) -> Iterator[str]:
    """The same without the recipe: the planned values are on record."""
    return _kept(beside(run, plan, RunManifest.read(run.path).foreseen))


def _kept(found: Sequence[Beside]) -> Iterator[str]:
    yield from map(str, found)
    if found:
        try:
            keep(each.observed() for each in found)
        except OSError:
            return  # the run is done in any case


def learn(recipe: Recipe, runs: Sequence[str]) -> None:
    """Keeps what the runs in these folders took.

    Raises Stop if one is not a run, or has trained nothing that can be learned from, or nothing can be kept.
    """
    observed: list[Observed] = []
    for name in runs:
        run = find(recipe.name, name)
        require_of(run, recipe.name, "Name the recipe of this run.")
        found = _by_recipe(recipe, run)
        if not found:
            raise Stop(
                f"`{name}` has no measurements to use.",
                "A run counts if one of its stages has trained on the recipe's GPU with the recipe's current settings (add `--set` as in the run). A rehearsal does not count.",
            )
        observed += [each.observed() for each in found]
    try:
        keep(observed)
    except OSError as error:
        raise Stop(
            f"The measurements cannot be saved in `{settings_folder()}`: {error.strerror}.",
            "Set XDG_CONFIG_HOME to a folder where you may write.",
        ) from None


# Of a card, the newest.
MOST_RUNS = 50
# With fewer, what other people's runs varied by is the better guess.
ENOUGH = 19


@dataclass(frozen=True)
class Observed(Record):
    """One stage of a run beside its plan. run: what tells it from others. gpu: the card's label. seconds: of a step,
    without what the plan thinks that GPUs wait for each other; planned: by the formulas alone. allocated, reserved: the
    most that PyTorch's tensors, and its allocator, took of a GPU, bytes; 0 if not measured."""

    run: str = ""
    gpu: str = ""
    seconds: float = 0.0
    planned: float = 0.0
    allocated: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class Learned(Record):
    FILE = "learned.json"
    runs: tuple[Observed, ...] = ()


def keep(observed: Iterable[Observed]) -> Path:
    """Adds runs to the file, instead of what it knew of the same ones; gives where it is. Raises OSError if it cannot
    be written."""
    new = [each for each in observed if each.run and each.gpu]
    known = {each.run: each for each in (*Learned.read(settings_folder()).runs, *new)}
    # What comes again is the newest.
    ordered = [*(each for name, each in known.items() if name not in {one.run for one in new}), *new]
    kept: list[Observed] = []
    for gpu in dict.fromkeys(each.gpu for each in ordered):
        kept += [each for each in ordered if each.gpu == gpu][-MOST_RUNS:]
    settings_folder().mkdir(parents=True, exist_ok=True)
    Learned(tuple(kept)).write(settings_folder())
    return settings_folder() / Learned.FILE


def learned() -> dict[str, Constants]:
    """What the file says of each card that it knows."""
    runs = [each for each in Learned.read(settings_folder()).runs if each.seconds > 0 and each.planned > 0]
    return {gpu: _of([each for each in runs if each.gpu == gpu], gpu) for gpu in {each.gpu for each in runs}}


def _of(runs: list[Observed], gpu: str) -> Constants:
    known = constants.from_catalog(gpu)
    count = f"{len(runs)} of your own runs" if len(runs) > 1 else "one of your own runs"
    found = constants.from_cells([_cell(each, known) for each in runs], f"{gpu}, {count}")
    return replace(found, context=known.context, spread=found.spread if len(runs) >= ENOUGH else None)


def _cell(run: Observed, known: Constants) -> dict[str, Any]:
    """A run as benchmarks/memory_on_gpu.py would have it. If memory was not measured, slack is what the catalog
    knows."""
    allocated = run.allocated or constants.GIB
    reserved = max(run.reserved, allocated) if run.allocated else round((1 + known.slack) * allocated)
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "driver_bytes": reserved + known.context,
        "micro_batch_seconds": run.seconds,
        "planned": {"micro_batch_seconds": run.planned},
    }
