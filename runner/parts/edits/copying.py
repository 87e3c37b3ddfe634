"""Changes values in the text of a recipe. Order and comments stay, except comments that would
become untrue."""

import codecs
import difflib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from runner.check import by_schema
from runner.recipe.document import Document, Path_, Span, leaves
from runner.recipe.overrides import apply
from runner.recipe.reading import parse, read, written
from runner.recipe.recipe import OUTSIDE_RESULT, Override
from runner.tools.files import replacing
from runner.tools.problem import Problem, Stop, listed

# The origin of values that `recipe new` writes; the column of comments, and the longest list on one
# line.
NEW, COMMENTS, LONGEST_LIST = "recipe new", 38, 60
EDITOR_LINE = re.compile(r"^# yaml-language-server: \$schema=.*$", re.MULTILINE)


def rename(document: Document, name: str) -> str:
    """The recipe's text under another name: its `name`, and the folders and jobs that have this
    name."""
    old = document.data["name"]
    values: dict[Path_, Any] = {("name",): name}
    for path, value in leaves(document.data, bool):
        if not isinstance(value, str):
            continue
        if path == ("openshift", "job_name"):
            # Two jobs with the same name would stop each other.
            values[path] = name
        elif path == ("openshift", "data_from"):
            # No image and no commit contains the files of a new recipe.
            values[path] = "claim"
        elif path[0] in ("openshift", "nodes") and path[-1] in ("output_dir", "data_dir"):
            moved = re.sub(rf"(?<![^/.:]){re.escape(old)}(?![^/.:])", name, value)
            values |= {path: moved} if moved != value else {}
    return _replace(document, values)


def edit(text: str, changes: Iterable[Override]) -> str:
    """The text with each change: a value replaced, a line removed (None) or a line added."""
    for change in changes:
        document = parse("the copy", text)
        path = change.path
        if change.after is None:
            home = document.values.get(path[:-1])
            if path in document.keys and home and document.text[home.start : home.start + 1] == "{":
                remaining = {}
                for key, value in document.lookup(path[:-1]).items():
                    if key != path[-1]:
                        remaining[key] = value
                text = _replace(document, {path[:-1]: remaining})
            elif path in document.keys:
                text = _without(document, path)
            elif path in document.values:
                raise Stop(
                    f"`--set {change.setting}=` would remove one item from a list.",
                    f"Write the whole list: `--set '{'.'.join(map(str, path[:-1]))}=[…]'`.",
                )
        elif shortened := _shortened(document, path, change.after):
            text = shortened
        elif path in document.values:
            text = _replace(document, {path: change.after})
        else:
            text = _with(document, path, change)
    return text


def rewrite(document: Document, changes: Iterable[Override]) -> str:
    """Changes the file that was read, and returns the difference, a unified diff without context.
    Raises Stop, and writes nothing, if the file is read-only or has changed meanwhile, or if its
    form does not allow the change."""
    changes = list(changes)
    path = Path(document.file)
    lines = listed(f"{change.setting}: {written(change.after)}" for change in changes)

    def stop(message: str, hint: str = f"Write these lines yourself: {lines}.") -> Stop:
        return Stop(Problem(document.file, 0, 0, message, hint))

    text = faithful(document, changes, edited)
    if text is None:
        raise stop("recipe-runner cannot write this change into a file of this form.")
    if read(path).text != document.text:
        raise stop(
            "Another program has changed this file. Nothing was written.", "Run the command again."
        )
    try:
        write(path, text)
    except OSError as error:
        raise stop(f"This file cannot be written: {error.strerror}.") from None
    before = document.text.splitlines()
    after = text.splitlines()
    return "\n".join(difflib.unified_diff(before, after, str(path), str(path), n=0, lineterm=""))


def faithful(
    document: Document,
    changes: Iterable[Override],
    editor: Callable[[str, Iterable[Override]], str] = edit,
) -> str | None:
    """The text with the changes; None if its form does not allow them. editor: `edit` or
    `edited`."""
    expected, _ = apply(document, changes := list(changes))
    try:
        text = editor(document.text, changes)
        if parse(document.file, text).data == expected.data:
            return text
        return None
    except Stop:
        return None


def write(path: Path, text: str) -> None:
    """Replaces a recipe's file completely, or not at all. Raises OSError if that is not
    possible."""
    if not os.access(path, os.W_OK):
        raise PermissionError(13, "it is read-only")
    # The target of a link is changed, not the link.
    with replacing(path.resolve()) as partial:
        if path.read_bytes().startswith(codecs.BOM_UTF8):
            mark = codecs.BOM_UTF8
        else:
            mark = b""
        partial.write_bytes(mark + text.encode())
        shutil.copymode(path, partial)


