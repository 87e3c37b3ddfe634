"""Reads the text of a recipe into a Document, or reports every Problem that prevents it.

It reads PyYAML's events (libyaml) without the composer and constructor, for three reasons: every
value keeps its place (aliases too), numbers follow YAML 1.2, and hostile or broken files (endless
nesting, repeated keys) become Problems.
"""

import codecs
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from runner.catalog.tables import table
from runner.recipe.document import Document, Path_, Span
from runner.tools import packaged
from runner.tools.problem import SHOWN, Problem, Stop, found_by, nearest

# A recipe is a page or two; the limit only prevents reading a large wrong file.
MAX_BYTES = 1_000_000
# The name of a missing file is at least this similar to the one that is offered, without their
# endings.
ALIKE_FILES = 0.7
START = "Start from a copy: `recipe new my-demo --from survival`."


def read(file: Path | str, file_kind: str = "recipe", start: str = START) -> Document:
    """Reads and parses a recipe file, or a file of another kind. start: the hint for a file without
    settings. Raises Stop with the Problem for a file that is missing, not text, or not YAML."""
    return parse(str(file), text(file, file_kind), file_kind, start)


def text(file: Path | str, file_kind: str = "recipe") -> str:
    """The text of a recipe file, without a byte order mark. Raises Stop if the file is missing or
    not text."""
    name = str(file)
    path = Path(file)
    if os.path.isdir(path):  # unlike pathlib's, it is false for a name that is too long
        raise Stop(Problem(name, 0, 0, "This is a folder. Name one recipe file."))
    try:
        size = path.stat().st_size
        if size <= MAX_BYTES:
            raw = path.read_bytes()
        else:
            raw = b""
    except FileNotFoundError:
        names_by_stem = {}
        for entry in path.parent.glob("*.y*ml"):
            if entry.is_file():
                names_by_stem[entry.stem] = entry.name
        match = nearest(path.stem, names_by_stem, ALIKE_FILES)
        hint = "Check the path. `recipe list` shows your recipes and the starters."
        if name in packaged.named():
            hint = f"It is the name of a starter. Copy it first: `recipe new my-{path.name} --from {name}`."
        elif match:
            hint = f"Did you mean `{path.parent / names_by_stem[match]}`?"
        raise Stop(Problem(name, 0, 0, "This file does not exist.", hint)) from None
    except OSError as error:
        raise Stop(Problem(name, 0, 0, f"This file cannot be read: {error.strerror}.")) from None
    except ValueError:  # a null character, or a lone surrogate
        raise Stop(Problem(name, 0, 0, "No file can have such a name.")) from None
    return _text(name, raw, size, file_kind)


# The name, in problems, of a recipe from standard input. Its relative paths start from the current
# folder.
STANDARD_INPUT = "standard input"


def standard_input() -> Document:
    """Reads and parses the recipe on standard input. Raises Stop as `read` does."""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    return parse(STANDARD_INPUT, _text(STANDARD_INPUT, raw, len(raw), "recipe"))


