"""What editors show of a schema beside what it judges by, in words that yaml-language-server reads: bounds and defaults in the
hover (`markdownDescription`), patterns in plain words (`patternErrorMessage`), and what the catalog has (`defaultSnippets`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner import catalog
from runner.check.schema_errors import BOUNDS, KINDS

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
        inner["markdownDescription"] = "\n\n".join(filter(None, (part["description"], _values(part))))
    if "pattern" in part:
        inner["patternErrorMessage"] = f"It must be {part['x-pattern-means']}."
    if offers := part.get("x-offers"):
        inner["defaultSnippets"] = [
            {"label": name, "description": said, "body": name} for name, said in OFFERS[offers]()
        ]
    return inner


def _values(part: Mapping[str, Any]) -> str:
    """What a value may be and what holds without one, in sentences; empty of a section."""
    if part.get("type") == "object" and "properties" in part:
        return ""
    # That a name is text needs no saying.
    kind = part.get("x-pattern-means") or ("" if part.get("type") == "string" else KINDS.get(part.get("type", ""), ""))
    bounds = [words.format(f"{part[name]:,}") for name, words in BOUNDS.items() if name in part]
    said = ", ".join(filter(None, (f"{kind[:1].upper()}{kind[1:]}", " and ".join(bounds))))
    return " ".join(f"{sentence}." for sentence in filter(None, (said, _default(part))))


def _default(part: Mapping[str, Any]) -> str:
    if other := part.get("x-default-twice"):
        return f"Default: twice `{other}`"
    if "default" not in part:
        return ""
    unless = f", unless `{part['x-default-unless']}` is there" if "x-default-unless" in part else ""
    value = part["default"]
    return f"Default: `{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`{unless}"


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
