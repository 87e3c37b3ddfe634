"""Builds plain data from YAML parse events, and notes where everything stands."""

from __future__ import annotations

from typing import Any

import yaml

from runner.problem import Problem, Stop
from runner.recipe.document import Document, Path_, Place
from runner.recipe.scalars import scalar

# Bounds that no recipe comes near; they keep broken and hostile files from taking the machine down.
MAX_DEPTH = 64
MAX_VALUES = 100_000

# Tags that change nothing: text, list and section are told by how they are written. `!!str 1` is text, as `"1"` is.
TAGS = {"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}

# libyaml keeps its own stack of at most 1,000 levels, so hostile nesting cannot exhaust Python's.
EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Builder:
    """Builds plain data from parse events, one open collection a level; no recursion."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.stack: list[tuple[Any, Path_]] = []
        self.key: list[Any] = []
        self.anchors: dict[str, Any] = {}
        self.sizes: dict[int, int] = {}
        self.count = 0
        self.documents = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._start_document(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.ScalarEvent):
            plain = event.implicit[0]
            self._tag(event)
            self._value(scalar(event.value) if plain else event.value, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._tag(event)
            self._open({} if isinstance(event, yaml.MappingStartEvent) else [], event)
        elif isinstance(event, yaml.CollectionEndEvent):
            value, path = self.stack.pop()
            self.key.pop()
            self.sizes[id(value)] = self.count - self.sizes[id(value)]
            start = self.document.values.get(path)
            if start:
                self.document.values[path] = Place(
                    start.line, start.column, start.width, start.start, event.end_mark.index
                )

    def _start_document(self, event: yaml.Event) -> None:
        self.documents += 1
        if self.documents == 2:
            self.problems.append(
                self.document.problem_at(
                    _place(event),
                    "A second document starts here; one file holds one recipe.",
                    "Put it into a file of its own, or delete this `---`.",
                )
            )

    def _tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        """`!name` in front of a value means a program's own kind of value; a recipe has none."""
        if event.tag and event.tag not in TAGS:
            said = event.tag.replace("tag:yaml.org,2002:", "!!")
            message = f"`{said}` is a tag of YAML, and a recipe has no use for it."
            self.problems.append(self.document.problem_at(_place(event), message, "Delete it, and keep the value."))

    def _alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self.anchors:
            message = f"`*{event.anchor}` repeats something that no `&{event.anchor}` has named."
            self.problems.append(self.document.problem_at(_place(event), message, "Write the value out here."))
            self._value(None, event, anchor=False)
            return
        value = self.anchors[event.anchor]
        if any(value is opened for opened, _ in self.stack):
            message = (
                f"`*{event.anchor}` stands inside what `&{event.anchor}` names, so it would hold itself without end."
            )
            self.problems.append(self.document.problem_at(_place(event), message, "Write the value out here."))
            value = None
        self.count += self.sizes.get(id(value), 0) if isinstance(value, dict | list) else 0
        self._value(value, event, anchor=False)

    def _open(self, value: Any, event: yaml.Event) -> None:
        path = self._value(value, event)
        if len(self.stack) >= MAX_DEPTH:
            raise Stop(
                self.document.problem_at(
                    _place(event),
                    f"Lists and sections are nested more than {MAX_DEPTH} deep here.",
                    "A recipe needs at most 6.",
                )
            )
        self.sizes[id(value)] = self.count
        self.stack.append((value, path))
        self.key.append(_NO_KEY)

    def _value(self, value: Any, event: yaml.Event, anchor: bool = True) -> Path_:
        """Puts a key or a value where it belongs; returns its path."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise Stop(
                self.document.problem_at(
                    _place(event),
                    f"Written out, this file would hold more than {MAX_VALUES:,} values.",
                    "Its `*` repeats multiply each other. Write the values out instead.",
                )
            )
        if anchor and getattr(event, "anchor", None):
            self.anchors[event.anchor] = value
        if not self.stack:
            if self.documents == 1:
                self.document.data = value
                self.document.values[()] = _place(event)
            return ()
        parent, path = self.stack[-1]
        if isinstance(parent, list):
            path = (*path, len(parent))
            parent.append(value)
        elif self.key[-1] is _NO_KEY:
            self.key[-1] = self._take_key(value, parent, path, event)
            return path
        else:
            path = (*path, self.key[-1])
            parent[self.key[-1]] = value
            self.key[-1] = _NO_KEY
        if self.documents == 1:
            self.document.values[path] = _place(event)
        return path

    def _take_key(self, value: Any, parent: dict, path: Path_, event: yaml.Event) -> str:
        if isinstance(value, dict | list):
            message = "A setting's name must be a word, and here a whole list or section stands in its place."
            self.problems.append(self.document.problem_at(_place(event), message, "Did you mean to quote it?"))
            value = f"(section {len(self.problems)})"
        # `yes:` and `1:` are names like any other; the schema then says that they are unknown.
        key = value if isinstance(value, str) else event.value if isinstance(event, yaml.ScalarEvent) else str(value)
        here = (*path, key)
        if self.documents == 1:
            if key in parent:
                first = self.document.keys[here]
                message = f"`{key}` is set twice; it is already set in line {first.line}."
                self.problems.append(self.document.problem_at(_place(event), message, "Keep one of the two."))
            else:
                self.document.keys[here] = _place(event)
        return key


_NO_KEY = object()


def _place(event: yaml.Event) -> Place:
    start, end = event.start_mark, event.end_mark
    width = end.column - start.column if end.line == start.line else 1
    return Place(start.line + 1, start.column + 1, max(1, width), start.index, end.index)
