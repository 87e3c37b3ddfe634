"""What libyaml complains of, as what a person would see in the line."""

from __future__ import annotations

import re

import yaml

from runner.problem import Problem
from runner.recipe.document import Document, Place

# `epochs:4`, which YAML reads as one word.
_GLUED = re.compile(r"(\s*)([A-Za-z_]\w*:)([^\s:/#]\S*)\s*(?:#.*)?")


def problem(document: Document, error: yaml.MarkedYAMLError) -> Problem:
    """libyaml's complaint, as what a person would see in the line."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = document.text.splitlines() or [""]
    line = min(line, len(lines))
    source = lines[line - 1]
    complaint = f"{error.context or ''} {error.problem or ''}"
    indent = source[: len(source) - len(source.lstrip())]
    if "\t" in indent or (source[column - 1 : column] == "\t"):
        where = source.index("\t") + 1
        return document.problem_at(
            Place(line, where, 1),
            "A tab stands here, and YAML allows only spaces to indent.",
            "Replace the tab by spaces, two for each level.",
        )
    above = lines[line - 2] if line > 1 else ""
    for number, text in ((line - 1, above), (line, source)):
        if "\u00a0" in text.partition("#")[0]:
            return document.problem_at(
                Place(number, text.index("\u00a0") + 1, 1),
                "A non-breaking space stands here, which only looks like a space; it comes with text copied from web pages.",
                "Type a space in its place.",
            )
        if glued := _GLUED.fullmatch(text):
            return document.problem_at(
                Place(number, len(glued[1]) + 1, len(glued[2])),
                "The space after the `:` is missing here.",
                f"Write `{glued[2]} {glued[3]}`.",
            )
    if opening := _open_quote(lines, line, column):
        return document.problem_at(
            opening,
            "A quote opens here and is not closed in this line.",
            "Close it, or double a quote that belongs to the text.",
        )
    if "mapping values are not allowed" in complaint:
        return document.problem_at(
            Place(line, column, 1),
            "A second `: ` stands in this line, or the line is indented too far.",
            "Put quotes around a value that holds `: `, and indent as the line above.",
        )
    if "could not find expected ':'" in complaint:
        start = error.context_mark
        at = Place(start.line + 1, start.column + 1, 1) if start else Place(line, column, 1)
        return document.problem_at(
            at,
            "The `:` after a setting's name is missing here.",
            "Write `name: value`.",
        )
    if "escape" in complaint:
        return document.problem_at(
            Place(line, column, 1),
            "In double quotes a `\\` begins a special character, and there is none such.",
            "Use single quotes, `'C:\\data'`; in paths `/` works everywhere.",
        )
    if "quoted scalar" in complaint:
        start = error.context_mark
        at = Place(start.line + 1, start.column + 1, 1) if start else Place(line, column, 1)
        return document.problem_at(
            at,
            "A quote opens here and is never closed.",
            "Close it, or double a quote that belongs to the text.",
        )
    if (
        "did not find expected key" in complaint
        or "block mapping" in complaint
        or "block collection" in complaint
        or "block end" in complaint
    ):
        return document.problem_at(
            Place(line, column, 1),
            "This line does not fit the lines above it.",
            "Indent it exactly as its neighbours: settings of one section start in the same column.",
        )
    if "flow" in complaint or "',' or" in complaint:
        start = error.context_mark
        at = Place(start.line + 1, start.column + 1, 1) if start else Place(line, column, 1)
        return document.problem_at(
            at,
            "A `[` or `{` opens here and is never closed.",
            "Close it, or put quotes around a text that starts with a bracket.",
        )
    if "cannot start any token" in complaint:
        return document.problem_at(
            Place(line, column, 1),
            f"A value cannot start with `{source[column - 1 : column]}`.",
            "Put quotes around the value.",
        )
    return document.problem_at(
        Place(line, column, 1),
        "This is not YAML.",
        "Each line of a recipe reads `name: value`. Compare with a starter recipe: `recipe list`.",
    )


def _open_quote(lines: list[str], line: int, column: int) -> Place | None:
    """Where the quote opens that was closed by accident just before this place, lines further down; None for none."""
    quote = lines[line - 1][column - 2 : column - 1]
    if quote not in ("'", '"') or not quote:
        return None
    for number in range(line - 1, 0, -1):
        if quote in lines[number - 1].partition(" #")[0]:
            opened = re.fullmatch(rf"(\s*(?:- )?(?:[\w.-]+:)?\s*){quote}[^{quote}]*", lines[number - 1])
            return Place(number, len(opened[1]) + 1, 1) if opened else None
    return None
