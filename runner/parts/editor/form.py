"""Form: the settings of a recipe as fields, made from its scenario's schema, and what is written in one as a change of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.check import by_schema
from runner.parts.editor.hints import says
from runner.recipe import copying, reading
from runner.recipe.document import Document, Path_
from runner.recipe.overrides import Override, apply
from runner.tools.names import setting
from runner.tools.problem import Stop

BY = "the form"


@dataclass(frozen=True)
class Field:
    """A setting that a form can change. kind: `text`, `whole`, `number`, `choice`, `yes` or `lines` (a list of texts);
    choices: what it can be, or what the catalog proposes, with what is said of each; free: whether it can be something else.
    value: what the recipe says, None where it leaves the setting out; default: what then holds, as a recipe has it."""

    path: Path_
    title: str
    says: str
    kind: str
    choices: Mapping[str, str]
    free: bool
    value: Any
    default: str

    @property
    def name(self) -> str:
        return setting(self.path)


@dataclass(frozen=True)
class Section:
    """A part of a recipe: its own fields, in the schema's order, and the number of settings that lists of sections hold, which
    are edited in the text."""

    name: str
    title: str
    says: str
    fields: tuple[Field, ...]
    in_text: tuple[str, ...]


def sections(document: Document) -> list[Section]:
    """The sections of a recipe whose scenario is known; its own settings first."""
    schema = by_schema.schema(document.data["scenario"])
    plain = {name: part for name, part in schema["properties"].items() if "properties" not in part}
    own = {"title": "The recipe", "markdownDescription": schema["description"], "properties": plain}
    whole = [_section(document, (), own)]
    whole += [
        _section(document, (name,), part) for name, part in schema["properties"].items() if part.get("properties")
    ]
    return whole


def changed(document: Document, path: Path_, value: Any) -> str:
    """The text with a setting as it is in the form; None takes it away. Comments stay where they are.

    Raises Stop where the form of the text keeps the change from being made in it."""
    if value is None and document.lookup(path) is None and path not in document.keys:
        return document.text
    # A section that is not there yet is written with what is in it.
    while len(path) > 2 and value is not None and document.lookup(path[:-1]) is None:
        path, value = path[:-1], {path[-1]: value}
    # And one that holds nothing else goes with what is taken away, because a section without settings has no value.
    while len(path) > 1 and value is None and len(document.lookup(path[:-1])) == 1:
        path = path[:-1]
    change = Override(setting(path), None, value, BY)
    wanted, _ = apply(document, [change])
    text = copying.edit(document.text, [change])
    if reading.parse(document.file, text).data != wanted.data:
        raise Stop(
            f"The form of this text keeps `{change.setting}` from being written into it.", "Write it in the text."
        )
    return text


def _section(document: Document, path: Path_, part: Mapping[str, Any]) -> Section:
    fields = tuple(_fields(document, path, part))
    in_text = tuple(
        setting((*path, name))
        for name, one in part["properties"].items()
        if _kind(one) is None and not one.get("properties")
    )
    return Section(setting(path), part["title"], says(dict(part)), fields, in_text)


def _fields(document: Document, path: Path_, part: Mapping[str, Any], title: str = "") -> Iterator[Field]:
    for name, one in part["properties"].items():
        here = (*path, name)
        said = f"{title}{one['title']}"
        if one.get("properties"):
            yield from _fields(document, here, one, f"{said} · ")
        elif (kind := _kind(one)) and here != ("scenario",):
            yield Field(
                here,
                said,
                says(one),
                kind,
                _choices(one),
                "enum" not in one,
                document.lookup(here),
                _default(one),
            )


def _kind(part: Mapping[str, Any]) -> str | None:
    """The kind of field that a setting takes; None of a section, and of lists that hold more than texts."""
    if part.get("items", {}).get("type") == "string":
        return "lines"
    if "enum" in part or "defaultSnippets" in part:
        return "choice"
    return {"string": "text", "integer": "whole", "number": "number", "boolean": "yes"}.get(part.get("type", "string"))


def _choices(part: Mapping[str, Any]) -> dict[str, str]:
    offered = {one["body"]: one["description"] for one in part.get("defaultSnippets", ())}
    return dict.fromkeys(map(str, part.get("enum", ())), "") | offered


def _default(part: Mapping[str, Any]) -> str:
    if other := part.get("x-default-twice"):
        return f"twice {other}"
    return copying.written(part["default"]) if "default" in part else ""
