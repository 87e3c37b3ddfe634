"""Hints: what could stand at a place of a recipe's text, and what the setting there means; from the scenario's schema, as editors
read it. The text may be broken: its lines are read by their indentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runner import scenarios
from runner.check import by_schema
from runner.recipe.copying import written

# Stands in a path for any item of a list.
ITEM = "[]"
_KEY = re.compile(r"( *)(- +)?([\w-]+):(?: |$)")
_SCENARIO = re.compile(r"^scenario:\s*([\w-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """What may be written at a place. label: as a list shows it; text: what is written; kind: `section`, `setting` or `value`;
    says: what it means, Markdown of `code` and paragraphs."""

    label: str
    text: str
    kind: str
    says: str = ""


@dataclass(frozen=True)
class Meaning:
    """What a setting is, says: Markdown of `code` and paragraphs."""

    title: str
    says: str


def scenario_of(text: str) -> str | None:
    """The scenario that a text names, if there is one of that name."""
    named = _SCENARIO.search(text)
    return named[1] if named and named[1] in scenarios.names() else None


def proposals(text: str, line: int, column: int) -> list[Proposal]:
    """What may be written at a place, both counted from 0; empty within comments and where nothing is known."""
    lines = text.split("\n")
    before = lines[line][:column]
    if " #" in before or before.startswith("#"):
        return []
    if value := re.fullmatch(r"( *)(- +)?([\w-]+): +[^\s'\"\[{]*", before):
        indent = len(value[1]) + len(value[2] or "")
        return list(_values(_part(text, (*_section(lines, line, indent), value[3]))))
    if not (key := re.fullmatch(r"( *)(- +)?([\w./-]*)", before)):
        return []
    indent = len(key[1]) + len(key[2] or "")
    part = _part(text, _section(lines, line, indent))
    if not part.get("properties"):
        return list(_values(part)) if key[2] else []
    there = _keys_beside(lines, line, indent)
    return [_of_key(name, one, indent) for name, one in part["properties"].items() if name not in there]


def meaning(text: str, line: int) -> Meaning | None:
    """What the setting in a line is, which counts from 0."""
    lines = text.split("\n")
    found = _KEY.match(lines[line])
    if not found:
        return None
    part = _part(text, (*_section(lines, line, found.start(3)), found[3]))
    return Meaning(part["title"], says(part)) if part else None


def says(part: dict[str, Any]) -> str:
    """What the schema says of a setting, with what it can be."""
    choices = f"It can be {', '.join(f'`{choice}`' for choice in part['enum'])}." if "enum" in part else ""
    return "\n\n".join(filter(None, (part.get("markdownDescription", ""), choices)))


def _part(text: str, path: tuple[str, ...]) -> dict[str, Any]:
    """What the schema says of a setting; empty where it has none. A text without a scenario has that setting alone."""
    scenario = scenario_of(text)
    names = scenarios.names()
    part: dict[str, Any] = (
        by_schema.schema(scenario)
        if scenario
        else {"properties": {"scenario": {"title": "Scenario", "type": "string", "enum": names}}}
    )
    if path == ("scenario",):
        return {**part["properties"]["scenario"], "enum": names}
    for key in path:
        part = part.get("items", {}) if key == ITEM else part.get("properties", {}).get(key, {})
    return part


def _section(lines: list[str], line: int, indent: int) -> tuple[str, ...]:
    """The sections around a setting that begins in column `indent` of a line."""
    path: list[str] = []
    limit = indent
    dash = _dash(lines[line])
    if dash is not None and dash < indent:
        path, limit = [ITEM], dash + 1
    for above in reversed(lines[:line]):
        if limit == 0:
            break
        known, dash = _KEY.match(above), _dash(above)
        start = known.start(3) if known else None
        if dash is not None and dash < limit:
            if path[:1] == [ITEM] and dash == limit - 1:
                continue  # an item before this one
            if known and start is not None and start < limit:
                path.insert(0, known[3])
            path.insert(0, ITEM)
            limit = dash + 1
        elif known and start is not None and start < limit:
            path.insert(0, known[3])
            limit = start
    return tuple(path)


def _dash(line: str) -> int | None:
    """The column of the dash of an item that begins in a line."""
    found = re.match(r" *- ", f"{line} ")
    return found.end() - 2 if found else None


def _keys_beside(lines: list[str], line: int, indent: int) -> set[str]:
    """The settings of the same section as a setting that begins in column `indent` of a line, which is not among them."""
    found = set()
    own = _dash(lines[line])
    for step in (-1, 1):
        number = line if own is not None and step < 0 else line + step
        while 0 <= number < len(lines):
            text = lines[number]
            known, dash = _KEY.match(text), _dash(text)
            start = known.start(3) if known else len(text) - len(text.lstrip())
            if step > 0 and dash is not None and dash < indent:
                break
            if text.strip() and not text.lstrip().startswith("#") and start < indent:
                break
            if known and start == indent and number != line:
                found.add(known[3])
            if step < 0 and dash is not None and dash < indent:
                break
            number += step
    return found


def _of_key(name: str, part: dict[str, Any], indent: int) -> Proposal:
    section = bool(part.get("properties"))
    rest = f"\n{' ' * (indent + 2)}" if section else " "
    return Proposal(name, f"{name}:{rest}", "section" if section else "setting", says(part))


def _values(part: dict[str, Any]) -> Iterator[Proposal]:
    """What a setting can be, as far as the schema knows it: choices, what the catalog has, the default, an example."""
    offered = [(snippet["body"], snippet["description"]) for snippet in part.get("defaultSnippets", ())]
    choices = [(value, "") for value in part.get("enum", [True, False] if part.get("type") == "boolean" else [])]
    others = [(part["default"], "The default.")] if "default" in part else []
    others += [(example, "An example.") for example in part.get("examples", ())]
    seen = set()
    for value, why in (*offered, *choices, *others):
        if (text := written(value)) not in seen:
            seen.add(text)
            yield Proposal(text, text, "value", why)
