"""A value of another kind than its setting takes, and what was most likely meant by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runner.recipe import templates
from runner.recipe.scalars import scalar
from runner.tools.names import shortened

# Characters of a value that is named.
SHOWN = 40
KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
    "object": "a section with settings of its own",
    "array": "a list",
}
# How people write units, and how they are written here.
UNITS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "MB": ("mb", "m", "megabyte", "megabytes"),
    "GB": ("gb", "g", "gigabyte", "gigabytes"),
    "TB": ("tb", "t", "terabyte", "terabytes"),
    "GiB": ("gib", "gi"),
    "TiB": ("tib", "ti"),
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def explain(allowed: str, value: Any, part: dict[str, Any], name: str, default: str, written: str) -> tuple[str, str]:
    """What is wrong with a value of the wrong kind, and what to write. name: of the setting, in backticks; default: words for
    that; written: the value as it stands in the file."""
    kind, setting = KINDS[allowed], name.strip("`")
    if value is None:
        return f"{name} has no value.", f"Write {kind}{default}."
    if allowed == "array":
        said = "it has settings of its own" if isinstance(value, dict) else f"it is `{shortened(written, SHOWN)}`"
        return f"{name} must be a list, and here {said}.", _list_hint(value, part, setting)
    if isinstance(value, bool):
        return f"{name} must be {kind}, and `{str(value).lower()}` is a yes or no.", f"Write {kind}{default}."
    if isinstance(value, dict):
        return _settings_in_place(allowed, value, written, name, kind)
    if isinstance(value, list):
        return f"{name} must be {kind}, and here it is a list.", _single_hint(allowed, value, setting)
    if isinstance(value, str):
        hint = _number_hint(allowed, value, kind) or f"Write {kind}{default}."
        return f"{name} must be {kind}, and `{shortened(value, SHOWN)}` is text.", hint
    if allowed == "integer" and isinstance(value, float):
        return f"{name} must be {kind}, and {value:g} is not.", f"Write {kind}{default}."
    if allowed == "string" and "pattern" in part and not re.search(part["pattern"], written):
        return not_of_the_form(written, part, name)
    if allowed == "string":
        return f"{name} must be {kind}, and `{written}` is a number.", f'Put quotes around it: "{written}".'
    return f"{name} must be {kind}, and here it is {value}.", f"Write {kind}{default}."


def not_of_the_form(written: str, part: dict[str, Any], name: str) -> tuple[str, str]:
    """A text that its setting's pattern refuses."""
    message, pattern = f"{name} cannot be `{written}`.", part["pattern"]
    if amount := _AMOUNT.fullmatch(written.strip()):
        for unit, words in UNITS.items():
            if amount[2].lower() in words and re.search(pattern, meant := f"{amount[1]} {unit}"):
                return message, f"Write `{meant}`."
    example = f" For example: {part['examples'][0]}" if part.get("examples") else ""
    return message, f"It must be {part.get('x-pattern-means', f'of the form {pattern}')}.{example}"


def _settings_in_place(allowed: str, value: dict[str, Any], written: str, name: str, kind: str) -> tuple[str, str]:
    """`- How: so` is read as a setting `How`, where a text was meant."""
    message = f"{name} must be {kind}, and here it has settings of its own."
    if allowed == "string" and len(value) == 1 and written and "\n" not in written:
        quoted = '"' + written.partition(" #")[0].rstrip().replace("\\", "\\\\").replace('"', '\\"') + '"'
        return (
            f"{name} must be text, and its `: ` makes YAML read a setting.",
            f"Put quotes around the whole text: {quoted}",
        )
    return message, f"Write {kind} behind `{name.strip('`')}:`."


def _single_hint(allowed: str, value: list[Any], setting: str) -> str:
    words = ", ".join(map(str, value))
    if allowed == "string" and value and all(isinstance(item, str) for item in value):
        if setting in templates.SETTINGS:  # `answer: [column]` is what people write first
            text = words if "[" in words else f"[{words}]"
            return f'Text with brackets takes quotes: `{setting}: "{shortened(text, SHOWN)}"`.'
        if len(value) == 1 and setting.isidentifier():
            return f"Write it without the brackets or the dash: `{setting}: {shortened(words, SHOWN)}`."
    return "Write a single value, without `-` or brackets."


def _list_hint(value: Any, part: dict[str, Any], setting: str) -> str:
    inner = part.get("items", {}).get("type")
    shown = setting.rpartition(".")[2].partition("[")[0]
    if inner == "object":
        return f"Each entry of `{shown}` begins with a dash: `- ` in front of its first line, blanks in front of the others."
    if inner in ("integer", "number") and isinstance(value, str | int | float):
        return f"Write a list in brackets: `{shown}: {_bracketed(str(value))}`."
    return f"Write a list: each entry in a line of its own below `{shown}:`, with `- ` in front of it."


def _bracketed(text: str) -> str:
    return f"[{', '.join(re.split(r'[ ,;]+', text.strip()))}]"


def _number_hint(allowed: str, text: str, kind: str) -> str:
    """What to write where a text was meant as a number, or as yes or no."""
    if allowed in ("integer", "number"):
        return next(_numbers(text.strip()), None) or (
            f"Write {kind} alone, with a point for decimals: 0.00005 or 5e-5. Units belong in the comment."
        )
    if allowed == "boolean":
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower())
        return f"Write `{meant}`." if meant else ""
    return ""


def _numbers(text: str) -> Iterator[str]:
    as_number = scalar(text)
    plain = re.sub("[\u2010-\u2015\u2212]", "-", text)
    if plain != text and isinstance(scalar(plain), int | float):
        yield f"Write a plain `-`, which is another character: {plain}"
    if isinstance(as_number, int | float) and not isinstance(as_number, bool):
        yield f"Write it without quotes: {text}"
    if isinstance(tidy := scalar(re.sub(r"(?<=\d)[_ ](?=\d{3})", "", text)), int | float):
        yield f"Write its digits without gaps: {tidy}"
    if re.fullmatch(r"[-+]?(0,\d+|\d+,(\d{1,2}|\d{4,}))([eE][-+]?\d+)?", text):
        yield f"Write the decimal comma as a point: {text.replace(',', '.')}"
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        yield f"Write its digits without commas: {text.replace(',', '')}"
    if percent := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text):
        yield f"Write the share as a number: {float(percent[1]) / 100:g}"
    if amount := re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+\.?)", text):
        yield f"Write the number without `{amount[2]}`: {amount[1]}"
    if re.fullmatch(r"\d+(\s*[,;]\s*\d+|\s+\d+)+", text):
        yield f"Write one number; in a list, numbers stand with commas between them: {_bracketed(text)}"
