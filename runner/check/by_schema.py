"""Judges a document by its scenario's schema, and reads its settings, with refused values marked as
broken."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from runner import parts, scenarios
from runner.catalog import Schema
from runner.check import schema_errors
from runner.recipe import stages
from runner.recipe.document import Document, Path_, leaves, path_of
from runner.recipe.recipe import Override, rows_of, with_defaults
from runner.tools import packaged
from runner.tools.problem import Problem, did_you_mean, listed, nearest, setting
from runner.tools.settings import BROKEN, Settings

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


def schema(scenario: str, rows: str = "") -> Schema:
    """The schema of a scenario. rows: the kind of rows to narrow it to, if the scenario has
    several."""
    return _schema(scenario, rows)


@cache  # with every argument, because a call that leaves one out would count as another
def _schema(scenario: str, rows: str) -> Schema:
    if rows:
        return cast(Schema, scenarios.narrowed(_schema(scenario, ""), "rows", rows))
    file = packaged.schema_file(scenario)
    if file.is_file():
        schema = _without_references(json.loads(file.read_text(encoding="utf-8")))
    else:
        schema = dict(scenarios.composed(scenario))
    if any(part.foreign for part in parts.found().values()):
        schema["properties"] = {**schema["properties"], **scenarios.foreign_sections()}
    return schema


def schema_text(scenario: str) -> str:
    """The schema for editors beside a copy of a recipe, without references to another file."""
    whole = {
        "$schema": scenarios.DIALECT,
        "$id": scenarios.identity(scenario),
        **schema(scenario),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


@cache
def _definitions() -> Mapping[str, Schema]:
    """What our schemas refer to, by its name."""
    file = packaged.definitions_file()
    return cast(Mapping[str, Schema], json.loads(file.read_text(encoding="utf-8"))["$defs"])


def _without_references(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of our schema files, with what it and the parts in it refer to."""
    name = part.get("$ref", "").rpartition("/")[2]
    if name:
        part = _definitions()[name]
    complete = dict(part)
    if "properties" in part:
        properties = part["properties"].items()
        complete["properties"] = {key: _without_references(inner) for key, inner in properties}
    if "items" in part:
        complete["items"] = _without_references(part["items"])
    return complete


