"""Builds plain data from YAML's parse events, level by level, and notes where everything stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, DocumentStartEvent, ScalarEvent, SequenceStartEvent

from runner.recipe import syntax
from runner.recipe.document import Document, Path_, Place
from runner.recipe.scalars import scalar
from runner.tools.problem import Problem, Stop

# Bounds that no recipe comes near; they keep broken and hostile files from taking the machine down. The first also
# bounds the recursion below, which `yaml.compose` leaves without bound.
MAX_DEPTH = 64
MAX_VALUES = 100_000

# Tags that change nothing: text, list and section are told by how they are written. `!!str 1` is text, as `"1"` is.
TAGS = {"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}

EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# A parse event has other attributes for each of its kinds, which yaml's stubs do not tell apart.
Event = Any
Mark = Any


class Builder:
    """Builds the first document of a text into `document`, and collects the Problems with it.

    anchors: for each `&name`, its value, and how many values it holds when written out; None while it is still open.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.events: Iterator[Event] = iter(())
        self.anchors: dict[str, tuple[Any, int] | None] = {}
        # By section: the keys that are set again, each with its place.
        self.twice: dict[Path_, list[tuple[str, Place]]] = {}
        self.count = 0
        self.depth = 0

    def build(self) -> None:
        """Raises MarkedYAMLError and yaml.reader.ReaderError where the text is no YAML, and Stop beyond the bounds."""
        # As yaml.parse has it, which asks before each event whether there is one.
        self.events = iter(EVENTS(self.document.text).get_event, None)
        documents = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents == 1:
                    self.document.data = self._value(next(self.events), ())
                elif documents == 2:
                    message = "A second document starts here; one file holds one recipe."
                    self._problem(event, message, "Put it into a file of its own, or delete this `---`.")

    def _value(self, event: Event, path: Path_) -> Any:
        """The value that starts with an event; notes where it stands."""
        value, end = self._node(event, path)
        self.document.values[path] = _place(event, end)
        return value

    def _node(self, event: Event, path: Path_) -> tuple[Any, Mark]:
        """A key or value, and where it ends."""
        self._add(1, event)
        is_scalar = isinstance(event, ScalarEvent)
        if is_scalar and event.tag is None and event.anchor is None:
            return (scalar(event.value) if event.implicit[0] else event.value), event.end_mark
        if isinstance(event, AliasEvent):
            return self._repeated(event), event.end_mark
        if event.tag and event.tag not in TAGS:
            # `!name` in front of a value means a program's own kind of value; a recipe has none.
            written = event.tag.replace("tag:yaml.org,2002:", "!!")
            message = f"`{written}` is a tag of YAML, and a recipe has no use for it."
            self._problem(event, message, "Delete it, and keep the value.")
        before = self.count
        if event.anchor:
            self.anchors[event.anchor] = None
        if is_scalar:
            value, end = (scalar(event.value) if event.implicit[0] else event.value), event.end_mark
        else:
            value, end = self._collection(event, path)
        if event.anchor:
            self.anchors[event.anchor] = value, self.count - before
        return value, end

    def _collection(self, event: Event, path: Path_) -> tuple[dict[str, Any] | list[Any], Mark]:
        """A list or section, and where it ends."""
        if self.depth >= MAX_DEPTH:
            message = f"Lists and sections are nested more than {MAX_DEPTH} deep here."
            raise Stop(self.document.problem_at(_place(event), message, "A recipe needs at most 6."))
        self.depth += 1
        section: dict[str, Any] = {}
        items: list[Any] = []
        is_list = isinstance(event, SequenceStartEvent)
        while not isinstance(inner := next(self.events), CollectionEndEvent):
            if is_list:
                items.append(self._value(inner, (*path, len(items))))
            else:
                key = self._key(inner, section, path)
                section[key] = self._value(next(self.events), (*path, key))
        self.depth -= 1
        return (items if is_list else section), inner.end_mark

    def _key(self, event: Event, section: dict[str, Any], path: Path_) -> str:
        value, _ = self._node(event, path)
        if isinstance(value, dict | list):
            message = "A setting's name must be a word, and here a whole list or section stands in its place."
            self._problem(event, message, "Did you mean to quote it?")
            value = f"(section {len(self.problems)})"
        # `yes:` and `1:` are names like any other; the schema then says that they are unknown.
        key = value if isinstance(value, str) else event.value if isinstance(event, ScalarEvent) else str(value)
        if key in section:
            self.twice.setdefault(path, []).append((key, _place(event)))
        else:
            self.document.keys[*path, key] = _place(event)
        return key

    def set_twice(self) -> Iterator[Problem]:
        """One Problem for each key that is set again; one for all where a section, or an entry of a list, has run into another."""
        for path, again in self.twice.items():
            key, place = again[0]
            first = self.document.keys[*path, key].line
            header = syntax.hidden_header(self.document, place.line)
            message = f"`{key}` is set twice; it is already set in line {first}."
            if header and header.line > first:
                yield syntax.behind_a_comment(self.document, header, f"they belong to `{path[-1]}`" if path else "")
            elif path and isinstance(path[-1], int):
                hint = f"Where the next entry of the list begins, write `- {key}:`. Else keep one of the two."
                yield self.document.problem_at(place, message, hint)
            elif len(again) > 2:
                hint = f"So are {len(again) - 1} settings below it: perhaps the line that opens their own section is missing."
                yield self.document.problem_at(place, message, hint)
            else:
                for key, place in again:
                    message = f"`{key}` is set twice; it is already set in line {self.document.keys[*path, key].line}."
                    yield self.document.problem_at(place, message, "Keep one of the two.")

    def _repeated(self, event: Event) -> Any:
        """What `*name` stands for; None where that is nothing."""
        name, remedy = event.anchor, "Write the value out here."
        if name not in self.anchors:
            self._problem(event, f"`*{name}` repeats something that no `&{name}` has named.", remedy)
            return None
        anchored = self.anchors[name]
        if anchored is None:
            message = f"`*{name}` stands inside what `&{name}` names, so it would hold itself without end."
            self._problem(event, message, remedy)
            return None
        value, size = anchored
        self._add(size, event)
        return value

    def _add(self, values: int, event: Event) -> None:
        self.count += values
        if self.count > MAX_VALUES:
            message = f"Written out, this file would hold more than {MAX_VALUES:,} values."
            remedy = "Its `*` repeats multiply each other. Write the values out instead."
            raise Stop(self.document.problem_at(_place(event), message, remedy))

    def _problem(self, event: Event, message: str, remedy: str) -> None:
        self.problems.append(self.document.problem_at(_place(event), message, remedy))


def _place(event: Event, ends: Mark | None = None) -> Place:
    """Where an event stands; ends: where its value does, if that is further on."""
    start, end = event.start_mark, event.end_mark
    width = end.column - start.column if end.line == start.line else 1
    return Place(start.line + 1, start.column + 1, max(1, width), start.index, (ends or end).index)
