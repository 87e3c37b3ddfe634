"""Writes `runner/catalog/axolotl-settings.json`: what the installed Axolotl takes, as a JSON Schema without its words.

`python schemas/axolotl_settings.py`, after another version of Axolotl is pinned; a test holds that the file is Axolotl's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from runner.catalog import AXOLOTL_SETTINGS_FILE

# What a judge of values has no use for.
WORDS = ("title", "description", "default", "examples", "deprecated")


def compact() -> dict[str, Any]:
    """Every setting by each of its names, and the sections that they hold under `$defs`.

    Axolotl drops unknown settings of a section without a word, so here they are refused; but not where several sections
    are possible, whose settings Axolotl lets people mix (a data set of preferences with messages, say).
    """
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        """`axolotl config-schema` gives up at torch's number types, and writes no schema but a list of texts."""

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            plain = all(isinstance(member.value, str | int | float) for member in schema["members"])
            return super().enum_schema(schema) if plain else {"type": "string"}

        def emit_warning(self, kind: Any, detail: str) -> None:
            """Defaults that JSON cannot say are left out anyway."""

    whole = AxolotlInputConfig.model_json_schema(schema_generator=Generate)
    models = {model.__name__: model for model in _models(AxolotlInputConfig)}
    sections = {name: _without_words(part) for name, part in whole["$defs"].items()}
    settings = _by_every_name(AxolotlInputConfig, _without_words(whole)["properties"])
    alternatives = set(_alternatives([settings, sections]))
    for name, section in sections.items():
        if name in models and "properties" in section:
            section["properties"] = _by_every_name(models[name], section["properties"])
            if name not in alternatives:
                section.setdefault("additionalProperties", False)
    return {"properties": settings, "$defs": sections}


def _models(model: Any) -> Iterator[Any]:
    """A pydantic model and those of its sections."""
    seen, waiting = set(), [model]
    while waiting:
        part = waiting.pop()
        waiting += get_args(part)
        if part not in seen and hasattr(part, "model_fields"):
            seen.add(part)
            yield part
            waiting += [field.annotation for field in part.model_fields.values()]


def _alternatives(part: Any) -> Iterator[str]:
    """The names of sections that can stand in each other's place."""
    if isinstance(part, dict):
        sections = [choice["$ref"] for choice in part.get("anyOf", []) if "$ref" in choice]
        if len(sections) > 1:
            yield from (section.removeprefix("#/$defs/") for section in sections)
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _alternatives(inner)


def _by_every_name(model: Any, properties: dict[str, Any]) -> dict[str, Any]:
    """Settings under their names and all their aliases; JSON Schema has each once."""
    named = {}
    for name, field in model.model_fields.items():
        aliases = getattr(field.validation_alias, "choices", [field.validation_alias])
        names = {name, field.alias, *aliases} - {None}
        (part,) = (properties[known] for known in names if known in properties)
        named |= dict.fromkeys(names, part)
    return dict(sorted(named.items()))


def _without_words(part: Any) -> Any:
    """A schema without titles, descriptions and defaults, and with plain types in one list."""
    if isinstance(part, list):
        return [_without_words(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept: dict[str, Any] = {}
    for key, value in part.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _without_words(item) for name, item in value.items()}
        elif key not in WORDS:
            kept[key] = _without_words(value)
    if all(choice.keys() == {"type"} for choice in kept.get("anyOf", [{}])):
        kept["type"] = [choice["type"] for choice in kept.pop("anyOf")]
    return kept


def text() -> str:
    """The file, a line a setting, so that a difference shows what has changed."""
    lines = [
        f"{json.dumps(title)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'))}" for name, part in parts.items())
        + "\n}"
        for title, parts in compact().items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    AXOLOTL_SETTINGS_FILE.write_text(text(), encoding="utf-8")