@cache
def _validator(scenario: str, rows: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    checker: type[Draft202012Validator] = extend(Draft202012Validator, {"pattern": _pattern})
    return checker(schema(scenario, rows))


def _pattern(_: object, pattern: str, value: object, part: object) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def has(scenario: object, setting: str) -> bool:
    return bool(part(scenario, setting))


def part(scenario: object, setting: str | Path_) -> Schema:
    """The scenario's schema of a setting, dotted or a path; empty if it has none."""
    if isinstance(setting, str):
        path = path_of(setting)
    else:
        path = setting
    return below(schema(scenario) if scenario in scenarios.names() else {}, path)


def part_in(document: Document, path: Path_) -> Schema:
    """The schema of a setting, narrowed to the rows of the document or stage; empty if these rows
    do not have it."""
    for _, index, stage_document in stages.documents(document):
        if path[:2] != (stages.STAGES, index):
            continue
        part_of_stage = part_in(stage_document, path[2:])
        if part_of_stage:
            return part_of_stage
    return below(schema(document.data["scenario"], _rows(document)), path)


def below(part: Schema, path: Path_) -> Schema:
    """The schema of the setting at a path below a section; empty if there is none."""
    for key in path:
        if isinstance(key, int):
            part = part.get("items", {})
        else:
            part = part.get("properties", {}).get(key, {})
    return part


def settings(scenario: str) -> Iterator[tuple[str, Schema]]:
    """Every setting and section of the scenario, by its full name, with its schema."""
    for path, part in schema_errors.settings(schema(scenario)):
        yield setting(path), part


def sentence(scenario: str, path: Path_) -> str:
    """The first sentence of a setting's description, without its full stop; empty if it has
    none."""
    description = str(part(scenario, path).get("description", ""))
    first, _, _ = description.strip().partition(". ")
    return first.removesuffix(".")


def as_text(document: Document, changes: Iterable[Override]) -> list[Override]:
    """The changes, with the text as typed for settings that are texts: shells drop quotes, so the
    version `3.10` arrives as a number, and the column `[Question]` as a list."""

    def with_typed_text(change: Override) -> Override:
        option, _, typed = change.by.partition("=")
        if not option.startswith("--set ") or not isinstance(change.after, int | float | list):
            return change
        if part(document.data.get("scenario"), change.path).get("type") == "string":
            return replace(change, after=typed.strip())
        return change

    return [with_typed_text(change) for change in changes]


def read(document: Document, is_stage: bool = False) -> tuple[Settings, list[Problem]]:
    """The settings of a document whose scenario is known, with defaults, and BROKEN for each value
    that the schema refused; and the reasons. is_stage: as in Recipe."""
    scenario = document.data["scenario"]
    rows = _rows(document)
    recipe_schema = schema(scenario, rows)
    filled = _filled(document)
    if fits(recipe_schema, document.data):
        return Settings(filled, recipe_schema), []
    errors = list(_validator(scenario, rows).iter_errors(document.data))
    if is_stage:
        # Its name is made of two, each of which the schema of the whole recipe judges.
        errors = [error for error in errors if tuple(error.absolute_path) != (stages.NAME,)]
    problems, unopened = schema_errors.problems(
        document, recipe_schema, _not_of_stages(document, errors)
    )
    refused = [tuple(error.absolute_path) for error in errors]
    # Infinity and not-a-number pass every bound of a schema, and are never intended.
    for path, value in leaves(document.data, bool):
        if _finite(value):
            continue
        if path not in refused:
            message = "This is not a finite number."
            problems.append(
                document.problem(path, message, "Write its digits.", check="not-finite")
            )
        _mark(filled, path)
    for error in errors:
        _mark_refused(filled, error)
    for section in unopened:
        _mark(filled, (section,))
    return Settings(filled, recipe_schema), problems


def _not_of_stages(document: Document, errors: list[ValidationError]) -> list[ValidationError]:
    """The errors without those that a stage's own recipe reports, by the schema of its technique
    alone. It has no lines for the name, and more sections than a stage may have."""
    judged = [index for _, index, _ in stages.documents(document)]
    others = []
    for error in errors:
        path = tuple(error.absolute_path)
        of_stage = path[:1] == (stages.STAGES,) and path[1:2] and path[1] in judged
        is_own_line = path[2:3] and path[2] in (stages.NAME, stages.TECHNIQUE, stages.EARLIER_ROWS)
        is_section = len(path) == 2 and error.validator == "additionalProperties"
        if not of_stage or is_own_line or is_section:
            others.append(error)
    return others


def _mark_refused(filled: object, error: ValidationError) -> None:
    """Marks what an error is about as broken, so that no rule judges it."""
    if error.validator not in ("additionalProperties", "required"):
        _mark(filled, error.absolute_path)
        return
    section = _below(filled, error.absolute_path)
    if section is BROKEN:
        return
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        section.update(dict.fromkeys(missing, BROKEN))
        return
    properties = error.schema["properties"]
    for key in [key for key in section if key not in properties]:
        del section[key]
        likely_name = schema_errors.meant(key, properties)
        if likely_name and likely_name not in error.instance:
            section[likely_name] = BROKEN


def _rows(document: Document) -> str:
    return rows_of(document.data, schema(document.data["scenario"]))


def _filled(document: Document) -> MutableMapping[str, Any]:
    recipe_schema = schema(document.data["scenario"], _rows(document))
    filled: MutableMapping[str, Any] = with_defaults(document.data, recipe_schema)
    if stages.STAGES not in recipe_schema["properties"]:
        return filled
    for _, index, stage_document in stages.documents(document):
        stage = filled[stages.STAGES][index]
        filled[stages.STAGES][index] = stages.filled(stage, _filled(stage_document))
    return filled


def scenario_problem(document: Document) -> Problem | None:
    scenario_path = ("scenario",)
    scenario = document.data.get("scenario")
    names = scenarios.names()
    choices = f"Use {listed(names, 'or')}."
    if scenario is None:
        near = nearest("scenario", map(str, document.data))
        if near and near != "scenario":
            return document.problem(
                (near,),
                f"`{near}` is not a setting of a recipe.",
                "Did you mean `scenario`?",
                key=True,
            )
        sections = set().union(*(schema(name)["properties"] for name in names))
        if sections.isdisjoint(document.data):
            choices += f" If the file holds rows to learn from, `recipe new my-demo --data {document.file}` makes a recipe of it."
        return document.problem(
            scenario_path,
            "The recipe lacks `scenario`, which selects the kind of training.",
            choices,
        )
    part = parts.missing("scenarios", str(scenario))
    if part:
        return document.problem(scenario_path, parts.not_here(str(scenario), part), parts.INSTALL)
    if scenario not in names:
        hint = f"{choices} {did_you_mean(str(scenario), names)}".rstrip()
        return document.problem(scenario_path, f"There is no scenario `{scenario}`.", hint)
    return None


def missing_parts(document: Document) -> list[Problem]:
    """A Problem for each section, and each section of `data`, whose part is not installed."""
    paths: list[Path_] = [(section,) for section in document.data]
    data = document.data.get("data")
    if isinstance(data, dict):
        paths += [("data", name) for name in data]
    problems = []
    for path in paths:
        name = path[-1]
        if not isinstance(name, str):
            continue
        part = parts.missing("sections", name)
        if part:
            message = parts.not_here(name, part)
            problems.append(
                document.problem(path, message, parts.INSTALL, key=True, check="part-missing")
            )
    return problems


def _mark(filled: object, path: Iterable[str | int]) -> None:
    *parents, last = path or ("",)
    section = _below(filled, parents)
    if section is not BROKEN:
        section[last] = BROKEN


def _below(filled: Any, path: Iterable[str | int]) -> Any:
    """The value at the path; BROKEN if it, or something above it, is marked already."""
    for part in path:
        if filled is BROKEN:
            return BROKEN
        filled = filled[part]
    return filled


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern))


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with JSON Schema's `$`. Python's also matches before a
    newline at the end."""
    return _compiled(pattern).search(text) is not None


def _finite(value: object) -> bool:
    return type(value) is not float or isfinite(value)


# As in JSON Schema, 4.0 is an integer and true is not. Infinity is never intended.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) is int or (type(value) is float and isfinite(value)),
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
# Each applies to values of the schema's kind, and takes the value and what the schema says. `enum`
# and `const` are for texts only, because in Python 1 equals True.
_MET: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, choices: value in choices,
    "const": operator.eq,
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    **dict.fromkeys(("minLength", "minItems"), lambda value, bound: len(value) >= bound),
    **dict.fromkeys(("maxLength", "maxItems"), lambda value, bound: len(value) <= bound),
    "uniqueItems": lambda value, _: all(value.count(item) == 1 for item in value),
    "pattern": lambda value, pattern: matches(pattern, value),
    "required": lambda value, names: all(name in value for name in names),
    "items": lambda value, schema: all(fits(schema, item) for item in value),
}
# Keywords that `fits` handles itself, and those that only describe; the last three are for editors.
_NO_CONDITION = {
    *("type", "properties", "additionalProperties"),
    *("$schema", "$id", "title", "description", "examples", "default"),
    *("markdownDescription", "patternErrorMessage", "defaultSnippets"),
}


def fits(schema: Mapping[str, Any] | bool, value: Any) -> bool:
    """Whether a value certainly fits the schema, without jsonschema, whose import takes longer than
    the rest of a check. True only if every keyword is known and met; else jsonschema decides."""
    if schema is False:  # without calls, which 1,000 recipes would feel
        return False
    if schema is True:
        return _all_finite(value)
    required_type: Any
    if "enum" in schema or "const" in schema:
        required_type = "string"
    else:
        required_type = schema.get("type")
    if required_type.__class__ is not str or not _KINDS[required_type](value):
        return False
    for name, wanted in schema.items():
        if (
            name not in _NO_CONDITION
            and name[:2] != "x-"
            and not (name in _MET and _MET[name](value, wanted))
        ):
            return False
    if required_type == "object":
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties", True)
        for name, inner in value.items():
            if not fits(properties.get(name, additional), inner):
                return False
    return True


def _all_finite(value: object) -> bool:
    return all(_finite(leaf) for _, leaf in leaves(value, bool))
