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
from runner.scenarios import forecasting
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
    """In the figures of `recipe plan`, where something tells them."""
    planner = forecasting()
    return planner.problems(recipe, plan, allowed) if planner else []
