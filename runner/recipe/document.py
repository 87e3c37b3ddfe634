"""A recipe's YAML as plain data, with the line and column of every key and value."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypedDict

from runner.tools.problem import Problem, Severity
from runner.tools.settings import Section

Path_ = tuple[str | int, ...]


class Span(NamedTuple):
    """A stretch of text: 1-based line and column, width in characters on that line, and character
    offsets."""

    line: int
    column: int
    width: int
    start: int = 0
    end: int = 0


class ProblemOptions(TypedDict, total=False):
    """Options of `Document.problem`."""

    key: bool
    severity: Severity
    mending: object
    check: str


class NoteOptions(TypedDict, total=False):
    """The same for a note."""

    key: bool
    mending: object
    check: str


@dataclass
class Document:
    """A recipe as it was written, and what was changed on top of it. data: plain dicts, lists and
    scalars. keys, values: for each path, where its key and its value are. origins: for a path set
    from outside the file, what set it (`--set train.epochs=2`, `EPOCHS=2`)."""

    file: str
    text: str
    data: Any = None
    keys: dict[Path_, Span] = field(default_factory=dict)
    values: dict[Path_, Span] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)

    def problem(
        self,
        path: Path_,
        message: str,
        hint: str = "",
        *,
        key: bool = False,
        severity: Severity = "error",
        mending: object = None,
        check: str = "",
    ) -> Problem:
        """A Problem at the value (or the key) of `path`, or at its nearest parent. mending: a value
        that solves it. check: the name of what found it, if its rule finds several things."""
        if mending is None:
            mends = None
        else:
            mends = (dotted(path), mending)
        problem = self._problem_at_path(path, message, hint, key, severity)
        return replace(problem, mends=mends, setting=setting_name(path), check=check)

    def _problem_at_path(
        self, path: Path_, message: str, hint: str, key: bool, severity: Severity
    ) -> Problem:
        for length in range(len(path), -1, -1):
            origin = self.origins.get(path[:length])
            if origin:
                return Problem(origin, 0, 0, message, hint, severity=severity)
            if key or length < len(path):
                places = (self.keys, self.values)
            else:
                places = (self.values, self.keys)
            for spans in places:
                place = spans.get(path[:length])
                if place:
                    return self.problem_at(place, message, hint, severity)
            origin = self._origin_below(path[:length])
            if origin and severity == "error":
                return Problem(origin, 0, 0, message, hint, severity=severity)
        return Problem(self.file, 1, 1, message, hint, severity=severity)

    def _origin_below(self, path: Path_) -> str:
        """What set the first setting of a section that the file does not have; empty for the whole
        recipe, and if nothing in it was set from outside."""
        if not path:
            return ""
        for place, origin in self.origins.items():
            if place[: len(path)] == path:
                return origin
        return ""

    def problem_at(
        self, place: Span, message: str, hint: str = "", severity: Severity = "error"
    ) -> Problem:
        lines = self.text.splitlines()
        if 0 < place.line <= len(lines):
            source = lines[place.line - 1]
        else:
            source = ""
        width = max(1, min(place.width, len(source) - place.column + 1))
        return Problem(self.file, place.line, place.column, message, hint, source, width, severity)

    def written(self, path: Path_) -> str:
        """The value at `path` as the file has it, `3.10` for the number 3.1; from another source,
        as it was read."""
        parents = (path[:length] for length in range(len(path) + 1))
        place = self.values.get(path)
        if place is None or any(map(self.origins.get, parents)):
            return str(self.lookup(path))
        return self.text[place.start : place.end].strip()

    def lookup(self, path: Path_) -> Any:
        """The value at `path`, or None."""
        return value_at(self.data, path)


def dotted(path: Path_) -> str:
    """The dotted name of a setting, whose indices have no brackets."""
    return ".".join(map(str, path))


def setting_name(path: Path_) -> str:
    """The dotted name of a setting without the numbers of list entries, which change when an entry
    is added above."""
    return dotted(tuple(part for part in path if isinstance(part, str)))


def path_of(setting: str) -> Path_:
    """The keys and indices of a dotted setting, whose indices may be in brackets."""
    parts = re.sub(r"\[(\d+)\]", r".\1", setting).split(".")
    return tuple(map(_key_or_index, parts))


def _key_or_index(part: str) -> str | int:
    if part.isdecimal():
        return int(part)
    return part


def value_at(value: Any, path: Path_) -> Any:
    """The value at `path` within another, or None."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def named(term: str) -> Path_:
    """The path of the setting that a term is about, the first of `key|other`."""
    return _term(term)[0][0]


