"""Whether a value surely fits a schema: what most recipes do, told without the validator, which takes longer to import than
all else that a check does.

It says yes only where every keyword is one that it knows and is met. Anything else is the validator's to judge, and to put into words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, reduce
from typing import Any

# Whether a value fits.
Fits = Callable[[Any], bool]


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern))


def matches(pattern: str, text: str) -> bool:
    """Whether a text has a pattern in JSON Schema's own meaning of `$`: Python's takes a newline at the end too."""
    return _pattern(pattern).search(text) is not None


# Of plain values; like JSON Schema, 4.0 is a whole number, and true is none.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) is int or type(value) is float,
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
# Each for values of the kind that its schema names beside it; choices are among texts, because Python's 1 equals its true.
_MET: dict[str, Callable[[Any], Fits]] = {
    "enum": lambda choices: lambda value: value in choices,
    "const": lambda only: lambda value: value == only,
    "minimum": lambda bound: lambda value: value >= bound,
    "maximum": lambda bound: lambda value: value <= bound,
    "exclusiveMinimum": lambda bound: lambda value: value > bound,
    "exclusiveMaximum": lambda bound: lambda value: value < bound,
    "minLength": lambda bound: lambda value: len(value) >= bound,
    "maxLength": lambda bound: lambda value: len(value) <= bound,
    "minItems": lambda bound: lambda value: len(value) >= bound,
    "maxItems": lambda bound: lambda value: len(value) <= bound,
    "pattern": lambda pattern: lambda value: matches(pattern, value),
    "required": lambda names: lambda value: all(name in value for name in names),
    "items": lambda schema: partial(_all, fitting(schema)),
}
# Beside the kind, which is looked at first; the last three are for editors.
_SAYS_NOTHING = {
    *("type", "properties", "additionalProperties"),
    *("$schema", "$id", "title", "description", "examples", "default"),
    *("markdownDescription", "patternErrorMessage", "defaultSnippets"),
}


def fitting(schema: Mapping[str, Any] | bool) -> Fits:
    """Tells of a value whether it surely fits the schema; False where it does not, or where this cannot tell."""
    if isinstance(schema, bool):
        return lambda value: schema
    kind = "string" if "enum" in schema or "const" in schema else schema.get("type")
    said = {name: wanted for name, wanted in schema.items() if name not in _SAYS_NOTHING and not name.startswith("x-")}
    if not isinstance(kind, str) or not said.keys() <= _MET.keys():
        return lambda value: False
    met = [_KINDS[kind], *(_MET[keyword](wanted) for keyword, wanted in said.items())]
    if kind == "object":
        known = {name: fitting(part) for name, part in schema.get("properties", {}).items()}
        met.append(partial(_settings_fit, known, fitting(schema.get("additionalProperties", True))))
    return reduce(lambda one, other: lambda value: one(value) and other(value), met)


def _all(fits: Fits, values: Iterable[Any]) -> bool:
    return all(map(fits, values))


def _settings_fit(known: Mapping[str, Fits], others: Fits, section: Mapping[str, Any]) -> bool:
    """Whether the settings of a section fit. others: of names that are not known."""
    return all(known.get(name, others)(value) for name, value in section.items())
