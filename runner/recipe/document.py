"""Document: a recipe's YAML as plain data, with the line and column of every key and value.

PyYAML's event stream (libyaml) is read here without its constructor, for three reasons: places are kept, YAML 1.2
numbers hold (`2e-5` is a number, `yes` is text, as editors and JSON Schema validators read them), and a file that
is hostile or broken (nested or aliased without end, keys twice) ends as a Problem.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.problem import Problem, Stop

# A recipe is a page or two; these bounds only keep broken files from taking the machine down.
MAX_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_VALUES = 100_000

Path_ = tuple[str | int, ...]

# YAML 1.2.2, section 10.3.2 (core schema).
_NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCT = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)\Z")


def scalar(text: str) -> Any:
    """What unquoted `text` means under YAML 1.2's core schema: None, bool, int, float or str."""
    if _NULL.match(text):
        return None
    if _TRUE.match(text):
        return True
    if _FALSE.match(text):
        return False
    if _INT.match(text):
        # int() refuses more than 4,300 digits; nobody means such a number.
        return int(text) if len(text) < 100 else float("inf")
    if _OCT.match(text):
        return int(text, 8) if len(text) < 100 else float("inf")
    if _HEX.match(text):
        return int(text, 16) if len(text) < 100 else float("inf")
    if _FLOAT.match(text):
        return float(text)
    if sign := _INF.match(text):
        return -math.inf if sign[1] == "-" else math.inf
    return math.nan if _NAN.match(text) else text


@dataclass(frozen=True)
class Place:
    """A stretch of text: 1-based line and column, width in characters on that line, and character offsets."""

    line: int
    column: int
    width: int
    start: int = 0
    end: int = 0


