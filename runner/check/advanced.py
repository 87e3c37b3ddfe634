"""Rules about `advanced`: settings that are passed on to Axolotl, judged by what Axolotl itself takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runner import catalog
from runner.catalog import Schema
from runner.check.schema_errors import BOUNDS, KINDS, SHOWN
from runner.recipe.document import Document, Path_
from runner.recipe.recipe import Recipe, Settings
from runner.tools.names import listed, nearest, shortened
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from jsonschema import ValidationError

AXOLOTL = f"Axolotl {catalog.AXOLOTL_VERSION}"
DEEPSPEED = f"DeepSpeed {catalog.DEEPSPEED_VERSION}"
# Numbers below 0 that mean something: no end, no rank, at the end alone, the first tokens; all others count or weigh.
BELOW_ZERO = {
    *("max_steps", "local_rank", "gc_steps", "gc_collect_steps", "fix_untrained_tokens", "generation_top_k"),
    *("dp_shard_size", "dp_replicate_size", "scaling_softmax_bias", "simpo_gamma"),
}
# Of these Axolotl takes one.
WARMUPS = {"warmup_steps": "warmup_ratio", "warmup_ratio": "warmup_steps"}


def settings(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl drops settings that it does not know without a word, and refuses values only when training starts."""
    for home, extra in (recipe.settings.get("advanced") or {}).items():
        known = catalog.axolotl_settings()["properties"]
        for key, value in (extra.plain() if isinstance(extra, Settings) else {}).items():
            path = ("advanced", home, key)
            section = recipe.settings.get("train" if home == "axolotl" else home) or {}
            if (other := WARMUPS.get(key)) and section.get(other) is not None:
                message = f"`{key}` beside `{other}` says twice how long the rate rises, and Axolotl refuses both."
                yield recipe.problem(path, message, f"Write it as `{key}` in the section itself, or not at all.")
            elif isinstance(value, int | float) and value < 0 and key in known and key not in BELOW_ZERO:
                message = f"`{_dotted(path)}` cannot be `{value:g}`."
                yield recipe.problem(path, message, "Write 0 or more; training would stop at it, or learn nothing.")
            elif key in known:
                definitions = catalog.axolotl_settings()["$defs"]
                yield from values(recipe.document, path, known[key], value, definitions, AXOLOTL, _dotted(path))
            else:
                yield _unknown(recipe.document, path, known, AXOLOTL)


def values(
    document: Document,
    path: Path_,
    part: Schema,
    value: Any,
    definitions: Schema,
    owner: str,
    name: str,
) -> Iterator[Problem]:
    """What is wrong with a value by the schema of whoever takes it. path: where it stands in the document; name: what it is
    called in messages, empty for the whole of a file."""
    from jsonschema import Draft202012Validator

    for outer in Draft202012Validator({**part, "$defs": definitions}).iter_errors(value):
        error = _innermost(outer)
        place = (*path, *error.absolute_path)
        called = _dotted((*filter(None, (name,)), *error.absolute_path))
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                yield _unknown(document, (*place, key), known, f"`{called}`" if called else owner)
        elif error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield document.problem(place, f"`{called}` lacks {listed(missing)}.", f"{owner} needs it.")
        else:
            value = error.instance
            written = shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), SHOWN)
            message = f"`{called}` cannot be `{written}`."
            forms = list(dict.fromkeys(_taken(error.schema, definitions)))
            either = " or ".join(filter(None, (", ".join(forms[:-1]), *forms[-1:])))
            hint = f"{owner} takes {either} there."
            yield document.problem(place, message, hint)


def _innermost(error: ValidationError) -> ValidationError:
    """Of a value that fits none of several forms, what is wrong with the form that it comes nearest to."""
    while error.context:
        inner = max(error.context, key=lambda inner: len(inner.absolute_path))
        if len(inner.absolute_path) == len(error.absolute_path) and inner.validator in ("type", "enum", "const"):
            break
        error = inner
    return error


def _unknown(document: Document, path: Path_, known: Schema, owner: str) -> Problem:
    near = nearest(str(path[-1]), known)
    hint = f"Did you mean `{near}`?" if near else "Its settings are in the documentation of whoever reads it."
    if not near and owner.startswith("Axolotl"):
        hint = "Its settings are in Axolotl's own documentation."
    return document.problem(path, f"{owner} has no setting `{path[-1]}`.", hint, key=True)


def _taken(part: Schema, definitions: Schema) -> Iterator[str]:
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


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path))
