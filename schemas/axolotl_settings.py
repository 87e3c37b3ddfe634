"""Writes `runner/catalog/axolotl-settings.json`: what the installed Axolotl takes, as a JSON Schema
without its words.

`python schemas/axolotl_settings.py`, after another version of Axolotl is pinned; a test holds that
the file is Axolotl's own.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this clone's package, not an installed one

from runner.catalog.tables import AXOLOTL_SETTINGS_FILE

# What a judge of values has no use for.
WORDS = ("title", "description", "default", "examples", "deprecated")
# Axolotl splits the name at its last dot, and its schema takes any text.
PLUGIN = {
    "type": "string",
    "pattern": r"\w\.\w",
    "x-pattern-means": "a class with its module (`my_module.MyPlugin`)",
}


def compact() -> dict[str, Any]:
    """Every setting by each of its names, and the sections that they hold under `$defs`.

    Axolotl drops unknown settings of a section without a word, so here they are refused; but not
    where several sections are possible, whose settings Axolotl lets people mix (a data set of
    preferences with messages, say).
    """
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        """`axolotl config-schema` gives up at torch's number types, and writes no schema but a list
        of texts."""

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            plain = all(isinstance(member.value, str | int | float) for member in schema["members"])
            return super().enum_schema(schema) if plain else {"type": "string"}

        def emit_warning(self, kind: Any, detail: str) -> None:
            """Defaults that JSON cannot say are left out anyway."""

    def settings_of(model: Any) -> dict[str, Any]:
        whole = model.model_json_schema(schema_generator=Generate)
        models.update({one.__name__: one for one in _models(model)})
        sections.update(
            {name: _without_words(part) for name, part in whole.get("$defs", {}).items()}
        )
        return _by_every_name(model, _without_words(whole)["properties"])

    models: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    settings = settings_of(AxolotlInputConfig)
    settings["plugins"]["anyOf"][0]["items"] = PLUGIN
    plugins = {name: settings_of(model) for name, model in _plugins()}
    alternatives = set(_alternatives([settings, sections]))
    for name, section in sections.items():
        if name in models and "properties" in section:
            section["properties"] = _by_every_name(models[name], section["properties"])
            if name not in alternatives:
                section.setdefault("additionalProperties", False)
    return {"properties": settings, "$defs": dict(sorted(sections.items())), "plugins": plugins}


def _plugins() -> Iterator[tuple[str, Any]]:
    """Axolotl's own plug-ins by the names that recipes write, each with the model of its settings.
    The files are read without their packages, some of which need what is not installed."""
    spec = find_spec("axolotl.integrations")
    for file in sorted(Path(spec.submodule_search_locations[0]).glob("*/args.py")):
        folder = file.parent
        classes = [one for path in sorted(folder.glob("*.py")) for one in _classes(path)]
        plugin = next(
            one for one in classes if "BasePlugin" in [ast.unparse(base) for base in one.bases]
        )
        reader = next(one for one in plugin.body if getattr(one, "name", "") == "get_input_args")
        returned = next(one for one in ast.walk(reader) if isinstance(one, ast.Return))
        model = ast.literal_eval(returned.value).rpartition(".")[2]
        found = spec_from_file_location(f"{folder.name}_args", file)
        module = sys.modules[found.name] = module_from_spec(
            found
        )  # pydantic looks there for sections
        found.loader.exec_module(module)
        yield f"axolotl.integrations.{folder.name}.{plugin.name}", getattr(module, model)


def _classes(file: Path) -> list[ast.ClassDef]:
    return [
        one
        for one in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(one, ast.ClassDef)
    ]


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
    for inner in (
        part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    ):
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
        + ",\n".join(
            f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'))}"
            for name, part in parts.items()
        )
        + "\n}"
        for title, parts in compact().items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    AXOLOTL_SETTINGS_FILE.write_text(text(), encoding="utf-8")
