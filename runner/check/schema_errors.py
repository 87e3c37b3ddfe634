"""What a JSON Schema validator finds, in the words of the person who wrote the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runner.names import listed, nearest, setting
from runner.problem import Problem
from runner.recipe.document import Document, Path_
from runner.recipe.scalars import scalar

if TYPE_CHECKING:
    from jsonschema import ValidationError

KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
    "object": "a section with settings of its own",
    "array": "a list",
}
BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
}


def problems(document: Document, schema: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    """The Problems behind one validation error; one for each unknown or missing setting."""
    path: Path_ = tuple(error.absolute_path)
    rule, allowed, value = error.validator, error.validator_value, error.instance
    if rule == "additionalProperties":
        for key in value:
            if key not in error.schema["properties"]:
                yield _unknown(document, schema, error.schema, path, key)
    elif rule == "required":
        for key in allowed:
            if key not in value:
                yield _missing(document, error.schema, path, key)
    else:
        message, hint = _explain(rule, allowed, value, error.schema, f"`{_name(path)}`")
        yield document.problem(path, message, hint)


def _name(path: Path_) -> str:
    """The setting's name as a person says it: the last word; inside a list all of it, with the number."""
    return setting(path if any(isinstance(part, int) for part in path) else path[-1:]) or "recipe"


def _unknown(document: Document, root: dict[str, Any], section: dict[str, Any], path: Path_, key: str) -> Problem:
    owner = f"`{_name(path)}`" if path else "a recipe"
    message = f"`{key}` is not a setting of {owner}."
    known = section["properties"]
    if renamed := section.get("x-renamed", {}).get(key):
        hint = renamed
    elif match := nearest(key, known):
        hint = f"Did you mean `{match}`?"
    elif home := _home(root, key):
        hint = f"It belongs to {home}."
    else:
        hint = f"Its settings are {listed(known)}." if path else f"The settings at this level are {listed(known)}."
    return document.problem((*path, key), message, hint, key=True)


def _home(schema: dict[str, Any], key: str) -> str | None:
    """The section that has a setting of this name."""
    if key in schema.get("properties", {}):
        return "the recipe's top level, without indentation"
    for name, part in schema.get("properties", {}).items():
        if key in part.get("properties", {}):
            return f"`{name}`"
    return None


def _missing(document: Document, section: dict[str, Any], path: Path_, key: str) -> Problem:
    owner = f"`{_name(path)}`" if path else "The recipe"
    part = section["properties"][key]
    example = part.get("examples", [None])[0]
    line = f" For example: `{key}: {example}`" if isinstance(example, str | int | float) and example else ""
    return document.problem(path, f"{owner} lacks `{key}`.", f"{part['description']}{line}", key=True)


def _explain(rule: str, allowed: Any, value: Any, part: dict[str, Any], name: str) -> tuple[str, str]:
    default = f", or delete the line to use the default, `{part['default']}`" if "default" in part else ""
    if rule == "type":
        return _wrong_type(allowed, value, part, name, default)
    if rule in ("enum", "const"):
        choices = allowed if rule == "enum" else [allowed]
        near = nearest(str(value), map(str, choices))
        known = f"It can be {listed(choices, 'or')}."
        return f"{name} cannot be `{value}`.", f"{known} Did you mean `{near}`?" if near else known
    if rule == "pattern":
        return (
            f"{name} cannot be `{value}`.",
            f"It must be {part.get('x-pattern-means', f'of the form {allowed}')}.",
        )
    if rule in BOUNDS:
        return f"{name} must be {BOUNDS[rule].format(f'{allowed:,}')}, and here it is {value:,}.", part["description"]
    if rule in ("minLength", "minItems"):
        few = f"{name} has {len(value)} of {allowed} entries." if value else f"{name} is empty."
        return few, part["description"]
    if rule in ("maxLength", "maxItems"):
        unit = "characters" if rule == "maxLength" else "entries"
        return f"{name} has {len(value):,} {unit}, and at most {allowed:,} are allowed.", "Shorten it."
    return f"{name} does not fit: {rule} {allowed}.", part.get("description", "")


def _wrong_type(allowed: str, value: Any, part: dict[str, Any], name: str, default: str) -> tuple[str, str]:
    kind = KINDS[allowed]
    if value is None:
        return f"{name} has no value.", f"Write {kind}{default}."
    if isinstance(value, bool):
        return f"{name} must be {kind}, and `{str(value).lower()}` is a yes or no.", f"Write {kind}{default}."
    if isinstance(value, dict):
        return (
            f"{name} must be {kind}, and here it has settings of its own.",
            f"Write {kind} behind `{name.strip('`')}:`.",
        )
    if isinstance(value, list):
        words = ", ".join(map(str, value))
        text = allowed == "string" and value and all(isinstance(item, str) for item in value)
        # `answer: [column]` is what people write first.
        hint = f'Text with brackets takes quotes: `{name.strip("`")}: "[{short(words)}]"`.' if text else ""
        return (
            f"{name} must be {kind}, and here it is a list.",
            hint or "Write a single value, without `-` or brackets.",
        )
    if isinstance(value, str):
        return f"{name} must be {kind}, and `{short(value)}` is text.", _number_hint(
            allowed, value, kind
        ) or f"Write {kind}{default}."
    if allowed == "integer" and isinstance(value, float):
        return f"{name} must be {kind}, and {value:g} is not.", f"Write {kind}{default}."
    if allowed == "string" and "pattern" in part and not re.search(part["pattern"], str(value)):
        example = f" For example: {part['examples'][0]}" if part.get("examples") else ""
        means = part.get("x-pattern-means", f"of the form {part['pattern']}")
        return f"{name} cannot be `{value}`.", f"It must be {means}.{example}"
    if allowed == "string":
        return f"{name} must be {kind}, and `{value}` is a number.", f'Put quotes around it: "{value}".'
    return f"{name} must be {kind}, and here it is {value}.", f"Write {kind}{default}."


def short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _number_hint(allowed: str, text: str, kind: str) -> str:
    """What to write where a text was meant as a number, or as yes or no."""
    if allowed in ("integer", "number"):
        as_number = scalar(text.strip())
        if isinstance(as_number, int | float) and not isinstance(as_number, bool):
            return f"Write it without quotes: {text.strip()}"
        tidy = scalar(re.sub(r"(?<=\d)[_ ](?=\d)", "", text.strip()))
        if isinstance(tidy, int | float):
            return f"Write its digits without gaps: {tidy}"
        if re.fullmatch(r"[-+]?\d+,\d{1,2}([eE][-+]?\d+)?", text.strip()):
            return f"Write the decimal comma as a point: {text.strip().replace(',', '.')}"
        if re.fullmatch(r"\d{1,3}(,\d{3})+", text.strip()):
            return f"Write its digits without commas: {text.strip().replace(',', '')}"
        if percent := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text.strip()):
            return f"Write the share as a number: {float(percent[1]) / 100:g}"
        return f"Write {kind} alone, with a point for decimals: 0.00005 or 5e-5. Units belong in the comment."
    if allowed == "boolean":
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower())
        return f"Write `{meant}`." if meant else ""
    return ""
