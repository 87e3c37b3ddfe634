"""Reading: the text of a recipe becomes a Document, or every Problem that keeps it from being read.

PyYAML's event stream (libyaml) is read without its composer and constructor, for three reasons: places are kept (those
of repeats by `*`, too), YAML 1.2 numbers hold, and a file that is hostile or broken (nested or aliased without end,
keys twice) ends as a Problem.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from runner.recipe import syntax
from runner.recipe.composer import Builder
from runner.recipe.document import Document, Place
from runner.tools.names import nearest
from runner.tools.problem import Problem, Stop

# A recipe is a page or two; the bound only keeps a wrong file from being read whole.
MAX_BYTES = 1_000_000
START = "Start from a copy: `recipe new my-demo --from survival`."


def read(file: Path | str, kind: str = "recipe", start: str = START) -> Document:
    """Reads and parses one recipe file, or another of its kind. start: what to do where nothing of that kind is in it.

    Raises Stop with the Problem for a file that is missing, no text, or no YAML.
    """
    return parse(str(file), text(file, kind), kind, start)


def text(file: Path | str, kind: str = "recipe") -> str:
    """The text of a recipe file, without a byte order mark. Raises Stop with the Problem for a file that is missing or no text."""
    name = str(file)
    path = Path(file)
    if path.is_dir():
        raise Stop(Problem(name, 0, 0, "This is a folder, and one recipe file is needed."))
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except FileNotFoundError:
        raise Stop(Problem(name, 0, 0, "There is no such file.", _near_file(path))) from None
    except OSError as error:
        raise Stop(Problem(name, 0, 0, f"This file cannot be read: {error.strerror}.")) from None
    except ValueError:  # a null character, or half of one
        raise Stop(Problem(name, 0, 0, "No file can have such a name.")) from None
    return _text(name, raw, size, kind)


# What problems call a recipe that came on standard input; its relative paths start from here.
STANDARD_INPUT = "standard input"


def standard_input() -> Document:
    """Reads and parses the recipe on standard input. Raises Stop as `read` does."""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    return parse(STANDARD_INPUT, _text(STANDARD_INPUT, raw, len(raw), "recipe"))


def _text(name: str, raw: bytes, size: int, kind: str) -> str:
    """The text of a file's bytes, of which there are `size`. Raises Stop where it is too long or no text."""
    if size > MAX_BYTES:
        raise Stop(
            Problem(
                name,
                0,
                0,
                f"This file has {size:,} bytes; a {kind} has at most {MAX_BYTES:,}.",
                "Is it the right file?",
            )
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a zero byte it is UTF-16 or no text at all, where lines mean nothing.
        before = b"" if b"\0" in raw else raw[: error.start]
        line = before.count(b"\n") + 1 if before else 0
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1 if line else 0
        raise Stop(
            Problem(
                name,
                line,
                column,
                "This file is not text in UTF-8.",
                "In your editor, save it again with the encoding UTF-8.",
            )
        ) from None


def parse(name: str, text: str, kind: str = "recipe", start: str = START) -> Document:
    """Parses the text of a recipe; raises Stop with a Problem for each thing that keeps it from being read."""
    document = Document(name, text)
    builder = Builder(document)
    try:
        builder.build()
    except yaml.MarkedYAMLError as error:
        builder.problems.append(syntax.problem(document, error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        shown = f"U+{error.character:04X}" if isinstance(error.character, int) else repr(error.character)
        builder.problems.append(
            document.problem_at(
                Place(line, 1, 1),
                f"This line holds a character that YAML does not allow ({shown}).",
                "Delete it.",
            )
        )
    builder.problems += builder.set_twice()
    if not builder.problems and document.data is None:
        builder.problems.append(Problem(name, 1, 1, "This file is empty.", start))
    elif not builder.problems and not isinstance(document.data, dict):
        builder.problems.append(
            document.problem_at(
                Place(1, 1, 1),
                f"This is not a {kind}: it has no `setting: value` lines.",
                start,
            )
        )
    if builder.problems:
        raise Stop(builder.problems)
    return document


def _near_file(path: Path) -> str:
    beside = [entry.name for entry in path.parent.glob("*.y*ml") if entry.is_file()] if path.parent.is_dir() else []
    match = nearest(path.name, beside)
    return f"Did you mean `{path.parent / match}`?" if match else "`recipe list` shows the starter recipes."
