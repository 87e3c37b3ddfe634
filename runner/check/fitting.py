"""Whether a value surely fits a schema: what most recipes do, told without the validator, which takes longer to import than
all else that a check does.

It says yes only where every keyword is one that it knows and is met. Anything else is the validator's to judge, and to put into words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any


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
_MET: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, choices: value in choices,
    "const": lambda value, only: value == only,
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "pattern": lambda value, pattern: matches(pattern, value),
    "required": lambda value, names: value.keys() >= set(names),
    "items": lambda value, schema: all(fits(item, schema) for item in value),
}
# Beside the kind, which is looked at first; the last three are for editors.
_SAYS_NOTHING = {
    *("type", "properties", "additionalProperties"),
    *("$schema", "$id", "title", "description", "examples", "default"),
    *("markdownDescription", "patternErrorMessage", "defaultSnippets"),
}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value surely fits; False where it does not, or where this cannot tell."""
    kind = "string" if "enum" in schema or "const" in schema else schema.get("type")
    if not isinstance(kind, str) or not _KINDS[kind](value):
        return False
    for keyword, wanted in schema.items():
        if keyword in _SAYS_NOTHING or keyword.startswith("x-"):
            continue
        met = _MET.get(keyword)
        if met is None or not met(value, wanted):
            return False
    return kind != "object" or _settings_fit(
        value, schema.get("properties", {}), schema.get("additionalProperties", True)
    )


def _settings_fit(section: Mapping[str, Any], known: Mapping[str, Any], others: Any) -> bool:
    """Whether the settings of a section fit. known: their schemas; others: that of names that are not known, or whether there
    may be any."""
    for name, value in section.items():
        schema = known.get(name, others)
        if schema is not True and (schema is False or not fits(value, schema)):
            return False
    return True
