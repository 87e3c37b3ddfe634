"""Rules about `advanced`: settings that are passed on to Axolotl, judged by what Axolotl itself takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runner import catalog
from runner.check.schema_errors import BOUNDS, KINDS, short
from runner.names import listed, nearest
from runner.problem import Problem
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings

if TYPE_CHECKING:
    from jsonschema import ValidationError

AXOLOTL = f"Axolotl {catalog.AXOLOTL_VERSION}"


def settings(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl drops settings that it does not know without a word, and refuses values only when training starts."""
    for home, extra in (recipe.settings.get("advanced") or {}).items():
        known = catalog.axolotl_settings()["properties"]
        for key, value in (extra.plain() if isinstance(extra, Settings) else {}).items():
            path = ("advanced", home, key)
            if key in known:
                yield from _values(recipe, path, known[key], value)
            else:
                yield _unknown(recipe, path, known, AXOLOTL)


def _values(recipe: Recipe, path: Path_, part: dict[str, Any], value: Any) -> Iterator[Problem]:
    from jsonschema import Draft202012Validator

    definitions = catalog.axolotl_settings()["$defs"]
    for outer in Draft202012Validator({**part, "$defs": definitions}).iter_errors(value):
        error = _innermost(outer)
        place = (*path, *error.absolute_path)
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                yield _unknown(recipe, (*place, key), known, f"`{_dotted(place)}`")
        elif error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield recipe.document.problem(place, f"`{_dotted(place)}` lacks {listed(missing)}.", f"{AXOLOTL} needs it.")
        else:
            value = error.instance
            written = short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            yield recipe.document.problem(
                place,
                f"`{_dotted(place)}` cannot be `{written}`.",
                f"{AXOLOTL} takes {_either(list(dict.fromkeys(_taken(error.schema, definitions))))} there.",
            )


def _innermost(error: ValidationError) -> ValidationError:
    """Of a value that fits none of several forms, what is wrong with the form that it comes nearest to."""
    while error.context:
        inner = max(error.context, key=lambda inner: len(inner.absolute_path))
        if len(inner.absolute_path) == len(error.absolute_path) and inner.validator in ("type", "enum", "const"):
            break
        error = inner
    return error


def _unknown(recipe: Recipe, path: Path_, known: dict[str, Any], owner: str) -> Problem:
    near = nearest(str(path[-1]), known)
    hint = f"Did you mean `{near}`?" if near else "Its settings are in Axolotl's own documentation."
    return recipe.document.problem(path, f"{owner} has no setting `{path[-1]}`.", hint, key=True)


def _taken(part: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """The forms that a part of the schema takes, each in words."""
    if "$ref" in part:
        part = definitions[part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part:
        for choice in part["anyOf"]:
            yield from _taken(choice, definitions)
    elif "enum" in part or "const" in part:
        yield from (f"`{choice}`" for choice in part.get("enum", [part.get("const")]))
    else:
        bounds = [text.format(part[name]) for name, text in BOUNDS.items() if name in part]
        for kind in [part["type"]] if isinstance(part.get("type"), str) else part.get("type", []):
            if kind != "null":
                yield " ".join([KINDS[kind], *bounds])


def _either(forms: list[str]) -> str:
    return " or ".join(forms) if len(forms) < 3 else f"{', '.join(forms[:-1])} or {forms[-1]}"


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path))
