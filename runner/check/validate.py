"""Check: a document becomes a Recipe, or every Problem that keeps it from being one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from runner import catalog, scenarios
from runner.check import by_schema, rules
from runner.check.derived_settings import with_followers
from runner.recipe import lock, reading
from runner.recipe import overrides as changing
from runner.recipe.document import Document
from runner.recipe.overrides import Override
from runner.recipe.recipe import BrokenSetting, Recipe, Settings
from runner.tools.problem import Problem, Stop, errors_of


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
    return recipe, made, [*notes, *(_idle(document.file, name) for name in idle)]


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


def _idle(file: Path | str, name: str) -> Problem:
    message = f"The environment says {name}, and this recipe has no such setting; it changes nothing."
    return Problem(str(file), 0, 0, message, severity="note")


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