def holds(data: Section, term: str) -> bool:
    """Whether a term of a table of contradictions is true: `key` is on, or one of `key|other`;
    `key=this|that`, `key>other`, `key<other` (a number or a key), `key~expression`; or `key?` is
    written and not empty. Before a sign, `key|other` is the first of these that is written."""
    keys, sign, operand = _term(term)
    value: Any = None
    for key in keys:
        if value is None or (not sign and not value):
            value = value_at(data, key)
    if sign == "=":
        text = str(value)
        if isinstance(value, bool):
            text = text.lower()
        return text in operand.split("|")
    if sign in (">", "<"):
        if operand[:1].isalpha():
            limit = value_at(data, tuple(operand.split(".")))
        else:
            limit = float(operand)
        if not isinstance(value, int | float) or not isinstance(limit, int | float):
            return False
        if sign == ">":
            return value > limit
        return value < limit
    if sign == "~":
        return isinstance(value, str) and bool(re.fullmatch(operand, value, re.IGNORECASE))
    if sign == "?":
        return value is not None
    return bool(value)


_TERM = re.compile(r"([^=><~?]*)([=><~?]?)(.*)", re.DOTALL)


@cache
def _term(term: str) -> tuple[list[Path_], str, str]:
    match = _TERM.fullmatch(term)
    assert match  # it matches any text
    names, sign, operand = match.groups()
    return [tuple(name.split(".")) for name in names.split("|")], sign, operand


def applies(data: Section, when: Iterable[str], unless: Iterable[str] = ()) -> bool:
    """Whether all terms of `when` hold, and none of `unless`."""
    for term in when:  # without generators, which 1,000 recipes would feel
        if not holds(data, term):
            return False
    return not any(map(partial(holds, data), unless))


def leaves(
    value: object,
    entered: Callable[[Sequence[object]], object] = lambda items: False,
    path: Path_ = (),
) -> Iterator[tuple[Path_, Any]]:
    """Every setting that is not a section, by its path; an empty section counts. entered: whether a
    list's items count separately; other lists are one value."""
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple) and entered(value):
        items = enumerate(value)
    for key, item in items:
        yield from leaves(item, entered, (*path, key))
    if not items:
        yield path, value


def flat(settings: Section) -> dict[str, str]:
    """Every setting that is not a section, by its dotted name, and its value as in a recipe."""
    texts = {}
    for path, value in leaves(settings):
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, ensure_ascii=False)
        if value != {}:
            texts[dotted(path)] = text
    return texts


def merged(base: Section, changes: Section) -> dict[str, Any]:
    """Settings with others on top, section by section."""
    combined = dict(base)
    for key, value in changes.items():
        inner = combined.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            combined[key] = merged(inner, value)
        else:
            combined[key] = value
    return combined


def differing(settings: Iterable[Section], missing: Any = None) -> list[tuple[str, list[Any]]]:
    """The settings that differ, each with its value in every section, `missing` if a section lacks
    it."""
    sections = list(settings)
    rows = []
    for name in dict.fromkeys(chain(*sections)):
        values = [section.get(name, missing) for section in sections]
        if any(value != values[0] for value in values):
            rows.append((name, values))
    return rows
