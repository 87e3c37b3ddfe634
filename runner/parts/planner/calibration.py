"""Calibration: a run's measurements beside its predictions, shown at its end and stored for later
plans.

The store, in the user's configuration folder, has the pace and the allocator slack of the user's
own runs, by card. Only `recipe plan` reads it (`constants.taking`), so that checks, rendered files
and jobs are the same on every machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from runner import catalog
from runner.catalog.hardware import GIB, PROCESSOR
from runner.check.validate import changed
from runner.parts.planner import constants
from runner.plan import Plan, Prediction
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.run_folder import RunFolder, StageFolder, find, require_of
from runner.run.run_manifest import RunManifest
from runner.scenarios import forecasting
from runner.tools.files import Record, settings_folder
from runner.tools.problem import Stop
from runner.trainer.records import Summary

# The newest runs of each card are kept.
MOST_RUNS = 50


def beside(
    run: RunFolder, plan: Plan, planned: Iterable[Prediction]
) -> list[tuple[Prediction, Summary]]:
    """The stages of a run that trained on the card of their plan, each with its prediction. Empty
    for a rehearsal."""
    if run.kind != "rehearsal":
        predictions = {prediction.stage: prediction for prediction in planned}
    else:
        predictions = {}
    compared = []
    for stage in plan.stages:
        summary = StageFolder(plan, stage).summary
        foreseen = predictions.get(stage.name)
        # The plan is of the recipe without later changes and `--set`.
        if not summary or foreseen is None or summary.fingerprint != plan.fingerprint:
            continue
        if summary.gpu:
            card = catalog.label_of(summary.gpu)
        else:
            card = PROCESSOR
        if card == foreseen.label and (
            summary.gpu or (foreseen.step_seconds and summary.step_seconds)
        ):
            compared.append((foreseen, summary))
    return compared


def _by_recipe(recipe: Recipe, run: RunFolder) -> list[tuple[Prediction, Summary]]:
    """With the predictions from before the run, if they are on record and comparable; else with new
    ones."""
    plan = inference.plan_of(recipe, run)
    on_record = RunManifest.read(run.path)
    if on_record.fingerprint == recipe.fingerprint and all(
        prediction.label for prediction in on_record.foreseen
    ):
        return beside(run, plan, on_record.foreseen)
    return beside(run, plan, forecasting().predictions(changed(recipe, run.overrides)[0], plan))


def after(recipe: Recipe, run: RunFolder) -> Iterator[str]:
    """The comparison of a run on this machine, in words. It is also stored, if the configuration
    folder is writable."""
    return _kept(run, _by_recipe(recipe, run))


def after_plan(plan: Plan, run: RunFolder) -> Iterator[str]:
    """The same without the recipe, from the recorded predictions."""
    return _kept(run, beside(run, plan, RunManifest.read(run.path).foreseen))


def _kept(run: RunFolder, compared: Sequence[tuple[Prediction, Summary]]) -> Iterator[str]:
    for foreseen, summary in compared:
        yield str(constants.sources().beside(foreseen, summary))
    if compared:
        with suppress(OSError):  # the run is done in any case
            keep(Observed.of_stage(run, *pair) for pair in compared)


def learn(recipe: Recipe, runs: Sequence[str]) -> None:
    """Stores the measurements of these runs. Raises Stop if there are none, or if they cannot be
    stored."""
    observed: list[Observed] = []
    for name in runs:
        run = find(recipe.name, name)
        require_of(run, recipe.name, "Name the recipe of this run.")
        compared = _by_recipe(recipe, run)
        if not compared:
            raise Stop(
                f"`{name}` has no measurements to use.",
                "A run counts if one of its stages has trained on the recipe's GPU with the recipe's current settings (add `--set` as in the run). A rehearsal does not count.",
            )
        for pair in compared:
            observed.append(Observed.of_stage(run, *pair))
    try:
        keep(observed)
    except OSError as error:
        raise Stop(
            f"The measurements cannot be saved in `{settings_folder()}`: {error.strerror}.",
            "Set XDG_CONFIG_HOME to a folder where you may write.",
        ) from None


@dataclass(frozen=True)
class Observed(Record):
    """One stage of a run beside its plan. run: its identity. gpu: the card's label. seconds: of a
    step, without the planned waiting for other GPUs; planned: by the formulas alone. allocated,
    reserved: the peak of PyTorch's tensors and of its allocator on a GPU, bytes; 0 if not
    measured."""

    run: str = ""
    gpu: str = ""
    seconds: float = 0.0
    planned: float = 0.0
    allocated: int = 0
    reserved: int = 0

    @classmethod
    def of_stage(cls, run: RunFolder, foreseen: Prediction, summary: Summary) -> Self:
        """Without waiting, which depends on the network and not on the card."""
        waiting = foreseen.waiting_seconds or 0.0
        return cls(
            run=f"{run.state.id or run.path}/{foreseen.stage}",
            gpu=foreseen.label,
            seconds=max(0.0, (summary.step_seconds or 0.0) - waiting),
            # By the formulas alone, so that every run is compared with the same.
            planned=max(0.0, (foreseen.step_seconds or 0.0) - waiting),
            allocated=round((summary.gpu_memory_gib or 0) * GIB),
            reserved=round((summary.gpu_reserved_gib or 0) * GIB),
        )


@dataclass(frozen=True)
class Learned(Record):
    FILE = "learned.json"
    runs: tuple[Observed, ...] = ()


def keep(observed: Iterable[Observed]) -> None:
    """Adds runs to the file, which replace older entries of the same runs. Raises OSError if it
    cannot be written."""
    new = {stage.run: stage for stage in observed if stage.run and stage.gpu}
    old = {}
    for stage in Learned.read(settings_folder()).runs:
        if stage.run not in new:
            old[stage.run] = stage
    ordered = [*old.values(), *new.values()]
    kept: list[Observed] = []
    for gpu in dict.fromkeys(stage.gpu for stage in ordered):
        runs = [stage for stage in ordered if stage.gpu == gpu]
        kept += runs[-MOST_RUNS:]
    settings_folder().mkdir(parents=True, exist_ok=True)
    Learned(tuple(kept)).write(settings_folder())


def learned() -> dict[str, constants.Constants]:
    """The constants of each card in the file."""
    runs = []
    for stage in Learned.read(settings_folder()).runs:
        if stage.seconds > 0 and stage.planned > 0:
            runs.append(stage)
    by_card = {}
    for gpu in {stage.gpu for stage in runs}:
        of_card = [stage for stage in runs if stage.gpu == gpu]
        of_catalog = constants.from_catalog(gpu)
        if len(of_card) > 1:
            count = f"{len(of_card)} of your own runs"
        else:
            count = "one of your own runs"
        # If memory was not measured, slack is the catalog's.
        slack = []
        slowness = []
        for stage in of_card:
            if stage.allocated:
                slack.append(max(stage.reserved / stage.allocated - 1, 0.0))
            else:
                slack.append(of_catalog.slack)
            slowness.append(stage.seconds / stage.planned)
        measured = constants.measured(slack, [of_catalog.context], slowness)
        if len(of_card) >= constants.ENOUGH:
            spread = measured.spread
        else:
            spread = None
        by_card[gpu] = replace(measured, spread=spread, source=f"{gpu}, {count}")
    return by_card