@dataclass
class Document:
    """A recipe as it was written, and what was changed on top of it.

    data: plain dicts, lists and scalars. keys, values: for each path, where its key and its value stand.
    origins: for a path set from outside the file, what set it (`--set train.epochs=2`, `EPOCHS=2`).
    """

    file: str
    text: str
    data: Any = None
    keys: dict[Path_, Place] = field(default_factory=dict)
    values: dict[Path_, Place] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)

    def problem(self, path: Path_, message: str, hint: str = "", *, key: bool = False, severity: str = "error") -> Problem:
        """A Problem at the value (or the key) of `path`, or at the nearest parent that stands in the file."""
        for length in range(len(path), -1, -1):
            if origin := self.origins.get(path[:length]):
                return Problem(origin, 0, 0, message, hint, severity=severity)
            places = (self.keys, self.values) if key or length < len(path) else (self.values, self.keys)
            for known in places:
                if place := known.get(path[:length]):
                    return self.problem_at(place, message, hint, severity=severity)
        return Problem(self.file, 1, 1, message, hint, severity=severity)

    def problem_at(self, place: Place, message: str, hint: str = "", severity: str = "error") -> Problem:
        lines = self.text.splitlines()
        source = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
        width = max(1, min(place.width, len(source) - place.column + 1))
        return Problem(self.file, place.line, place.column, message, hint, source, width, severity)

    def lookup(self, path: Path_) -> Any:
        """The value at `path`, or None."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def read(file: Path | str) -> Document:
    """Reads and parses one recipe file.

    Raises Stop with the Problem for a file that is missing, no text, or no YAML.
    """
    name = str(file)
    path = Path(file)
    if path.is_dir():
        raise Stop(Problem(name, 0, 0, "This is a folder, and one recipe file is needed."))
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except FileNotFoundError:
        raise Stop(Problem(name, 0, 0, "There is no such file.", _near_file(path))) from None
    except OSError as error:
        raise Stop(Problem(name, 0, 0, f"This file cannot be read: {error.strerror}.")) from None
    if size > MAX_BYTES:
        raise Stop(Problem(name, 0, 0, f"This file has {size:,} bytes; a recipe has at most {MAX_BYTES:,}.", "Is it the right file?"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Stop(
            Problem(name, 0, 0, "This file is not text in UTF-8.", "In your editor, save it again with the encoding UTF-8.")
        ) from None
    return parse(name, text)


def parse(name: str, text: str) -> Document:
    """Parses the text of a recipe; raises Stop with a Problem for each thing that keeps it from being read."""
    document = Document(name, text)
    builder = _Builder(document)
    try:
        for event in yaml.parse(text, Loader=_Events):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        builder.problems.append(_syntax(document, error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        shown = f"U+{error.character:04X}" if isinstance(error.character, int) else repr(error.character)
        builder.problems.append(
            document.problem_at(Place(line, 1, 1), f"This line holds a character that YAML does not allow ({shown}).", "Delete it.")
        )
    if not builder.problems and document.data is None:
        builder.problems.append(
            Problem(name, 1, 1, "This file is empty.", "Start from a copy: `recipe new my-demo --from survival`.")
        )
    elif not builder.problems and not isinstance(document.data, dict):
        builder.problems.append(
            document.problem_at(
                Place(1, 1, 1), "This is not a recipe: it has no `setting: value` lines.", "Start from a copy: `recipe new my-demo --from survival`."
            )
        )
    if builder.problems:
        raise Stop(builder.problems)
    return document


# libyaml keeps its own stack of at most 1,000 levels, so hostile nesting cannot exhaust Python's.
_Events = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Builder:
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
            self._value(scalar(event.value) if plain else event.value, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open({} if isinstance(event, yaml.MappingStartEvent) else [], event)
        elif isinstance(event, yaml.CollectionEndEvent):
            value, path = self.stack.pop()
            self.key.pop()
            self.sizes[id(value)] = self.count - self.sizes[id(value)]
            start = self.document.values.get(path)
            if start:
                self.document.values[path] = Place(start.line, start.column, start.width, start.start, event.end_mark.index)

    def _start_document(self, event: yaml.Event) -> None:
        self.documents += 1
        if self.documents == 2:
            self.problems.append(
                self.document.problem_at(
                    _place(event), "A second document starts here; one file holds one recipe.", "Put it into a file of its own, or delete this `---`."
                )
            )

    def _alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self.anchors:
            message = f"`*{event.anchor}` repeats something that no `&{event.anchor}` has named."
            self.problems.append(self.document.problem_at(_place(event), message, "Write the value out here."))
            self._value(None, event, anchor=False)
            return
        value = self.anchors[event.anchor]
        if any(value is opened for opened, _ in self.stack):
            message = f"`*{event.anchor}` stands inside what `&{event.anchor}` names, so it would hold itself without end."
            self.problems.append(self.document.problem_at(_place(event), message, "Write the value out here."))
            value = None
        self.count += self.sizes.get(id(value), 0) if isinstance(value, dict | list) else 0
        self._value(value, event, anchor=False)

    def _open(self, value: Any, event: yaml.Event) -> None:
        path = self._value(value, event)
        if len(self.stack) >= MAX_DEPTH:
            raise Stop(self.document.problem_at(_place(event), f"Lists and sections are nested more than {MAX_DEPTH} deep here.", "A recipe needs at most 6."))
        self.sizes[id(value)] = self.count
        self.stack.append((value, path))
        self.key.append(_NO_KEY)

    def _value(self, value: Any, event: yaml.Event, anchor: bool = True) -> Path_:
        """Puts a key or a value where it belongs; returns its path."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise Stop(
                self.document.problem_at(
                    _place(event), f"Written out, this file would hold more than {MAX_VALUES:,} values.", "Its `*` repeats multiply each other. Write the values out instead."
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


def _syntax(document: Document, error: yaml.MarkedYAMLError) -> Problem:
    """libyaml's complaint, as what a person would see in the line."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = document.text.splitlines() or [""]
    line = min(line, len(lines))
    source = lines[line - 1]
    said = f"{error.context or ''} {error.problem or ''}"
    indent = source[: len(source) - len(source.lstrip())]
    if "\t" in indent or (source[column - 1 : column] == "\t"):
        where = source.index("\t") + 1
        return document.problem_at(
            Place(line, where, 1), "A tab stands here, and YAML allows only spaces to indent.", "Replace the tab by spaces, two for each level."
        )
    if "exceeded max depth" in said or "nesting" in said:
        return document.problem_at(Place(line, column, 1), "Lists and sections are nested too deep here.", "A recipe needs at most 6 levels.")
    if "mapping values are not allowed" in said:
        return document.problem_at(
            Place(line, column, 1), "A second `: ` stands in this line, or the line is indented too far.", "Put quotes around a value that holds `: `, and indent as the line above."
        )
    if "could not find expected ':'" in said:
        return document.problem_at(Place(line, column, 1), "The `:` after a setting's name is missing here or just above.", "Write `name: value`.")
    if "quoted scalar" in said:
        start = error.context_mark
        at = Place(start.line + 1, start.column + 1, 1) if start else Place(line, column, 1)
        return document.problem_at(at, "A quote opens here and is never closed.", "Close it, or double a quote that belongs to the text.")
    if "did not find expected key" in said or "block mapping" in said or "block collection" in said or "block end" in said:
        return document.problem_at(
            Place(line, column, 1), "This line does not fit the lines above it.", "Indent it exactly as its neighbours: settings of one section start in the same column."
        )
    if "flow" in said or "',' or" in said:
        start = error.context_mark
        at = Place(start.line + 1, start.column + 1, 1) if start else Place(line, column, 1)
        return document.problem_at(at, "A `[` or `{` opens here and is never closed.", "Close it, or put quotes around a text that starts with a bracket.")
    if "cannot start any token" in said:
        return document.problem_at(Place(line, column, 1), f"A value cannot start with `{source[column - 1 : column]}`.", "Put quotes around the value.")
    return document.problem_at(Place(line, column, 1), "This is not YAML.", "Each line of a recipe reads `name: value`. Compare with a starter recipe: `recipe list`.")


def _near_file(path: Path) -> str:
    from runner.names import nearest

    beside = [entry.name for entry in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    match = nearest(path.name, beside)
    return f"Did you mean `{path.parent / match}`?" if match else "`recipe list` shows the starter recipes."
