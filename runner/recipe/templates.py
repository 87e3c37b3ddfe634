"""Templates: texts with columns in brackets, `For [topic], [question]`. `[[` stands for one
bracket."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from runner.tools import packaged

_PART = re.compile(r"\[\[|\[([^\[\]]*)\]|\[|\]\]")


class NoText(Exception):
    """A row without the text or the conversation that it should have, with the reason in plain
    words."""


def columns(template: str) -> list[str]:
    """The columns that a template names, each once, in order."""
    names = (match[1] for match in _PART.finditer(template))
    return list(dict.fromkeys(name for name in names if name is not None))


def unclosed(template: str) -> int | None:
    """The offset of a bracket that is opened and never closed, or None."""
    for match in _PART.finditer(template):
        if match[0] == "[":
            return match.start()
    return None


def fill(template: str, row: Mapping[str, object]) -> str:
    """The template, filled with each column's text. Raises KeyError with a column that the row
    lacks, and NoText."""
    pattern, names = _parsed(template)
    texts = []
    for name in names:
        # A call for each cell would be slow.
        value = row[name] if name in row else value_at(row, name)
        if type(value) is not str:
            value = text_of(value, name)
        texts.append(value)
    return pattern % tuple(texts)


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column; of an object inside a row by its path, as in `fields.question` and
    `answers.0`. Raises KeyError with the name if the row lacks it."""
    if name in row:
        return row[name]
    value: Any = row
    for key in name.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise KeyError(name)
    return value


# Fields of an object that is a step of an instruction: its words, and what is beside them.
_STEP_WORDS = ("text", "step", "instruction", "description")
_FIELDS_OF_STEPS = (
    *_STEP_WORDS,
    "name",
    "url",
    "image",
    "video",
    "id",
    "type",
    "position",
    "number",
)


def text_of_steps(entries: Sequence[object]) -> str | None:
    """The lines of a list of texts, or of steps that are objects with a text each, as recipes for
    cooking have them, maybe in sections; None for another list."""
    lines = []
    for entry in entries:
        text: str | None = None
        if isinstance(entry, str):
            text = entry
        elif isinstance(entry, Mapping):
            text = _text_of_step(entry)
        if text is None:
            return None
        lines.append(text)
    return "\n".join(lines)


def _text_of_step(step: Mapping[str, object]) -> str | None:
    inner = step.get("itemListElement")
    if isinstance(inner, list):
        steps = text_of_steps(inner)
        name = step.get("name")
        if steps is not None and isinstance(name, str) and name:
            return f"{name}\n{steps}"
        return steps
    if any(not name.startswith("@") and name not in _FIELDS_OF_STEPS for name in step):
        return None
    for name in _STEP_WORDS:
        text = step.get(name)
        if isinstance(text, str):
            return text
    return None


def text_of(value: object, column: str) -> str:
    """A value as text; empty for None and NaN; the lines of a list of texts, or of steps. Raises
    NoText for an object, and a list of other things."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        raise NoText(f"`{column}` contains an object, not text")
    if isinstance(value, list | tuple):
        lines = text_of_steps(value)
        if lines is not None:
            return lines
        raise NoText(f"`{column}` contains a list, not text")
    if value is None or value != value:
        return ""
    return str(value)


@lru_cache
def _parsed(template: str) -> tuple[str, list[str]]:
    """The template with a `%s` for each column, which Python fills fastest, and the columns in
    their order."""
    pattern = ""
    names = []
    end = 0
    for match in _PART.finditer(template):
        if match[0] == "[":
            continue
        pattern += template[end : match.start()].replace("%", "%%")
        if match[1] is None:
            pattern += match[0][0]
        else:
            pattern += "%s"
            names.append(match[1])
        end = match.end()
    return pattern + template[end:].replace("%", "%%"), names


_COLUMNS = packaged.toml(__file__, "columns.toml")
SETTINGS = _COLUMNS["templates"]
NAMES = _COLUMNS["names"]
BESIDES = _COLUMNS["besides"]
PROMPTS = _COLUMNS["prompts"]
FORMS = _COLUMNS["forms"]


def needed(data: Mapping[str, Any]) -> dict[str, str]:
    """The columns that the settings of a data set name, each with the setting that does."""
    used: dict[str, str] = {}
    for setting in SETTINGS:
        used |= dict.fromkeys(columns(data.get(setting) or ""), setting)
    used |= {data[setting]: setting for setting in NAMES if data.get(setting)}
    songs = data.get("songs") or {}
    for setting in ("instruction", "lyrics"):
        if setting in songs:
            used[songs[setting]] = f"songs.{setting}"
    return used
