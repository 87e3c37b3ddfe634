"""Learning: what a run took beside what was planned, said at its end, and kept for plans to come (`estimate/learned.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner import catalog
from runner.check.validate import changed
from runner.estimate import forecast, learned, measured
from runner.estimate.duration import Duration
from runner.estimate.forecast import Forecast
from runner.estimate.learned import Observed
from runner.estimate.parameters import UnknownArchitecture
from runner.files import settings_folder
from runner.problem import Stop
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.runs import ask
from runner.runs.run_folder import RunFolder, find, require_of
from runner.runs.stage_folder import StageFolder
from runner.training.summary import Summary


@dataclass(frozen=True)
class Beside:
    """A stage that has trained on a GPU, beside its plan by the formulas alone."""

    run: RunFolder
    forecast: Forecast
    time: Duration | None
    summary: Summary

    @property
    def gpu(self) -> str:
        return catalog.label_of(self.summary.gpu)

    @property
    def planned(self) -> float:
        """Seconds of a step; 0 where they cannot be told."""
        return self.time.step_seconds if self.time else 0.0

    def __str__(self) -> str:
        """In words, for whoever reads of the run."""
        told, memory = [], self.forecast.memory
        if (taken := self.summary.step_seconds) and self.planned:
            told.append(
                f"a step took {units.speed(taken)} s, and {units.speed(self.planned)} were planned ({_than(taken / self.planned)})"
            )
        if taken := self.summary.gpu_memory_gib:
            planned = memory.tensors / measured.GIB
            told.append(
                f"tensors took {taken:.1f} GiB of a GPU, and {planned:.1f} were planned ({_than(taken / planned)})"
            )
        return f"{self.forecast.stage.name}: {'; '.join(told)}"

    def observed(self) -> Observed:
        """What is kept. Waiting is the network's, and no pace of the card."""
        waiting = self.time.waiting_seconds if self.time else 0.0
        gib = measured.GIB
        return Observed(
            run=f"{self.run.state.id or self.run.path}/{self.forecast.stage.name}",
            gpu=self.gpu,
            seconds=max(0.0, (self.summary.step_seconds or 0.0) - waiting),
            planned=max(0.0, self.planned - waiting),
            allocated=round((self.summary.gpu_memory_gib or 0) * gib),
            reserved=round((self.summary.gpu_reserved_gib or 0) * gib),
            planned_allocated=self.forecast.memory.tensors,
        )


def _than(ratio: float) -> str:
    more = round(100 * (ratio - 1))
    return f"{'+' if more > 0 else '−' if more < 0 else ''}{abs(more)} %"


def beside(recipe: Recipe, run: RunFolder) -> list[Beside]:
    """The stages of a run that have trained on the card that they were planned for, each beside its plan. Empty for a
    rehearsal, and where there are no formulas for the model."""
    if run.kind != "run":
        return []
    plan, here = ask.plan_of(recipe, run), changed(recipe, run.overrides)[0]
    found = []
    # By the formulas alone, or the second run would be compared with the first.
    with measured.taking({stage.machines.gpu: measured.ASSUMED for stage in plan.stages}):
        try:
            forecasts = forecast.of(here, plan)
        except UnknownArchitecture:
            return []
        for each in forecasts:
            summary = StageFolder(plan, each.stage).summary
            # What was changed since, or by `--set`, was never planned so.
            same = summary is not None and summary.fingerprint == plan.fingerprint
            if summary and same and summary.gpu and catalog.label_of(summary.gpu) == each.stage.machines.gpu:
                found.append(Beside(run, each, each.time, summary))
    return found


def after(recipe: Recipe, run: RunFolder) -> Iterator[str]:
    """What to say of a run on this machine, once it is done; it is kept where the configuration folder can be written."""
    found = beside(recipe, run)
    yield from map(str, found)
    if found:
        try:
            learned.keep(each.observed() for each in found)
        except OSError:
            return  # a run is done all the same


def learn(recipe: Recipe, runs: Sequence[str]) -> None:
    """Keeps what the runs in these folders took.

    Raises Stop where one is no run, or has trained nothing that can be learned from, or nothing can be kept.
    """
    observed: list[Observed] = []
    for name in runs:
        run = find(recipe.name, name)
        require_of(run, recipe.name, "Name the recipe that it is a run of.")
        found = beside(recipe, run)
        if not found:
            raise Stop(
                f"There is nothing to learn from `{name}`.",
                "A run counts once a stage of it has trained on the GPU that the recipe names, with the settings that the recipe "
                "has now (give `--set` as the run had it); a rehearsal does not.",
            )
        observed += [each.observed() for each in found]
    try:
        learned.keep(observed)
    except OSError as error:
        raise Stop(
            f"What the runs took cannot be kept in `{settings_folder()}`: {error.strerror}.",
            "Let XDG_CONFIG_HOME name a folder that can be written.",
        ) from None
