"""What editors show of a schema beside what it judges by, in words that yaml-language-server reads:
bounds and defaults in the hover (`markdownDescription`), patterns in plain words
(`patternErrorMessage`), and what the catalog has (`defaultSnippets`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner import catalog
from runner.check.schema_errors import BOUNDS, KINDS

# The kinds of rows, in the order of the reference.
ROWS = ("conversations", "songs", "text", "preferences", "labels", "prompts")
# What `x-offers` names: a label and what is said of it.
OFFERS = {
    "gpus": lambda: ((name, _gpu(name)) for name in catalog.gpu_names()),
    "models": lambda: ((name, _model(name)) for name in catalog.model_ids()),
}


def with_words(part: Any) -> Any:
    """A schema, and all that is in it, with what editors show; validators pass all of it by."""
    if isinstance(part, list):
        return [with_words(item) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {
        key: {name: with_words(value) for name, value in values.items()}
        if key == "properties"
        else with_words(values)
        if key == "items"
        else values
        for key, values in part.items()
    }
    if "description" in part:
        inner["markdownDescription"] = _described(part)
        if own := part.get("x-by-rows"):
            inner["x-by-rows"] = {
                rows: {
                    **other,
                    "markdownDescription": _described(
                        {**part, **other, "x-rows": [rows], "x-by-rows": {}}
                    ),
                }
                for rows, other in ((rows, own.get(rows, {})) for rows in part.get("x-rows", ROWS))
            }
    if "pattern" in part:
        inner["patternErrorMessage"] = f"It must be {part['x-pattern-means']}."
    if offers := part.get("x-offers"):
        inner["defaultSnippets"] = [
            {"label": name, "description": said, "body": name} for name, said in OFFERS[offers]()
        ]
    return inner


def _described(part: Mapping[str, Any]) -> str:
    """The description, and the values that are allowed; for each kind of rows, where they
    differ."""
    values = by_rows(part, _values)
    several = [
        f"For {each(rows)}: {words[:1].lower()}{words[1:] or 'no default.'}"
        for words, rows in values.items()
    ]
    return "\n\n".join(
        filter(None, (part["description"], *(several if len(values) > 1 else values)))
    )


def each(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def by_rows(
    part: Mapping[str, Any], words: Callable[[Mapping[str, Any]], str]
) -> dict[str, tuple[str, ...]]:
    """The words for a setting, each with the kinds of rows that they are for."""
    found: dict[str, tuple[str, ...]] = {}
    for rows in part.get("x-rows", ROWS):
        here = words({**part, **part.get("x-by-rows", {}).get(rows, {})})
        found[here] = (*found.get(here, ()), rows)
    return found


def allowed(part: Mapping[str, Any]) -> str:
    """The values of a setting in words, such as «a number, more than 0 and at most 10»; empty for a
    section or a name."""
    if part.get("type") == "object" and "properties" in part:
        return ""
    # That a name is text needs no saying.
    kind = part.get("x-pattern-means") or (
        "" if part.get("type") == "string" else KINDS.get(part.get("type", ""), "")
    )
    bounds = [
        words.format(f"{part[name]:,}")
        for name, words in BOUNDS.items()
        if part.get(name) is not None
    ]
    return ", ".join(filter(None, (kind, " and ".join(bounds))))


def _values(part: Mapping[str, Any]) -> str:
    """The allowed values and the default, in sentences."""
    said = allowed(part)
    return " ".join(
        f"{sentence}."
        for sentence in filter(None, (f"{said[:1].upper()}{said[1:]}", _default(part)))
    )


def _default(part: Mapping[str, Any]) -> str:
    words = default(part)
    return words and f"Default: {words}"


def default(part: Mapping[str, Any]) -> str:
    if other := part.get("x-default-twice"):
        return f"twice `{other}`"
    if (value := part.get("default")) is None:
        return ""
    unless = (
        f", unless `{part['x-default-unless']}` is written" if "x-default-unless" in part else ""
    )
    return f"{_code(value)}{unless}{_default_if(part)}"


def _default_if(part: Mapping[str, Any]) -> str:
    if not (when := part.get("x-default-if")):
        return ""
    return f", or {_code(when[2])} with `{when[0]}: {when[1]}`"


def _code(value: Any) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def _gpu(name: str) -> str:
    gpu = catalog.gpu(name)
    assert gpu
    able = [what for what, can in (("bf16", gpu.bf16), ("FP8", gpu.fp8)) if can]
    return f"{gpu.title}: training can have {gpu.usable_gib:.1f} GiB of it, {' and '.join(able) or 'fp16 alone'}."


def _model(name: str) -> str:
    model = catalog.model(name)
    assert model
    count = model.parameters or model.published
    assert count
    gated = "; it must be accepted on the hub first" if model.gated else ""
    return f"{count:,} parameters, licence {model.licence}{gated}."