def for_file(text: str, schema: str, old_file: str, new_file: str) -> str:
    """The text with its editor line pointing at `schema`, its own file name in comments, and its
    origin at the top."""
    line = f"# yaml-language-server: $schema={schema}"
    if EDITOR_LINE.search(text):
        text = EDITOR_LINE.sub(lambda _: line, text, count=1)
    else:
        text = f"{line}\n{text}"
    old, new = (PurePath(file).stem for file in (old_file, new_file))

    def renamed(line: re.Match[str]) -> str:
        if line[2]:
            spaces = max(1, len(line[2]) + len(old_file) - len(new_file))
        else:
            spaces = 0
        return f"{line[1]}{new_file}{' ' * spaces}"

    text = re.sub(rf"(?m)^(#.*?){re.escape(old_file)}( *)", renamed, text)
    text = re.sub(rf"(?mi)\A((?:#.*\n)*?# ){re.escape(old)}: ", rf"\1Copied from {old}: ", text)
    return re.sub(rf"(?m)^(#.*)build/{re.escape(old)}/", rf"\1build/{new}/", text)


def _replace(document: Document, values: dict[Path_, object]) -> str:
    text = document.text
    for path, value in sorted(values.items(), key=lambda item: -document.values[item[0]].start):
        start = document.values[path].start
        end = _end(document, path)
        old = text[start:end]
        if isinstance(value, dict):
            new = flow(value)
        else:
            new = written(value)
        if isinstance(document.lookup(path), dict | list) or "\n" in old:
            # A comment after the `|` of a block scalar belongs to its setting; one after the last
            # item goes with it.
            comment = re.match(r"[|>][-+0-9]*(\s+#.*)\n", old)
            new += comment[1] if comment else ""
            if old.startswith(("{", "[")):
                text_after = text[end:]
            else:
                text_after = "\n" + text[end:].partition("\n")[2]
        else:
            new = new if old else f" {new}"
            text_after = text[end:]
            gap = len(text_after) - len(text_after.lstrip(" "))
            if text_after[gap : gap + 1] == "#":
                # The comment stays in its column if there is room.
                text_after = " " * max(1, gap + len(old) - len(new)) + text_after[gap:]
        text = text[:start] + new + text_after
    return text


def _without(document: Document, path: Path_) -> str:
    lines = document.text.splitlines(keepends=True)
    first_line = document.keys[path].line - 1
    last_line = document.text.count("\n", 0, _end(document, path))
    if (
        first_line
        and not lines[first_line - 1].strip()
        and lines[last_line + 1 : last_line + 2]
        and not lines[last_line + 1].strip()
    ):
        last_line += 1  # the blank line after it too, because the one before remains
    dash = lines[first_line][: document.keys[path].column - 1]
    if (
        "-" in dash
        and last_line + 1 < len(lines)
        and lines[last_line + 1].startswith(" " * len(dash))
    ):
        lines[last_line + 1] = (
            dash + lines[last_line + 1][len(dash) :]
        )  # the next setting begins the list entry
    return "".join(lines[:first_line] + lines[last_line + 1 :])


def _end(document: Document, path: Path_) -> int:
    """The end of a value's text; of several lines, that of the last value, before the comments of
    the next setting."""
    text = document.text
    ends = [document.values[path].start]
    for where, place in document.values.items():
        of_lines = isinstance(document.lookup(where), dict | list) and text[
            place.end - 1 : place.end
        ] not in ("}", "]")
        if where[: len(path)] == path and place.end > place.start and not of_lines:
            ends.append(len(text[: place.end].rstrip()))
    return max(ends)


def _shortened(document: Document, path: Path_, value: Any) -> str:
    """The text without the last items of a list with `-` lines, if `value` has exactly the others;
    else empty."""
    old = document.lookup(path)
    text = document.text
    shorter = (
        isinstance(old, list)
        and isinstance(value, list)
        and value
        and value == old[: len(value)] != old
    )
    if not shorter or text[document.values[path].start] != "-":
        return ""
    dash = f"\n{' ' * (document.values[path].column - 1)}-"
    cut = text.rindex(dash, 0, document.values[(*path, len(value))].start) + 1
    return text[:cut] + text[_end(document, path) :].partition("\n")[2]


