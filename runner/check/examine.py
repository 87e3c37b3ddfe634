"""Examine: a recipe file, judged as far as anything can be judged before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.check import discovery, on_the_hub
from runner.check.validate import judge, override
from runner.plan import Plan
from runner.recipe import reading
from runner.recipe.document import Document
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.tools.bugs import report_bug
from runner.tools.problem import Problem, Stop, errors_of

# What `--allow` lets through, for those who know better.
TOO_LARGE = "too-large"
ALLOWED = (TOO_LARGE,)


@dataclass(frozen=True)
class Verdict:
    """What `recipe check` finds. checked: recipes that were looked at; problems: notes included, file by file; bugs: how many files
    could not be judged because of a fault of the runner's own."""

    checked: int
    problems: tuple[Problem, ...]
    bugs: int = 0

    @property
    def without_notes(self) -> Verdict:
        return replace(self, problems=self.errors)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(errors_of(self.problems))

    def as_json(self) -> dict[str, Any]:
        """The form that other programs read: what stops a command, and apart from that what only informs."""
        notes = [problem for problem in self.problems if problem.severity != "error"]
        problems, notes_ = ([problem.as_json() for problem in some] for some in (self.errors, notes))
        return {"checked": self.checked, "problems": problems, "notes": notes_}


def judged(
    files: Sequence[Path | str],
    changes: Sequence[Override] = (),
    online: bool = False,
    allowed: Collection[str] = (),
    jobs: int = 1,
) -> Verdict:
    """Every file examined, with the same changes on top of each, by as many processes as `jobs`; one on which the runner itself fails
    hides no other."""
    one = partial(_whatever, changes=changes, online=online, allowed=allowed)
    if jobs == 1 or len(files) == 1:
        found = list(map(one, files))
    else:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(min(jobs, len(files))) as pool:
            found = list(pool.map(one, files, chunksize=max(1, len(files) // jobs // 8)))
    problems = [problem for some, _ in found for problem in some]
    return Verdict(
        len(files), (*problems, *discovery.shared_names(map(str, files))), sum(failed for _, failed in found)
    )


def _whatever(
    file: Path | str, changes: Sequence[Override], online: bool, allowed: Collection[str]
) -> tuple[list[Problem], bool]:
    """The Problems with a file, and whether the runner itself failed on it."""
    try:
        return examine(file, changes, online, allowed), False
    except Exception:
        return [Problem(str(file), 0, 0, report_bug())], True


def examine(
    file: Path | str, changes: Iterable[Override] = (), online: bool = False, allowed: Collection[str] = ()
) -> list[Problem]:
    """Every Problem with the recipe in a file, `-` for standard input, notes included; translating it, too, must find nothing wrong. online: whether
    the hub is asked for what only it can say; allowed: of ALLOWED what is noted alone."""
    try:
        document, _ = override(reading.standard_input() if file == "-" else reading.read(file), changes)
    except Stop as stop:
        return _said(file, stop)
    return examined(document, online, allowed)[1]


def examined(
    document: Document, online: bool = False, allowed: Collection[str] = ()
) -> tuple[Recipe | None, list[Problem]]:
    """The recipe that a document is, and the same Problems with it; None where it makes no plan."""
    recipe, problems = judge(document)
    if recipe is None or errors_of(problems):
        return None, problems
    # Only a recipe without errors needs what follows.
    from runner.render import place
    from runner.scenarios import translate

    try:
        plan = translate(recipe, replace(place(recipe), checkpoint_keys=None))
    except Stop as stop:
        return None, problems + _said(document.file, stop)
    problems += _foreseen(recipe, plan, allowed)
    if online:
        from runner.check.online import datasets

        problems += datasets(recipe)
    else:
        problems += on_the_hub.unknown(recipe)
    return recipe, problems


def _said(file: Path | str, stop: Stop) -> list[Problem]:
    return stop.problems or [Problem(str(file), 0, 0, stop.text)]


def require_fits(recipe: Recipe, plan: Plan, allowed: Collection[str] = ()) -> None:
    """Raises Stop where a stage cannot fit its GPU, unless that is allowed; for whoever sends a recipe or writes its files."""
    if wrong := errors_of(_foreseen(recipe, plan, allowed)):
        raise Stop(wrong)


def _foreseen(recipe: Recipe, plan: Plan, allowed: Collection[str]) -> list[Problem]:
    """In the figures of `recipe plan`, an error where a stage cannot fit its GPU whatever its range, and notes: stages that do not fit their GPU, claims and pods that are too small, a
    learning rate that never stops rising, a deadline that comes too early. No data file is opened for them."""
    from runner.parts.planner import forecast, storage
    from runner.parts.planner.parameters import UnknownArchitecture

    try:
        forecasts = forecast.of(recipe, plan, look=False)
        known_better = TOO_LARGE in allowed
        notes = [
            forecast.too_large(recipe, stage, "error" if stage.never_fits and not known_better else "note")
            for stage in forecasts
        ]
    except UnknownArchitecture:
        return []  # an architecture without formulas; `plan` says so
    notes += storage.problems(recipe.document, plan, forecasts, severity="note")
    notes += [*forecast.notes(recipe, forecasts), *forecast.ended_by_deadline(recipe, forecasts)]
    return [note for note in (*notes, *_few(recipe, plan)) if note]


# Bytes of a file that makes few steps; a larger one is not opened for that.
SMALL = 1_000_000


def _few(recipe: Recipe, plan: Plan) -> list[Problem]:
    """Notes on stages that make too few steps of a small file that is here, with settings that have been tried: they are valid, and
    their plan makes more."""
    files = [recipe.folder / name for where, name in recipe.local_files() if where[-1] == "path"]
    if not files or not all(file.is_file() and file.stat().st_size < SMALL for file in files):
        return []
    from runner.parts.planner import forecast, too_few_steps

    forecasts = forecast.of(recipe, plan)
    if not too_few_steps.stages(forecasts):
        return []
    # Only a recipe with too few steps needs what follows.
    from runner.parts.planner import recipe_offers
    from runner.parts.planner.planned import Planned

    return list(too_few_steps.notes(recipe, forecasts, recipe_offers.more_steps(Planned(recipe, plan, forecasts))))
