"""Writes once, in `schemas/definitions.json`, what several places of the schemas have in common.

An editor resolves the references from the file; `recipe new` and `recipe import` write a copy
without any (`runner.check.by_schema.schema_text`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from runner.tools.packaged import DEFINITIONS

Schema = dict[str, Any]

LEAST = 150  # characters of a schema that is worth a reference


def shared(whole: dict[str, Schema]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """The schemas with references, and the definitions that they refer to, by name."""
    counts: Counter[str] = Counter()
    for schema in whole.values():
        for _, part in _parts(schema):
            _count(part, counts)
    often = {text for text, count in counts.items() if count > 1 and len(text) >= LEAST}
    sharing = _Sharing(often)
    small = {name: sharing.inside(schema, ()) for name, schema in whole.items()}
    return small, dict(sorted(sharing.definitions.items()))


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas of the settings in a section, each by its name, and that of a list's entries,
    without one."""
    yield from schema.get("properties", {}).items()
    if "items" in schema:
        yield "", schema["items"]


def _text(schema: Schema) -> str:
    return json.dumps(schema, sort_keys=True)


def _count(schema: Schema, counts: Counter[str]) -> None:
    """Counts the places of a schema. What is inside of it has one place, however often it is
    referred to."""
    text = _text(schema)
    counts[text] += 1
    if counts[text] > 1:
        return
    for _, part in _parts(schema):
        _count(part, counts)


class _Sharing:
    """Replaces what is often there by references to definitions."""

    def __init__(self, often: set[str]) -> None:
        self.often = often
        self.names: dict[str, str] = {}  # of definitions, by their text without references
        self.definitions: dict[str, Schema] = {}

    def part(self, schema: Schema, path: tuple[str, ...]) -> Schema:
        """A reference to the schema of a setting, or the schema itself if it has one place."""
        text = _text(schema)
        if text not in self.often:
            return self.inside(schema, path)
        if text not in self.names:
            name = self._new_name(path)
            self.names[text] = name
            self.definitions[name] = self.inside(schema, path)
        return {"$ref": f"{DEFINITIONS}#/$defs/{self.names[text]}"}

    def inside(self, schema: Schema, path: tuple[str, ...]) -> Schema:
        """The schema with references in place of its parts. path: of the setting."""
        changed = dict(schema)
        if "properties" in schema:
            properties = schema["properties"].items()
            changed["properties"] = {
                name: self.part(part, (*path, name)) for name, part in properties
            }
        if "items" in schema:
            changed["items"] = self.part(schema["items"], (*path, "entry"))
        return changed

    def _new_name(self, path: tuple[str, ...]) -> str:
        """A name for a definition: that of the setting, with a number if others have that name."""
        # A stage has the settings of a recipe.
        own_path = path[2:] if path[:1] == ("stages",) else path
        name = ".".join(own_path)
        number = 1
        while name in self.definitions or name in self.names.values():
            number += 1
            name = f"{'.'.join(own_path)}-{number}"
        return name