def flow(value: object) -> str:
    """A value on one line, without quotes where it needs none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return written(value)


def _with(document: Document, path: Path_, change: Override) -> str:
    """The text with a line for a new setting: first in its section, or at the end of the file. It
    has the reason, if the runner chose the value. A long list has several lines."""
    *parents, key = path
    value = flow(change.after)
    items = ""
    inner = "  " * len(path)
    if isinstance(change.after, list) and len(written(change.after)) > LONGEST_LIST:
        value = ""
        items = "".join(f"\n{inner}- {flow(item)}" for item in change.after)
    if change.why and change.by == NEW:
        width = COMMENTS - len(f"{inner[2:]}{key}: ")
        value = f"{value:<{width}}{'' if len(value) < width else ' '}# {change.why}"
    added = f"{key}: {value}{items}\n"
    lines = document.text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    line_index = len(lines)
    section = document.lookup(path[:-1])
    if len(parents) == 1 and section is None:
        added = f"{parents[0]}:\n  {added}"
    elif parents:
        if not isinstance(section, dict) or not section:
            raise Stop(
                f"{change.by}: the copy has no section {listed(['.'.join(map(str, parents))])} for this setting.",
                "Copy the recipe first, then edit the file.",
            )
        start = document.values[path[:-1]].start
        if document.text[start] == "{":
            return f"{document.text[: start + 1]}{key}: {flow(change.after)}, {document.text[start + 1 :]}"
        first_setting = (*parents, next(iter(section)))
        line_index = document.keys[first_setting].line - 1
        indent = document.keys[first_setting].column - 1
        if (
            lines[line_index][:indent].strip() == "-"
        ):  # the first key of an item stays after its dash
            line_index = document.text.count("\n", 0, _end(document, first_setting)) + 1
        added = " " * indent + added
    return "".join([*lines[:line_index], added, *lines[line_index:]])


# A number by itself, not part of a name or of a number format.
_FIGURE = re.compile(r"(?<![\w.`-])\d[\d.,]*(?:e-?\d+)?(?![\w-])(?! (?:bytes|bits)\b)")
_COMMENT = re.compile(r"[ \t]+#(?:[ \t].*)?$")


def edited(text: str, changes: Iterable[Override]) -> str:
    """The text with each change, and comments that are still true."""
    changes = list(changes)
    before = parse("the copy", text)
    text = edit(text, changes)
    after = parse("the copy", text)
    changed_paths = set()
    for change in changes:
        if before.lookup(change.path) != after.lookup(change.path):
            changed_paths.add(change.path)
    reasons = {change.path: change.why for change in changes if change.why and change.by == NEW}
    # A file of another trainer has no scenario.
    lines = text.splitlines(keepends=True)
    scenario = before.data.get("scenario", "")
    for number, paths, column, comment in commented(after):
        reason = next(
            (reasons[path] for path in paths if path in changed_paths and path in reasons), None
        )
        new_comment = reason or _comment_after(paths, comment, after, changed_paths, scenario)
        if new_comment != comment:
            setting = lines[number][:column]
            ending = lines[number][column:]
            gap = ending[: len(ending) - len(ending.lstrip())]
            lines[number] = (
                setting
                + (f"{gap}# {new_comment}" if new_comment else "")
                + ("\n" if ending.endswith("\n") else "")
            )
    return "".join(lines)


def _comment_after(
    paths: list[Path_], comment: str, document: Document, changed_paths: set[Path_], scenario: str
) -> str:
    """The comment of a line with the settings at `paths`, now that those at `changed_paths` are
    changed."""
    changed = next((candidate for candidate in paths if candidate in changed_paths), None)
    path = changed or paths[0]
    value = document.lookup(path)
    if changed and (isinstance(value, bool) or not isinstance(value, int | float)):
        return _sentence(path, scenario)
    if not changed and (
        isinstance(path[-1], int)
        or not any(_reckoned_from(change, path) for change in changed_paths)
    ):
        return comment
    true = "; ".join(clause for clause in comment.split("; ") if not _FIGURE.search(clause))
    return true or _sentence(path, scenario)


def _sentence(path: Path_, scenario: str) -> str:
    """What is true for any value of the setting, without a full stop; empty if unknown."""
    if isinstance(path[-1], int):
        sentence = ""
    else:
        sentence = by_schema.sentence(scenario, path)
    if sentence[1:2].islower():
        return sentence[:1].lower() + sentence[1:]
    return sentence


def _reckoned_from(change: Path_, path: Path_) -> bool:
    """Whether a figure in the comment of `path` may depend on the changed settings."""
    apart = next((name for name in ("data", "machines") if name in path), "")
    if apart:
        return apart in change
    if change[0] == path[0] == "stages" and change[1:2] != path[1:2]:
        return False
    return change[0] not in OUTSIDE_RESULT and ("data" not in change or path[0] in OUTSIDE_RESULT)


def commented(document: Document) -> Iterator[tuple[int, list[Path_], int, str]]:
    """Each line with a comment: number from 0, settings (outermost first), column of the blank
    before it, comment."""
    by_line: dict[int, list[tuple[Path_, Span]]] = {}
    for path, place in (*document.keys.items(), *document.values.items()):
        # A section begins on the line of its first setting, and is named on the line before.
        if path and place.line == document.keys.get(path, place).line:
            by_line.setdefault(place.line - 1, []).append((path, place))
    lines = document.text.splitlines()
    for number, places in sorted(by_line.items()):
        comment = _COMMENT.search(
            lines[number], max(place.column - 1 + place.width for _, place in places)
        )
        if comment:
            paths = sorted({path for path, _ in places}, key=len)
            yield number, paths, comment.start(), comment[0].lstrip().removeprefix("#").strip()
