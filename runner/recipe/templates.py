"""Templates: texts with columns in brackets, `For [topic], [question]`. `[[` stands for one bracket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PART = re.compile(r"\[\[|\[([^\[\]]*)\]|\[|\]\]")


def columns(template: str) -> list[str]:
    """The columns that a template names, each once, in order."""
    return list(dict.fromkeys(match[1] for match in _PART.finditer(template) if match[1] is not None))


def unclosed(template: str) -> int | None:
    """The offset of a bracket that is opened and never closed, or None."""
    return next((match.start() for match in _PART.finditer(template) if match[0] == "["), None)


def fill(template: str, row: Mapping[str, Any]) -> str:
    """The template with each column's text from `row` in its place.

    Raises KeyError with the name of a column that the row lacks.
    """

    def part(match: re.Match[str]) -> str:
        if match[0] == "[[":
            return "["
        if match[0] == "]]":
            return "]"
        value = row[match[1]]
        return "" if value is None else str(value)

    return _PART.sub(part, template)
