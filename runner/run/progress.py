"""Progress of a recipe: which of its runs are of the recipe as it is now, by content and not by
time. A copy of a folder, an edit during a run and an edit that was undone all have other times."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.check import batch
from runner.check.validate import changed, follows
from runner.recipe.recipe import REAL, Override, Recipe
from runner.run.run_folder import (
    ROOT,
    RunFolder,
    all_here,
    changed_files,
    find,
    folders_of,
)
from runner.run.run_manifest import RunManifest
from runner.scenarios import translate
from runner.tools.problem import Stop, listed

CHANGED = "the recipe has changed since"
# The most folders that a sentence lists.
FEW = 3


@dataclass(frozen=True)
class Progress:
    """How far a run has come. status: `running`, `finished`, `failed`, `stopped` or `stopped before
    training`; difference: why it is not a run of the recipe as it is now, in words; empty if it
    is."""

    run: RunFolder
    status: str
    difference: str

    @property
    def is_done(self) -> bool:
        """Whether it has finished, and is of the recipe as it is now."""
        return self.status == "finished" and not self.difference


def progress_of(run: RunFolder, recipe: Recipe) -> Progress:
    return Progress(run, status_of(run), difference(run, recipe))


def status_of(run: RunFolder) -> str:
    """How far a run has come, whatever its recipe."""
    state = run.state
    if run.at_work:
        return "running"
    if state.status == "finished":
        # A rehearsal trains to its end, and only then is judged.
        return "failed" if state.fault else "finished"
    if not run.has_trained:
        return "stopped before training"
    return "stopped"


def has_settings_of(run: RunFolder, recipe: Recipe) -> bool:
    """Whether a run had all settings of the recipe as it is now that can change the result."""
    return RunManifest.read(run.path).fingerprint == recipe.fingerprint


def difference(run: RunFolder, recipe: Recipe) -> str:
    """Why a run is not of the recipe as it is now, in words; empty if it is. What cannot change the
    result, such as comments, names and the number of the demo's questions, is no difference."""
    recorded = RunManifest.read(run.path).fingerprint
    if not recorded:
        return "its recipe is not on record"
    if recorded != recipe.fingerprint:
        changes = run.state.changes
        if changes and _fingerprint_with(changes, recipe) == recorded:
            return f"with {shown_changes(changes)}, which the recipe does not have"
        return CHANGED
    try:
        files = _files_changed_since(run, recipe)
    except Stop:
        return "its files can no longer be compared"
    if len(files) > 1:
        return f"{len(files)} of its files have changed since"
    if files:
        return f"`{files[0]}` has changed since"
    return ""


def _fingerprint_with(changes: Iterable[Override], recipe: Recipe) -> str:
    """The fingerprint of a recipe with changes; empty if it is then invalid."""
    try:
        return changed(recipe, changes, look=False)[0].fingerprint
    except Stop:
        return ""


def shown_changes(changes: Iterable[Override]) -> str:
    """The options and variables that changed a recipe, as a person typed them."""
    # A change that follows from others names theirs as its origin.
    return listed(
        dict.fromkeys(change.by for change in changes if change.why != follows(change.by))
    )


def _files_changed_since(run: RunFolder, recipe: Recipe) -> list[Path]:
    """The recipe's files whose content has changed since a run has read them, relative to the
    recipe's folder if they are below it. Raises Stop if the recipe can no longer be changed as it
    was for the run."""
    options = set()
    for override in run.state.substitutions:
        if override.by.startswith("--"):
            options.add(str(override.after))
    as_run, _ = changed(recipe, run.overrides, look=False)
    plan = translate(as_run, run.place())
    folder = recipe.folder.resolve()
    files = []
    for file in changed_files(plan):
        # `--data` and `--model` name files that are not the recipe's.
        if str(file) in options:
            continue
        if file.resolve().is_relative_to(folder):
            files.append(file.resolve().relative_to(folder))
        else:
            files.append(file)
    return files


def real_model(run: RunFolder) -> str:
    """The name of the real model that a rehearsal trained; empty for a twin's."""
    for override in run.state.substitutions:
        if override.by == REAL:
            return Path(str(override.after)).name
    return ""


def runs_of(recipe: Recipe, run_kind: str) -> list[Progress]:
    """A recipe's runs of a kind in their usual folders, then those with the same content in other
    folders of `runs`, which may have another name."""
    usual = []
    found = list[Progress]()
    for run in folders_of(recipe.name):
        usual.append(run.path)
        if run.kind == run_kind and run.state.recipe == recipe.name:
            found.append(progress_of(run, recipe))
    for run in _runs_here():
        if run.kind == run_kind and run.path not in usual and has_settings_of(run, recipe):
            progress = progress_of(run, recipe)
            if not progress.difference:
                found.append(progress)
    return found


def _runs_here() -> list[RunFolder]:
    """The runs below `runs`, without the trials of searches."""
    folder = Path(os.path.abspath(ROOT))
    return [run for run in all_here() if run.path.parent == folder]


def earlier_runs(recipe: Recipe) -> list[RunFolder]:
    """The runs of a recipe file from before its `name` was changed, without those of other recipes
    in its folder."""
    of_file = list[RunFolder]()
    for run in _runs_here():
        is_of_file = RunManifest.read(run.path).file == recipe.file.name
        if is_of_file and run.state.recipe != recipe.name:
            of_file.append(run)
    if not of_file:
        return []
    names_here = set(batch.names(batch.within(recipe.folder)))
    return [run for run in of_file if run.state.recipe not in names_here]


def earlier_sentence(runs: Collection[RunFolder]) -> str:
    """Where the runs of a recipe's earlier name are, as a sentence."""
    folders = [str(run.shown) for run in runs]
    names = listed(dict.fromkeys(run.state.recipe for run in runs))
    more = ""
    if len(folders) > FEW:
        more = f" (and {len(folders) - FEW} more)"
    return f"The runs under its earlier name {names} are in {listed(folders[:FEW])}{more}."


def find_run(recipe: Recipe, run_dir: str | None) -> RunFolder:
    """The run that a reading command means: `--run DIR`, or the recipe's latest, else one with the
    same content under another name. Raises Stop if there is none, with those of an earlier name."""
    try:
        return find(recipe.name, run_dir)
    except Stop as stop:
        if run_dir:
            raise
        for run_kind in ("run", "rehearsal"):
            for progress in runs_of(recipe, run_kind):
                if progress.is_done:
                    return progress.run
        runs = earlier_runs(recipe)
        if not runs:
            raise
        raise Stop(
            f"There is no run of `{recipe.name}` here. {earlier_sentence(runs)}",
            f"Name one of them, for example `--run {runs[0].shown}`, or run the recipe again.",
        ) from stop