def _text(name: str, raw: bytes, size: int, file_kind: str) -> str:
    """The text of a file's bytes, of which `raw` has at most MAX_BYTES and one more. size: of the
    file, in bytes. Raises Stop if it is too large or not text."""
    if size > MAX_BYTES:
        raise Stop(
            Problem(
                name,
                0,
                0,
                f"This file has {size:,} bytes. A {file_kind} has at most {MAX_BYTES:,}.",
                "Check that it is the right file.",
            )
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a zero byte it is UTF-16 or not text, so line numbers mean nothing.
        if b"\0" in raw and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            message = f"This file is not text, and so no {file_kind}."
            raise Stop(Problem(name, 0, 0, message, "Check that it is the right file.")) from None
        line = column = 0
        if b"\0" not in raw:
            # The error counts from behind a byte order mark, as the bytes that it has do.
            *lines_before, line_start = error.object[: error.start].split(b"\n")
            line = len(lines_before) + 1
            column = len(line_start.decode("utf-8", "replace")) + 1
        raise Stop(
            Problem(
                name,
                line,
                column,
                "This file is not UTF-8 text.",
                "Save it again in your editor, with the encoding UTF-8.",
            )
        ) from None


def parse(name: str, text: str, file_kind: str = "recipe", start: str = START) -> Document:
    """Parses the text of a recipe; raises Stop with every Problem that prevents it."""
    document = Document(name, text)
    builder = Builder(document)
    try:
        builder.build()
    except yaml.MarkedYAMLError as error:
        builder.problems.append(problem_of(document, error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        if isinstance(error.character, int):
            character = f"U+{error.character:04X}"
        else:
            character = repr(error.character)
        builder.problems += [
            document.problem_at(
                Span(line, 1, 1),
                f"This line contains a character that YAML does not allow ({character}).",
                "Delete it.",
            )
        ]
    builder.problems += builder.set_twice()
    if not builder.problems and document.data is None:
        builder.problems.append(Problem(name, 1, 1, "This file is empty.", start))
    elif not builder.problems and not isinstance(document.data, dict):
        builder.problems.append(
            document.problem_at(
                Span(1, 1, 1),
                f"This is not a {file_kind}: it has no `setting: value` lines.",
                start,
            )
        )
    if builder.problems:
        raise Stop(found_by("yaml", builder.problems))
    return document


# Limits far above any recipe; they protect the machine from broken and hostile files. The first
# also limits the recursion below, which `yaml.compose` does not.
MAX_DEPTH = 64
MAX_VALUES = 100_000

# Tags that change nothing: text, list and section are recognised by their form. `!!str 1` is text,
# as `"1"` is.
TAGS = {"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}

EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Each kind of parse event has its own attributes, which yaml's stubs do not distinguish.
Event = Any
Mark = Any


class Builder:
    """Builds the first document of a text into `document`, and collects the Problems with it.
    anchors: for each `&name`, its value, and how many values that contains when expanded; None
    while it is being read."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.events: Iterator[Event] = iter(())
        self.anchors: dict[str, tuple[Any, int] | None] = {}
        # By section: the keys that are set again, each with its place.
        self.twice: dict[Path_, list[tuple[str, Span]]] = {}
        self.count = 0
        self.depth = 0

    def build(self) -> None:
        """Raises MarkedYAMLError and yaml.reader.ReaderError if the text is not YAML, and Stop
        beyond the limits."""
        # Like yaml.parse, but without its check before each event.
        self.events = iter(EVENTS(self.document.text).get_event, None)
        documents = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents == 1:
                    self.document.data = self._value(next(self.events), ())
                elif documents == 2:
                    self._problem(
                        event,
                        "A second document starts here. A file contains one recipe.",
                        "Move it to another file, or delete this `---`.",
                    )

    def _value(self, event: Event, path: Path_) -> Any:
        value, end = self._node(event, path)
        self.document.values[path] = _place(event, end)
        return value

    def _node(self, event: Event, path: Path_) -> tuple[Any, Mark]:
        """A key or value, and where it ends."""
        self._add(1, event)
        if isinstance(event, AliasEvent):
            return self._repeated(event), event.end_mark
        if event.tag and event.tag not in TAGS:
            # `!name` in front of a value means a program's own kind of value; a recipe has none.
            self._problem(
                event,
                f"`{event.tag.replace('tag:yaml.org,2002:', '!!')}` is a YAML tag. Recipes do not use tags.",
                "Delete it, and keep the value.",
            )
        before = self.count
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, ScalarEvent):
            if event.implicit[0]:
                value = scalar(event.value)
            else:
                value = event.value
            end = event.end_mark
        else:
            value, end = self._collection(event, path)
        if event.anchor:
            self.anchors[event.anchor] = value, self.count - before
        return value, end

    def _collection(self, event: Event, path: Path_) -> tuple[dict[str, Any] | list[Any], Mark]:
        if self.depth >= MAX_DEPTH:
            raise Stop(
                self.document.problem_at(
                    _place(event),
                    f"Lists and sections are nested more than {MAX_DEPTH} levels deep here.",
                    "A recipe needs at most 6 levels.",
                )
            )
        self.depth += 1
        section: dict[str, Any] = {}
        items: list[Any] = []
        is_list = isinstance(event, SequenceStartEvent)
        while not isinstance(inner := next(self.events), CollectionEndEvent):
            if is_list:
                items.append(self._value(inner, (*path, len(items))))
            else:
                value, _ = self._node(inner, path)
                if isinstance(value, dict | list):
                    self._problem(
                        inner,
                        "A setting's name must be a word. Here it is a list or a section.",
                        "Put quotes around it if it is a text.",
                    )
                    value = f"(section {len(self.problems)})"
                # `yes:` and `1:` are names like any other; the schema then reports them as unknown.
                if isinstance(value, str):
                    key = value
                elif isinstance(inner, ScalarEvent):
                    key = inner.value
                else:
                    key = str(value)
                if key in section:
                    self.twice.setdefault(path, []).append((key, _place(inner)))
                else:
                    self.document.keys[*path, key] = _place(inner)
                section[key] = self._value(next(self.events), (*path, key))
        self.depth -= 1
        if is_list:
            return items, inner.end_mark
        return section, inner.end_mark

    def set_twice(self) -> Iterator[Problem]:
        """One Problem for each repeated key; a single one if a section or a list's entry has merged
        with another."""
        for path, again in self.twice.items():
            key, place = again[0]
            reported = again[:1]
            hint = "Keep one of the two lines."
            instead = ""
            if path:
                instead = f"they belong to `{path[-1]}`"
            _, header = hidden_header(self.document, place.line, instead)
            if header and header.line > self.document.keys[*path, key].line:
                yield header
                continue
            if path and isinstance(path[-1], int):
                entry = f"If the next entry of the list begins here, write `- {key}:`."
                hint = f"{entry} Otherwise keep one of the two lines."
            elif len(again) > 2:
                hint = f"The same is true of {len(again) - 1} settings below it. The line that opens their section may be missing."
            else:
                reported = again
            for key, place in reported:
                first_line = self.document.keys[*path, key].line
                message = f"`{key}` is set twice. Line {first_line} already sets it."
                yield self.document.problem_at(place, message, hint)

    def _repeated(self, event: Event) -> Any:
        name = event.anchor
        remedy = "Write the value itself here."
        if name not in self.anchors:
            self._problem(event, f"`*{name}` refers to `&{name}`, which does not exist.", remedy)
            return None
        anchored = self.anchors[name]
        if anchored is None:
            self._problem(
                event, f"`*{name}` is inside `&{name}`, so it would contain itself.", remedy
            )
            return None
        value, size = anchored
        self._add(size, event)
        return value

    def _add(self, values: int, event: Event) -> None:
        self.count += values
        if self.count > MAX_VALUES:
            raise Stop(
                self.document.problem_at(
                    _place(event),
                    f"With all its `*` references written out, this file would have more than {MAX_VALUES:,} values.",
                    "The `*` references multiply each other. Write the values instead.",
                )
            )

    def _problem(self, event: Event, message: str, remedy: str) -> None:
        self.problems.append(self.document.problem_at(_place(event), message, remedy))


def _place(event: Event, ends: Mark | None = None) -> Span:
    """The place of an event; ends: the end of its value, if that is later."""
    start = event.start_mark
    end = event.end_mark
    if end.line == start.line:
        width = end.column - start.column
    else:
        width = 1
    last = ends or end
    return Span(start.line + 1, start.column + 1, max(1, width), start.index, last.index)


# YAML 1.2.2, section 10.3.2 (core schema).
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_WHOLE = {
    10: re.compile("[-+]?[0-9]+"),
    8: re.compile("0o[0-7]+"),
    16: re.compile("0x[0-9a-fA-F]+"),
}
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# The first characters of all of these; most texts begin with others.
_NOT_ONLY_TEXT = {"", *"nNtTfF~.+-0123456789"}


@lru_cache(maxsize=4096)
def scalar(text: str) -> Any:
    """The value of unquoted `text` in YAML 1.2's core schema: None, bool, int, float or str."""
    if text[:1] not in _NOT_ONLY_TEXT:
        return text
    if text in _WORDS:
        return _WORDS[text]
    for base, digits in _WHOLE.items():
        if digits.fullmatch(text):
            # int() refuses more than 4,300 digits, and no setting needs such a number.
            if len(text) < 100:
                return int(text, base)
            return math.inf
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


# Words that mean the same with and without quotes, also inside brackets.
_PLAIN = re.compile(r"[A-Za-z0-9/_.]([\w/.@+'?<>=()-]|[ :](?=[\w/.+<>=()]))*")


def written(value: object) -> str:
    """A value in the form for `key: `. JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and isinstance(scalar(value), str)
        if plain:
            return value
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in repr(value):
        mantissa, _, exponent = repr(value).partition("e")
        if "." not in mantissa:
            mantissa += ".0"  # 2.0e-5, as recipes have it
        return f"{mantissa}e{int(exponent)}"
    return json.dumps(value, ensure_ascii=False)


# `epochs:4`, which YAML reads as one word.
_GLUED = re.compile(r"(\s*)([A-Za-z_]\w*:)([^\s:/#]\S*)\s*(?:#.*)?")
_GLUED_DASH = re.compile(r"(\s*)-([A-Za-z_]\w*:)")
# A section's first line, and one that was commented out.
_HIDDEN = re.compile(r"(\s*)#\s?(?P<name>[a-z_]+):\s*(?:#.*)?")
_QUOTED = re.compile(
    r"""(?P<before>\s*(?:-\s+)?(?:[\w.-]+:\s+)?)(?P<quote>["'])(?P<inner>(?:(?!(?P=quote)).)*)(?P=quote)(?P<rest>.*)"""
)


def hidden_header(document: Document, line: int, instead: str = "") -> tuple[str, Problem | None]:
    """The section that the lines down to this one would belong to, if its first line is commented
    out, and the Problem with that line; else an empty name and None. instead: what happens to the
    lines below it."""
    lines = document.text.splitlines()
    for number in range(line - 1, 0, -1):
        header = _HIDDEN.fullmatch(lines[number - 1])
        if header:
            start = header.end(1)
            name = header["name"]
            consequence = f": {instead}" if instead else ""
            place = Span(number, start + 1, header.end("name") + 1 - start)
            problem = document.problem_at(
                place,
                f"`{name}:` is commented out, and the lines below it are not{consequence}.",
                "Delete the `#`, or add one to each of the lines below.",
            )
            return name, problem
        if lines[number - 1][:1] not in ("", " ", "#"):
            break
    return "", None


def problem_of(document: Document, error: yaml.MarkedYAMLError) -> Problem:
    """The Problem behind libyaml's error, in terms of what is visible in the line."""
    mark = error.problem_mark or error.context_mark
    if mark:
        line = mark.line + 1
        column = mark.column + 1
    else:
        line = 1
        column = 1
    lines = document.text.splitlines() or [""]
    line = min(line, len(lines))
    complaint = f"{error.context or ''} {error.problem or ''}"
    complaint_kind, explanation = _explanation(complaint)
    if complaint_kind == "escape":
        column = lines[line - 1].rindex("\\", 0, column) + 1
    if explanation.get("at_start"):
        start = error.context_mark
    else:
        start = None
    likely = next(_likely(document, lines, line, column, complaint_kind), None)
    if likely:
        return likely
    if complaint_kind == "missing colon" and start:
        broken_line, lines_above = _lines_to(lines, start.line + 1)
        entry = _without_dash(broken_line, lines_above)
        if entry and entry.indent == lines_above[-1].indent:
            return entry.without_dash(document)
    if start:
        place = Span(start.line + 1, start.column + 1, 1)
    else:
        place = Span(line, column, 1)
    letter = lines[line - 1][column - 1 : column]
    return document.problem_at(
        place, explanation["message"].replace("{here}", letter), explanation["hint"]
    )


def _explanation(complaint: str) -> tuple[str, dict[str, Any]]:
    """The kind of libyaml's complaint, and its row in the table of explanations."""
    rows = table("yaml-errors").items()
    fitting = ((name, row) for name, row in rows if any(word in complaint for word in row["words"]))
    return next(fitting)


def _likely(
    document: Document, lines: list[str], line: int, column: int, complaint_kind: str
) -> Iterator[Problem]:
    """Mistakes that are visible in the text. complaint_kind: libyaml's, which decides about
    indentation alone."""
    source = lines[line - 1]
    in_indentation = "\t" in source[: len(source) - len(source.lstrip())]
    if in_indentation or source[column - 1 : column] == "\t":
        yield document.problem_at(
            Span(line, source.index("\t") + 1, 1),
            "This line contains a tab. YAML allows only spaces for indentation.",
            "Replace the tab with spaces, two for each level.",
        )
    if line > 1:
        yield from _blanks_and_colons(document, lines[line - 2], line - 1)
    yield from _blanks_and_colons(document, source, line)
    quote = source[column - 2 : column - 1]
    if quote in ("'", '"'):
        yield from _open_quote(document, lines, line, quote)
    ended = _ended_early(source, line, column)
    if ended:
        yield document.problem_at(*ended)
    _, header = hidden_header(document, line)
    if header and complaint_kind == "second colon":
        yield header
    if complaint_kind in ("indentation", "list entry"):
        yield from _odd_indentation(document, lines, line, header)


def _blanks_and_colons(document: Document, text: str, number: int) -> Iterator[Problem]:
    """A non-breaking space, or a colon without a space behind it, in the line of that number."""
    if "\u00a0" in text.partition("#")[0]:
        place = Span(number, text.index("\u00a0") + 1, 1)
        yield document.problem_at(
            place,
            "This line contains a non-breaking space, which only looks like a space. It comes from text copied from web pages.",
            "Replace it with a space.",
        )
    glued = _GLUED.fullmatch(text)
    if glued:
        place = Span(number, len(glued[1]) + 1, len(glued[2]))
        yield document.problem_at(
            place, "The space after the `:` is missing here.", f"Write `{glued[2]} {glued[3]}`."
        )


def _open_quote(document: Document, lines: list[str], line: int, quote: str) -> Iterator[Problem]:
    """The line above that opens a text and never closes it, if the quote in this line closes it by
    accident."""
    for number in range(line - 1, 0, -1):
        text = lines[number - 1]
        if quote not in text.partition(" #")[0]:
            continue
        opened = re.fullmatch(rf"(\s*(?:- )?(?:[\w.-]+:)?\s*){quote}[^{quote}]*", text)
        if opened:
            place = Span(number, len(opened[1]) + 1, 1)
            yield document.problem_at(
                place,
                "A quotation mark opens here and does not close in this line.",
                "Close it. If it belongs to the text, write it twice.",
            )
        return


def _odd_indentation(
    document: Document, lines: list[str], line: int, header: Problem | None
) -> Iterator[Problem]:
    """Mistakes that libyaml reports as indentation or as a list entry. header: the problem of a
    section above whose first line is commented out."""
    broken_line, lines_above = _lines_to(lines, line)
    if header:
        inside = [inner for inner in lines_above if inner.number > header.line]
        if all(inner.indent >= broken_line.indent for inner in inside):
            yield header
    glued = _GLUED_DASH.match(lines[line - 1])
    if glued:
        place = Span(line, len(glued[1]) + 1, 1)
        yield document.problem_at(
            place, "The space after the `-` is missing here.", f"Write `- {glued[2]}`."
        )
    entry = _without_dash(broken_line, lines_above)
    if entry:
        yield entry.without_dash(document)
    if len(lines_above) > 1:
        before, odd = lines_above[-2:]
        if broken_line.is_entry and odd.is_entry:
            before, odd, broken_line = odd, broken_line, odd
        if odd.indent < broken_line.indent == before.indent:
            message = (
                "This line is not indented like those above and below it.",
                f"Indent it by {broken_line.indent} spaces.",
            )
            yield document.problem_at(odd.place, *message)


def _ended_early(source: str, line: int, column: int) -> tuple[Span, str, str] | None:
    """`"A" and more`: the quotes of a value end, and text follows."""
    quoted = _QUOTED.fullmatch(source)
    if quoted:
        trailing = quoted["rest"].partition(" #")[0].strip()
    else:
        trailing = ""
    if (
        not quoted
        or not trailing
        or column <= quoted.start("inner")
        or trailing.startswith((",", "]", "}", ":"))
    ):
        return None
    value_text = source[quoted.start("quote") :].partition(" #")[0].rstrip()
    if quoted["quote"] == '"':
        requoted = "'" + value_text.replace("'", "''") + "'"
    else:
        if value_text.endswith("'"):
            inner = value_text[1:-1]
        else:
            inner = value_text
        escaped = inner.replace("\\", "\\\\").replace('"', '\\"')
        requoted = f'"{escaped}"'
    if len(requoted) < SHOWN:
        end = f": {requoted}"
    else:
        end = "."
    return (
        Span(line, quoted.end("inner") + 1, 1),
        "The quotes end here, and more text follows.",
        f"Put other quotes around the whole text{end}",
    )


class _Line(NamedTuple):
    """A line of a broken file: its number, its indentation in spaces, and its words without a
    comment."""

    number: int
    indent: int
    words: str

    @property
    def is_entry(self) -> bool:
        return self.words.startswith("- ")

    @property
    def place(self) -> Span:
        return Span(self.number, self.indent + 1, len(self.words))

    def without_dash(self, document: Document) -> Problem:
        return document.problem_at(
            self.place,
            "The `- ` that begins a list entry is missing here.",
            f"Write `- {self.words}`, indented like the other entries.",
        )


def _lines_to(lines: list[str], number: int) -> tuple[_Line, list[_Line]]:
    """The line with that number, and the lines above it that have words."""
    parsed = []
    for line_number, text in enumerate(lines[:number], 1):
        indent = len(text) - len(text.lstrip(" "))
        words = re.sub(r"(^|\s)#.*", "", text).strip()
        parsed.append(_Line(line_number, indent, words))
    last = parsed.pop()
    return last, [line for line in parsed if line.words]


def _without_dash(line: _Line, lines_above: list[_Line]) -> _Line | None:
    """A list entry without its `- `: the first one, so that the next dash does not fit, or a text
    among others."""
    entry = line
    if line.is_entry:
        deeper = list(
            takewhile(lambda earlier: earlier.indent > line.indent, reversed(lines_above))
        )
        if not deeper or any(earlier.is_entry for earlier in deeper):
            return None
        lines_before = lines_above[: -len(deeper)]
        if not lines_before or not lines_before[-1].words.endswith(":"):
            return None
        entry = deeper[-1]
    elif not lines_above or ":" in line.words or not lines_above[-1].is_entry:
        return None
    if entry.words.startswith("-"):
        return None
    return entry
