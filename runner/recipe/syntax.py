"""What libyaml complains of, as what a person would see in the line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from runner.recipe.document import Document, Span
from runner.tools.problem import SHOWN, Problem

# `epochs:4`, which YAML reads as one word.
_GLUED = re.compile(r"(\s*)([A-Za-z_]\w*:)([^\s:/#]\S*)\s*(?:#.*)?")
_GLUED_DASH = re.compile(r"(\s*)-([A-Za-z_]\w*:)")
# A section's first line, and one that was made a comment.
_HIDDEN = re.compile(r"(\s*)#\s?(?P<name>[a-z_]+):\s*(?:#.*)?")
_QUOTED = re.compile(
    r"""(?P<before>\s*(?:-\s+)?(?:[\w.-]+:\s+)?)(?P<quote>["'])(?P<inner>(?:(?!(?P=quote)).)*)(?P=quote)(?P<rest>.*)"""
)


@dataclass(frozen=True)
class Header:
    """A line that would open a section if it were no comment. line: 1-based."""

    line: int
    name: str


def hidden_header(document: Document, line: int) -> Header | None:
    """The commented first line of a section that the lines down to this one would belong to; None where there is none."""
    lines = document.text.splitlines()
    for number in range(line - 1, 0, -1):
        if found := _HIDDEN.fullmatch(lines[number - 1]):
            return Header(number, found["name"])
        if lines[number - 1][:1] not in ("", " ", "#"):
            return None
    return None


def behind_a_comment(document: Document, header: Header, instead: str = "") -> Problem:
    """The Problem with such a line. instead: what becomes of the lines below it."""
    source = document.text.splitlines()[header.line - 1]
    return document.problem_at(
        Span(header.line, source.index("#") + 1, len(source.partition(":")[0]) - source.index("#") + 1),
        f"`{header.name}:` stands behind a `#`, and the lines below it do not" + (f": {instead}." if instead else "."),
        "Delete the `#`, or put one in front of each of its lines too.",
    )


# By words of libyaml's complaint, the first that fit: whether the place is where its context began, what is wrong, what to do.
_COMPLAINTS = (
    (
        ("mapping values are not allowed",),
        False,
        "A second `: ` stands in this line, or the line is indented too far.",
        "Put quotes around a value that holds `: `, and indent as the line above.",
    ),
    (
        ("could not find expected ':'",),
        True,
        "The `:` after a setting's name is missing here.",
        "Write `name: value`.",
    ),
    (
        ("escape",),
        False,
        "In double quotes a `\\` begins a special character, and there is none such.",
        "Use single quotes, `'C:\\data'`; in paths `/` works everywhere.",
    ),
    (
        ("quoted scalar",),
        True,
        "A quote opens here and is never closed.",
        "Close it, or double a quote that belongs to the text.",
    ),
    (
        ("did not find expected key", "block mapping", "block collection", "block end"),
        False,
        "This line does not fit the lines above it.",
        "Indent it exactly as its neighbours: settings of one section start in the same column.",
    ),
    (
        ("flow", "',' or"),
        True,
        "A `[` or `{` opens here and is never closed.",
        "Close it, or put quotes around a text that starts with a bracket.",
    ),
    (("cannot start any token",), False, "A value cannot start with `{here}`.", "Put quotes around the value."),
    (
        ("",),
        False,
        "This is not YAML.",
        "Each line of a recipe reads `name: value`. Compare with a starter recipe: `recipe list`.",
    ),
)


def problem(document: Document, error: yaml.MarkedYAMLError) -> Problem:
    """libyaml's complaint, as what a person would see in the line."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = document.text.splitlines() or [""]
    line = min(line, len(lines))
    if seen := next(_seen(lines, line, column), None):
        return document.problem_at(*seen)
    complaint = f"{error.context or ''} {error.problem or ''}"
    words, at_context, message, hint = next(row for row in _COMPLAINTS if any(word in complaint for word in row[0]))
    if "mapping values are not allowed" in words and (header := hidden_header(document, line)):
        return behind_a_comment(document, header)
    if "block mapping" in words and (
        likely := _lost_header(document, lines, line)
        or _missing_dash(document, lines, line)
        or _unindented(document, lines, line)
    ):
        return likely
    start = error.context_mark if at_context else None
    at = Span(start.line + 1, start.column + 1, 1) if start else Span(line, column, 1)
    here = lines[line - 1][column - 1 : column]
    return document.problem_at(at, message.replace("{here}", here), hint)


def _seen(lines: list[str], line: int, column: int) -> Iterator[tuple[Span, str, str]]:
    """What can be seen in the text, whatever libyaml says of it: the place, what is wrong, and what to do."""
    source = lines[line - 1]
    if "\t" in source[: len(source) - len(source.lstrip())] or source[column - 1 : column] == "\t":
        message = "A tab stands here, and YAML allows only spaces to indent."
        yield Span(line, source.index("\t") + 1, 1), message, "Replace the tab by spaces, two for each level."
    for number, text in ((line - 1, lines[line - 2] if line > 1 else ""), (line, source)):
        if "\u00a0" in text.partition("#")[0]:
            message = "A non-breaking space stands here, which only looks like a space; it comes with text copied from web pages."
            yield Span(number, text.index("\u00a0") + 1, 1), message, "Type a space in its place."
        if glued := _GLUED.fullmatch(text):
            at = Span(number, len(glued[1]) + 1, len(glued[2]))
            yield at, "The space after the `:` is missing here.", f"Write `{glued[2]} {glued[3]}`."
    if opening := _open_quote(lines, line, column):
        message = "A quote opens here and is not closed in this line."
        yield opening, message, "Close it, or double a quote that belongs to the text."
    if ended := _ended_early(source, line, column):
        yield ended


def _open_quote(lines: list[str], line: int, column: int) -> Span | None:
    """Where the quote opens that was closed by accident just before this place, lines further down; None for none."""
    quote = lines[line - 1][column - 2 : column - 1]
    if quote not in ("'", '"') or not quote:
        return None
    for number in range(line - 1, 0, -1):
        if quote in lines[number - 1].partition(" #")[0]:
            opened = re.fullmatch(rf"(\s*(?:- )?(?:[\w.-]+:)?\s*){quote}[^{quote}]*", lines[number - 1])
            return Span(number, len(opened[1]) + 1, 1) if opened else None
    return None


def _ended_early(source: str, line: int, column: int) -> tuple[Span, str, str] | None:
    """`"A" and more`: the quotes of a value end, and text follows."""
    found = _QUOTED.fullmatch(source)
    rest = found["rest"].partition(" #")[0].strip() if found else ""
    if not found or not rest or column <= found.start("inner") or rest.startswith((",", "]", "}", ":")):
        return None
    whole = source[found.start("quote") :].partition(" #")[0].rstrip()
    if found["quote"] == '"':
        meant = "'" + whole.replace("'", "''") + "'"
    else:
        inner = whole[1:-1] if whole.endswith("'") else whole
        meant = '"' + inner.replace("\\", "\\\\").replace('"', '\\"') + '"'
    end = found.end("inner") + 1
    return (
        Span(line, end, 1),
        "The quotes end here, and more text follows.",
        "Put other quotes around the whole text" + (f": {meant}" if len(meant) < SHOWN else "."),
    )


def _blank(line: str) -> bool:
    return not line.partition("#")[0].strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _lost_header(document: Document, lines: list[str], line: int) -> Problem | None:
    """The commented line that would open the section which this line, and those in between, belong to."""
    header = hidden_header(document, line)
    between = [text for text in lines[header.line if header else line : line - 1] if not _blank(text)]
    fits = header and all(_indent(text) >= _indent(lines[line - 1]) for text in between)
    return behind_a_comment(document, header) if header and fits else None


def _missing_dash(document: Document, lines: list[str], line: int) -> Problem | None:
    """An entry of a list without its `- `: the first one, which the next one's dash then does not fit, or a text among others."""
    if glued := _GLUED_DASH.match(lines[line - 1]):
        at = Span(line, len(glued[1]) + 1, 1)
        return document.problem_at(at, "The space after the `-` is missing here.", f"Write `- {glued[2]}`.")
    source, above = lines[line - 1], [number for number in range(1, line) if not _blank(lines[number - 1])]
    if source.lstrip().startswith("- "):
        while above and _indent(lines[above[-1] - 1]) > _indent(source):
            line = above.pop()
            if lines[line - 1].lstrip().startswith("- "):
                return None
        if lines[line - 1] is source or not above or not re.search(r":\s*(#.*)?$", lines[above[-1] - 1]):
            return None
    elif not above or ":" in source.partition(" #")[0] or not lines[above[-1] - 1].lstrip().startswith("- "):
        return None
    source = lines[line - 1]
    if source.lstrip().startswith("-"):
        return None
    text = source.strip().partition(" #")[0].rstrip()
    return document.problem_at(
        Span(line, _indent(source) + 1, len(text)),
        "The `- ` that begins an entry of the list is missing here.",
        f"Write `- {text}`, indented as the other entries.",
    )


def _unindented(document: Document, lines: list[str], line: int) -> Problem | None:
    """The line above, where it and not this one stands otherwise than its neighbours."""
    above = [number for number in range(1, line) if not _blank(lines[number - 1])][-2:]
    if len(above) < 2:
        return None
    before, odd = above
    if lines[line - 1].lstrip().startswith("- ") and lines[odd - 1].lstrip().startswith("- "):
        before, odd, line = odd, line, odd
    if not _indent(lines[odd - 1]) < _indent(lines[line - 1]) == _indent(lines[before - 1]):
        return None
    depth = _indent(lines[line - 1])
    return document.problem_at(
        Span(odd, _indent(lines[odd - 1]) + 1, len(lines[odd - 1].strip().partition(" #")[0].rstrip())),
        "This line is not indented as those above and below it.",
        f"Put {depth} blanks in front of it.",
    )
