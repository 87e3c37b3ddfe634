"""Check: a document becomes a Recipe, or every Problem that keeps it from being one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner import catalog, packaged
from runner.names import listed, nearest
from runner.problem import Problem, Stop
from runner.recipe import architecture, reading, rules, wording
from runner.recipe import changes as changing
from runner.recipe.changes import Change
from runner.recipe.document import Document
from runner.recipe.recipe import BROKEN, BrokenSetting, Recipe, Settings, with_defaults


def scenarios() -> list[str]:
    """The scenarios that have a schema."""
    return sorted(path.name.removesuffix(".schema.json") for path in packaged.folder("schemas").glob("*.schema.json"))


@cache
def schema(scenario: str) -> dict[str, Any]:
    return json.loads(packaged.schema_file(scenario).read_text(encoding="utf-8"))


@cache
def _validator(scenario: str):
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema(scenario))


def load(
    file: Path | str, changes: Iterable[Change] = (), environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[Recipe, list[Change], list[Problem]]:
    """The recipe in a file with the environment's changes and then `changes` on top, the changes that changed
    something, and notes.

    Raises Stop with every Problem at once where the file is no valid recipe.
    """
    read = reading.read(file)
    wished, idle = changing.from_environment(environment, lambda setting: _has(read.data.get("scenario"), setting))
    document, made = changing.apply(read, [*wished, *changes])
    recipe, notes = valid(document)
    return recipe, made, [*notes, *(_idle(read.file, name) for name in idle)]


def valid(document: Document) -> tuple[Recipe, list[Problem]]:
    """The Recipe that a document is, and notes. Raises Stop with every Problem at once where it is none."""
    recipe, problems = judge(document)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors or recipe is None:
        raise Stop(errors)
    return recipe, problems


def changed(recipe: Recipe, wanted: Iterable[Change]) -> tuple[Recipe, list[Change]]:
    """The recipe with changes made, and those that changed something. Raises Stop where it is then not valid."""
    document, made = changing.apply(recipe.document, wanted)
    return valid(document)[0], made


def _has(scenario: Any, setting: str) -> bool:
    """Whether the scenario's schema has a setting; dotted."""
    part = schema(scenario) if scenario in scenarios() else {}
    for key in setting.split("."):
        part = part.get("properties", {}).get(key)
        if part is None:
            return False
    return True


def _idle(file: Path | str, name: str) -> Problem:
    message = f"The environment says {name}, and this recipe has no such setting; it changes nothing."
    return Problem(str(file), 0, 0, message, severity="note")


def judge(document: Document) -> tuple[Recipe | None, list[Problem]]:
    """The Recipe that a document is, and all Problems with it; None where the schema already says no."""
    scenario = document.data.get("scenario")
    if problem := _scenario_problem(document, scenario):
        return None, [problem]
    errors = list(_validator(scenario).iter_errors(document.data))
    found = [problem for error in errors for problem in wording.problems(document, schema(scenario), error)]
    filled = with_defaults(document.data, schema(scenario))
    said = [tuple(error.absolute_path) for error in errors]
    infinite = list(_not_finite(document.data, ()))
    for path in infinite:
        if path not in said:
            found.append(document.problem(path, "This is not a finite number.", "Write its digits."))
        _mark(filled, path)
    for error in errors:
        _break(filled, error)
    settings = Settings(filled, schema(scenario))
    recipe = Recipe(document, settings, _model_facts(document, settings))
    found += rules.judge(recipe)
    found.sort(key=lambda problem: (problem.line, problem.column))
    return (None if errors or infinite else recipe), found


def _model_facts(document: Document, settings: Settings) -> catalog.Model | None:
    try:
        if "architecture" in settings.model:
            return architecture.model_facts(settings)
        name = settings.model.base
        return catalog.model(name, Path(document.file).parent) or catalog.cached_model(name)
    except (BrokenSetting, KeyError, AttributeError):
        return None


def _break(filled: Any, error: Any) -> None:
    """Marks what an error is about, so that no rule judges by a value that was never meant."""
    if error.validator not in ("additionalProperties", "required"):
        _mark(filled, error.absolute_path)
        return
    section = _below(filled, error.absolute_path)
    if section is BROKEN:
        return
    if error.validator == "required":
        section.update({key: BROKEN for key in error.validator_value if key not in section})
        return
    for key in [key for key in section if key not in error.schema["properties"]]:
        del section[key]
        if (meant := nearest(key, error.schema["properties"])) and meant not in error.instance:
            section[meant] = BROKEN


def _mark(filled: Any, path: Iterable[str | int]) -> None:
    *parents, last = path or [None]
    section = _below(filled, parents)
    if section is not BROKEN:
        section[last] = BROKEN


def _below(filled: Any, path: Iterable[str | int]) -> Any:
    """What stands at the path; BROKEN where it, or something above it, is marked already."""
    for part in path:
        if filled is BROKEN:
            break
        filled = filled[part]
    return filled


def _scenario_problem(document: Document, scenario: Any) -> Problem | None:
    known = scenarios()
    if scenario is None:
        return document.problem(
            ("scenario",),
            "The recipe lacks `scenario`, which says what kind of training it is.",
            f"It can be {listed(known, 'or')}.",
        )
    if scenario not in known:
        near = nearest(str(scenario), known)
        hint = f"It can be {listed(known, 'or')}." + (f" Did you mean `{near}`?" if near else "")
        return document.problem(("scenario",), f"There is no scenario `{scenario}`.", hint)
    return None


def _not_finite(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Where infinity and not-a-number stand; they pass every bound of a schema, and are never meant."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _not_finite(item, (*path, key))
