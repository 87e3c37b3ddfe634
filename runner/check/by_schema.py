"""Judges a document by its scenario's schema, and reads its settings, with refused values marked as
broken."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cache, reduce
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from runner import parts, scenarios
from runner.catalog import Schema
from runner.check import schema_errors
from runner.recipe import stages
from runner.recipe.document import Document, Path_, leaves, path_of
from runner.recipe.recipe import BROKEN, Override, Settings, rows_of, with_defaults
from runner.tools import packaged
from runner.tools.problem import Problem, did_you_mean, listed, nearest, setting

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
    return dict(json.loads(schema_text(scenario)))


def schema_text(scenario: str) -> str:
    """The schema for editors: our file, with the additions of other people's parts."""
    file = packaged.schema_file(scenario)
    if file.is_file():
        ours = file.read_text(encoding="utf-8")
    else:
        ours = ""
    if ours and not any(part.foreign for part in parts.found().values()):
        return ours
    whole: Schema
    if ours:
        whole = json.loads(ours)
    else:
        whole = scenarios.composed(scenario)
    properties = {**whole["properties"], **scenarios.foreign_sections()}
    return json.dumps({**whole, "properties": properties}, indent=2, ensure_ascii=False) + "\n"


@cache
def _validator(scenario: str, rows: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    checker: type[Draft202012Validator] = extend(Draft202012Validator, {"pattern": _pattern})
    return checker(schema(scenario, rows))


def _pattern(_: Any, pattern: str, value: Any, part: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def has(scenario: Any, setting: str) -> bool:
    return bool(part(scenario, setting))


def part(scenario: Any, setting: str | Path_) -> Schema:
    """The scenario's schema of a setting, dotted or a path; empty if it has none."""
    if isinstance(setting, str):
        path = path_of(setting)
    else:
        path = setting
    return below(schema(scenario) if scenario in scenarios.names() else {}, path)


def part_in(document: Document, path: Path_) -> Schema:
    """The schema of a setting, narrowed to the rows of the document or stage; empty if these rows
    do not have it."""
    for _, index, one in stages.documents(document):
        if path[:2] == (stages.STAGES, index) and (
            own := part_in(one, stages.alone(path[2:], one))
        ):
            return own
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
    return ((setting(path), part) for path, part in schema_errors.settings(schema(scenario)))


def sentence(scenario: str, path: Path_) -> str:
    """The first sentence of a setting's description, without its full stop; empty if it has
    none."""
    return (
        str(part(scenario, path).get("description", ""))
        .strip()
        .partition(". ")[0]
        .removesuffix(".")
    )


def as_text(document: Document, changes: Iterable[Override]) -> list[Override]:
    """The changes, with the text as typed for settings that are texts: shells drop quotes, so the
    version `3.10` arrives as a number, and the column `[Question]` as a list."""

    def one(change: Override) -> Override:
        option, _, typed = change.by.partition("=")
        other = option.startswith("--set ") and isinstance(change.after, bool | int | float | list)
        text = other and part(document.data.get("scenario"), change.path).get("type") == "string"
        if text:
            return replace(change, after=typed.strip())
        return change

    return [one(change) for change in changes]


def read(document: Document) -> tuple[Settings, list[Problem]]:
    """The settings of a document whose scenario is known, with defaults, and BROKEN for each value
    that the schema refused; and the reasons."""
    scenario = document.data["scenario"]
    rows = _rows(document)
    whole = schema(scenario, rows)
    filled = _filled(document)
    if fits(whole, document.data):
        return Settings(filled, whole), []
    errors = list(_validator(scenario, rows).iter_errors(document.data))
    problems, lost = schema_errors.problems(document, whole, errors)
    refused = [tuple(error.absolute_path) for error in errors]
    # Infinity and not-a-number pass every bound of a schema, and are never intended.
    for path in [path for path, value in leaves(document.data, bool) if not _finite(value)]:
        if path not in refused:
            problems.append(
                document.problem(path, "This is not a finite number.", "Write its digits.")
            )
        _mark(filled, path)
    # What an error is about is marked as broken, so that no rule judges it.
    for error in errors:
        if error.validator not in ("additionalProperties", "required"):
            _mark(filled, error.absolute_path)
        elif (section := _below(filled, error.absolute_path)) is BROKEN:
            continue
        elif error.validator == "required":
            section.update(
                {key: BROKEN for key in error.validator_value if key not in error.instance}
            )
        else:
            for key in [key for key in section if key not in error.schema["properties"]]:
                del section[key]
                meant = schema_errors.meant(key, error.schema["properties"])
                if meant and meant not in error.instance:
                    section[meant] = BROKEN
    for section in lost:
        _mark(filled, (section,))
    return Settings(filled, whole), problems


def _rows(document: Document) -> str:
    return rows_of(document.data, schema(document.data["scenario"]))


def _filled(document: Document) -> MutableMapping[str, Any]:
    whole = schema(document.data["scenario"], _rows(document))
    filled: MutableMapping[str, Any] = with_defaults(document.data, whole)
    for _, index, one in stages.documents(document) if stages.STAGES in whole["properties"] else ():
        filled[stages.STAGES][index] = stages.filled(filled[stages.STAGES][index], _filled(one))
    return filled


def scenario_problem(document: Document) -> Problem | None:
    at = ("scenario",)
    scenario = document.data.get("scenario")
    known = scenarios.names()
    choices = f"Use {listed(known, 'or')}."
    if (
        scenario is None
        and (near := nearest("scenario", map(str, document.data)))
        and near != "scenario"
    ):
        return document.problem(
            (near,), f"`{near}` is not a setting of a recipe.", "Did you mean `scenario`?", key=True
        )
    if scenario is None:
        return document.problem(
            at, "The recipe lacks `scenario`, which selects the kind of training.", choices
        )
    part = parts.missing("scenarios", str(scenario))
    if part:
        return document.problem(at, parts.not_here(str(scenario), part), parts.INSTALL)
    if scenario not in known:
        hint = f"{choices} {did_you_mean(str(scenario), known)}".rstrip()
        return document.problem(at, f"There is no scenario `{scenario}`.", hint)
    return None


def missing_parts(document: Document) -> list[Problem]:
    """A Problem for each section, and each section of `data`, whose part is not installed."""
    data = document.data.get("data")
    if isinstance(data, dict):
        inner = [("data", name) for name in data]
    else:
        inner = []
    return [
        document.problem(path, parts.not_here(path[-1], part), parts.INSTALL, key=True)
        for path in [*((section,) for section in document.data), *inner]
        if isinstance(path[-1], str) and (part := parts.missing("sections", path[-1]))
    ]


def _mark(filled: Any, path: Iterable[str | int]) -> None:
    *parents, last = path or ("",)
    section = _below(filled, parents)
    if section is not BROKEN:
        section[last] = BROKEN


def _below(filled: Any, path: Iterable[str | int]) -> Any:
    """The value at the path; BROKEN if it, or something above it, is marked already."""
    return reduce(lambda value, part: value if value is BROKEN else value[part], path, filled)


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
    if schema is True or schema is False:  # without calls, which 1,000 recipes would feel
        return schema and all(_finite(each) for _, each in leaves(value, bool))
    kind: Any
    if "enum" in schema or "const" in schema:
        kind = "string"
    else:
        kind = schema.get("type")
    if kind.__class__ is not str or not _KINDS[kind](value):
        return False
    for name, wanted in schema.items():
        if (
            name not in _NO_CONDITION
            and name[:2] != "x-"
            and not (name in _MET and _MET[name](value, wanted))
        ):
            return False
    if kind == "object":
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, inner in value.items():
            if not fits(known.get(name, others), inner):
                return False
    return True
