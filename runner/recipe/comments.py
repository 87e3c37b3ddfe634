"""Comments that stay true: a value that is changed by a command takes along what was said of the one before.

A changed value's comment becomes what the schema says of the setting. That of a number says what more and less of it mean, and
loses the clauses with figures alone. Beside other lines these were reckoned for the recipe as it was, and go too: beside data
and machines where those are changed, elsewhere where anything is that changes results. An item of a list speaks of itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from runner.recipe.copying import NEW, edit
from runner.recipe.document import Document, Path_, Place
from runner.recipe.overrides import Override
from runner.recipe.reading import parse
from runner.recipe.recipe import OUTSIDE_RESULT

# A number by itself: none in a name, and none of a number format.
_FIGURE = re.compile(r"(?<![\w.`-])\d[\d.,]*(?:e-?\d+)?(?![\w-])(?! (?:bytes|bits)\b)")
_COMMENT = re.compile(r"[ \t]+#(?:[ \t].*)?$")

# What holds for any value of a setting, in a sentence without its full stop; empty where nobody knows it.
Says = Callable[[Path_], str]


@dataclass(frozen=True)
class _Line:
    """A line with a comment. paths: of the settings that stand on it, the outermost first; at: where the comment begins, with
    the spaces before it."""

    number: int
    paths: tuple[Path_, ...]
    at: int
    comment: str


def edited(text: str, changes: Iterable[Override], says: Says) -> str:
    """The text with each change made in it, and comments that hold for it."""
    changes = list(changes)
    before, text = parse("the copy", text), edit(text, changes)
    after = parse("the copy", text)
    made = {change.path for change in changes if before.lookup(change.path) != after.lookup(change.path)}
    # What the runner itself writes says why.
    reasons = {change.path: change.why for change in changes if change.why and change.by == NEW}
    lines = text.splitlines(keepends=True)
    for line in _commented(after):
        own = next((reasons[path] for path in line.paths if path in made and path in reasons), None)
        words = own or _words(line, after, made, says)
        if words != line.comment:
            old = lines[line.number]
            end = "\n" if old.endswith("\n") else ""
            gap = old[line.at :][: len(old[line.at :]) - len(old[line.at :].lstrip())]
            lines[line.number] = old[: line.at] + (f"{gap}# {words}" if words else "") + end
    return "".join(lines)


def _words(line: _Line, document: Document, made: set[Path_], says: Says) -> str:
    """What may be said on a line now that the settings `made` are changed."""
    changed = next((one for one in line.paths if one in made), None)
    path = changed or line.paths[0]
    value = document.lookup(path)
    if changed and (isinstance(value, bool) or not isinstance(value, int | float)):
        return _said(path, says)
    if not changed and (isinstance(path[-1], int) or not any(_reckoned_from(change, path) for change in made)):
        return line.comment
    return "; ".join(clause for clause in line.comment.split("; ") if not _FIGURE.search(clause)) or _said(path, says)


def _said(path: Path_, says: Says) -> str:
    words = "" if isinstance(path[-1], int) else says(path)
    return words[:1].lower() + words[1:] if words[1:2].islower() else words


def _reckoned_from(change: Path_, path: Path_) -> bool:
    """Whether a figure beside the setting at `path` may come from what is changed."""
    for apart in ("data", "machines"):
        if apart in path:
            return apart in change
    return change[0] not in OUTSIDE_RESULT and ("data" not in change or path[0] in OUTSIDE_RESULT)


def _commented(document: Document) -> Iterator[_Line]:
    there: dict[int, list[tuple[Path_, Place]]] = {}
    for path, place in (*document.keys.items(), *document.values.items()):
        # A section begins on the line of its first setting, and is named on the one before.
        if path and place.line == document.keys.get(path, place).line:
            there.setdefault(place.line - 1, []).append((path, place))
    for number, line in enumerate(document.text.splitlines()):
        places = there.get(number, ())
        ends = [place.column - 1 + place.width for _, place in places]
        if places and (found := _COMMENT.search(line, max(ends))):
            paths = sorted({path for path, _ in places}, key=len)
            yield _Line(number, tuple(paths), found.start(), found[0].lstrip().removeprefix("#").strip())
