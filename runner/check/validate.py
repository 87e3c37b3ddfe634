"""Check: a document becomes a Recipe, or every Problem that keeps it from being one, as far as anything can be judged before it
runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from runner import catalog, scenarios
from runner.check import by_schema, discovery, rules, sources
from runner.check.derived_settings import with_followers
from runner.plan import Plan
from runner.recipe import lock, reading
from runner.recipe import overrides as changing
from runner.recipe.document import Document
from runner.recipe.overrides import Override
from runner.recipe.recipe import BrokenSetting, Recipe, Settings
from runner.scenarios import forecasting
from runner.tools.problem import Problem, Stop, errors_of, report_bug


def load(
    file: Path | str,
    changes: Iterable[Override] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    look: bool = True,
) -> tuple[Recipe, list[Override], list[Problem]]:
    """The recipe in a file with the environment's changes and then `changes` on top, the changes that changed
    something, and notes. look: whether the files that it names are looked at.

    Raises Stop with every Problem at once where the file is no valid recipe.
    """
    document = reading.read(file)
    scenario = document.data.get("scenario")
    wished, idle = changing.from_environment(environment, lambda setting: by_schema.has(scenario, setting))
    document, made = override(document, [*wished, *changes])
    recipe, notes = valid(document, look)
    for name in idle:
        message = f"The environment says {name}, and this recipe has no such setting; it changes nothing."
        notes.append(Problem(document.file, 0, 0, message, severity="note"))
    return recipe, made, notes


def valid(document: Document, look: bool = True) -> tuple[Recipe, list[Problem]]:
    """The Recipe that a document is, and notes. Raises Stop with every Problem at once where it is none."""
    recipe, problems = judge(document, look)
    errors = errors_of(problems)
    if errors or recipe is None:
        raise Stop(errors)
    return recipe, problems


def override(document: Document, changes: Iterable[Override]) -> tuple[Document, list[Override]]:
    """A new Document with the changes applied, lines that only double-check following them, and what changed."""
    wished = by_schema.as_text(document, changes)
    return changing.apply(document, with_followers(document, wished)) if wished else (document, [])


def changed(recipe: Recipe, changes: Iterable[Override]) -> tuple[Recipe, list[Override]]:
    """The recipe with changes made, and those that changed something. Raises Stop where it is then not valid."""
    document, made = override(recipe.document, changes)
    return valid(document)[0], made


def judge(document: Document, look: bool = True) -> tuple[Recipe | None, list[Problem]]:
    """The Recipe that a document is, and all Problems with it; None where the schema already says no."""
    if problem := by_schema.scenario_problem(document):
        return None, [problem]
    if missing := by_schema.missing_parts(document):
        return None, missing
    judged = by_schema.read(document)
    recipe = Recipe(document, judged.settings, _model_facts(document, judged.settings))
    problems = [*judged.problems, *rules.judge(recipe, look)]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    return (None if judged.problems else recipe), problems


def _model_facts(document: Document, settings: Settings) -> catalog.Model | None:
    try:
        if described := scenarios.model_facts(document.data["scenario"], settings):
            return described
        name, revision = settings["model"]["base"], settings["model"]["revision"]
        folder = Path(document.file).parent
        if name in catalog.model_ids():
            return catalog.model(name)
        locked, problems = lock.find(folder, name, revision)
        # A broken lock is said by a rule, and not gone around.
        return locked or (None if problems else catalog.model(name, folder) or catalog.cached_model(name, revision))
    except (BrokenSetting, KeyError, AttributeError):
        return None


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

    def as_json(self) -> Mapping[str, object]:
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
    problems = [problem for some, _ in found for problem in some] + list(discovery.shared_names(map(str, files)))
    return Verdict(len(files), tuple(problems), sum(failed for _, failed in found))


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
    return recipe, [*problems, *(sources.datasets(recipe) if online else sources.unknown(recipe))]


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
