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
from runner.recipe.document import Document, Path_, Span, dotted, leaves
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
    old = re.escape(document.data["name"])
    folder_name = re.compile(rf"(?<![^/.:]){old}(?![^/.:])")
    values: dict[Path_, Any] = {("name",): name}
    for path, value in leaves(document.data, bool):
        if not isinstance(value, str):
            continue
        is_folder = path[-1] in ("output_dir", "data_dir")
        if path == ("openshift", "job_name"):
            # Two jobs with the same name would stop each other.
            values[path] = name
        elif path == ("openshift", "data_from"):
            # No image and no commit contains the files of a new recipe.
            values[path] = "claim"
        elif is_folder and path[0] in ("openshift", "nodes"):
            moved = folder_name.sub(name, value)
            if moved != value:
                values[path] = moved
    return _replace(document, values)


def edit(text: str, changes: Iterable[Override]) -> str:
    """The text with each change: a value replaced, a line removed (None) or a line added."""
    for change in changes:
        document = parse("the copy", text)
        path = change.path
        if change.after is None:
            text = _without(document, change)
        elif shortened := _shortened(document, path, change.after):
            text = shortened
        elif path in document.values:
            text = _replace(document, {path: change.after})
        else:
            text = _with(document, path, change)
    return text


def _without(document: Document, change: Override) -> str:
    """The text without a setting."""
    path = change.path
    *parents, key = path
    section = tuple(parents)
    if path in document.keys:
        if not _in_braces(document, section):
            return _without_lines(document, path)
        remaining = dict(document.lookup(section))
        del remaining[key]
        return _replace(document, {section: remaining})
    if path in document.values:
        return _without_entry(document, section, int(key))
    return document.text


def _without_entry(document: Document, section: Path_, number: int) -> str:
    """The text without an entry of the list at `section`."""
    remaining = list(document.lookup(section))
    del remaining[number]
    has_dashes = document.text.startswith("-", document.values[section].start)
    if not has_dashes or not remaining:
        return _replace(document, {section: remaining})
    first_line = document.text.count("\n", 0, _dash_of(document, section, number))
    return _without_line_range(document, first_line, _end(document, (*section, number)))


def _dash_of(document: Document, section: Path_, number: int) -> int:
    """Where the line of an entry of a list with `-` lines begins."""
    dash = "\n" + " " * (document.values[section].column - 1) + "-"
    return document.text.rindex(dash, 0, document.values[(*section, number)].start) + 1


def _in_braces(document: Document, section: Path_) -> bool:
    """Whether a section is written as `{key: value}`."""
    return document.text.startswith("{", document.values[section].start)


def rewrite(document: Document, changes: Iterable[Override]) -> str:
    """Changes the file that was read, and returns the difference, a unified diff without context.
    Raises Stop, and writes nothing, if the file is read-only or has changed meanwhile, or if its
    form does not allow the change."""
    changes = list(changes)
    file = document.file
    path = Path(file)
    lines = listed(f"{change.setting}: {written(change.after)}" for change in changes)

    def stop(message: str, hint: str = f"Write these lines yourself: {lines}.") -> Stop:
        return Stop(Problem(file, 0, 0, message, hint))

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
    name = str(path)
    difference = difflib.unified_diff(before, after, name, name, n=0, lineterm="")
    return "\n".join(difference)


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
    old = PurePath(old_file).stem
    new = PurePath(new_file).stem

    def renamed(line: re.Match[str]) -> str:
        start, blanks = line.groups()
        if blanks:
            spaces = max(1, len(blanks) + len(old_file) - len(new_file))
        else:
            spaces = 0
        return start + new_file + " " * spaces

    old_name = re.escape(old)
    text = re.sub(rf"(?m)^(#.*?){re.escape(old_file)}( *)", renamed, text)
    text = re.sub(rf"(?mi)\A((?:#.*\n)*?# ){old_name}: ", rf"\1Copied from {old}: ", text)
    return re.sub(rf"(?m)^(#.*)build/{old_name}/", rf"\1build/{new}/", text)


def _replace(document: Document, values: dict[Path_, object]) -> str:
    """The text with other values, from its end, so that the places before them stay."""
    text = document.text
    for path in sorted(values, key=lambda path: document.values[path].start, reverse=True):
        value = values[path]
        start = document.values[path].start
        end = _end(document, path)
        old = text[start:end]
        text_after = text[end:]
        if isinstance(value, dict):
            new = flow(value)
        else:
            new = written(value)
        if isinstance(document.lookup(path), dict | list) or "\n" in old:
            # A comment after the `|` of a block scalar belongs to its setting; one after the last
            # item goes with it.
            comment = re.match(r"[|>][-+0-9]*(\s+#.*)\n", old)
            if comment:
                new += comment[1]
            if not old.startswith(("{", "[")):
                text_after = "\n" + _following_lines(text_after)
        else:
            if not old:
                new = f" {new}"
            text_behind = text_after.lstrip(" ")
            if text_behind.startswith("#"):
                # The comment stays in its column if there is room.
                gap = len(text_after) - len(text_behind)
                text_after = " " * max(1, gap + len(old) - len(new)) + text_behind
        text = text[:start] + new + text_after
    return text


def _following_lines(text: str) -> str:
    """The text after its first line."""
    return text.partition("\n")[2]


def _without_lines(document: Document, path: Path_) -> str:
    """The text without the lines of a setting."""
    key = document.keys[path]
    dash = document.text.splitlines()[key.line - 1][: key.column - 1]
    return _without_line_range(document, key.line - 1, _end(document, path), dash)


def _without_line_range(document: Document, first_line: int, end: int, dash: str = "") -> str:
    """The text without the lines from `first_line`, counted from 0, to that of the place `end`.
    dash: the beginning of the first one, if the entry of a list begins there and stays."""
    lines = document.text.splitlines(keepends=True)
    lines_before = lines[:first_line]
    lines_after = lines[document.text.count("\n", 0, end) + 1 :]
    if lines_before and lines_after and lines_before[-1].isspace() and lines_after[0].isspace():
        del lines_after[0]  # because the blank line before them remains
    if "-" in dash and lines_after and lines_after[0].startswith(" " * len(dash)):
        # The next setting begins the list entry.
        lines_after[0] = dash + lines_after[0][len(dash) :]
    return "".join(lines_before + lines_after)


def _end(document: Document, path: Path_) -> int:
    """The end of a value's text; of several lines, that of the last value, before the comments of
    the next setting."""
    ends = [document.values[path].start]
    for inner_path, place in document.values.items():
        if inner_path[: len(path)] != path or place.end <= place.start:
            continue
        inner_text = document.text[: place.end]
        is_collection = isinstance(document.lookup(inner_path), dict | list)
        if not is_collection or inner_text.endswith(("}", "]")):
            ends.append(len(inner_text.rstrip()))
    return max(ends)


def _shortened(document: Document, path: Path_, value: Any) -> str:
    """The text without the last items of a list with `-` lines, if `value` has exactly the others;
    else empty."""
    old = document.lookup(path)
    if not isinstance(old, list) or not isinstance(value, list) or not value:
        return ""
    text = document.text
    if value == old or value != old[: len(value)] or text[document.values[path].start] != "-":
        return ""
    cut = _dash_of(document, path, len(value))
    return text[:cut] + _following_lines(text[_end(document, path) :])


def flow(value: object) -> str:
    """A value on one line, without quotes where it needs none."""
    if isinstance(value, dict):
        items = ", ".join(f"{key}: {flow(item)}" for key, item in value.items())
        return "{" + items + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return written(value)


def _with(document: Document, path: Path_, change: Override) -> str:
    """The text with a line for a new setting: first in its section, or at the end of the file. It
    has the reason, if the runner chose the value. A long list has several lines."""
    *parents, key = path
    section_path = tuple(parents)
    added = _new_lines(path, change)
    lines = document.text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    line_index = len(lines)
    section = document.lookup(section_path)
    if len(parents) == 1 and section is None:
        added = f"{parents[0]}:\n  {added}"
    elif parents:
        if not isinstance(section, dict) or not section:
            raise Stop(
                f"{change.by}: the copy has no section `{dotted(section_path)}` for this setting.",
                "Copy the recipe first, then edit the file.",
            )
        if _in_braces(document, section_path):
            inside = document.values[section_path].start + 1
            setting = f"{key}: {flow(change.after)}, "
            return document.text[:inside] + setting + document.text[inside:]
        first_setting = (*parents, next(iter(section)))
        first_key = document.keys[first_setting]
        line_index = first_key.line - 1
        indent = first_key.column - 1
        if lines[line_index][:indent].strip() == "-":
            # The first key of an item stays after its dash.
            line_index = document.text.count("\n", 0, _end(document, first_setting)) + 1
        added = " " * indent + added
    lines.insert(line_index, added)
    return "".join(lines)


def _new_lines(path: Path_, change: Override) -> str:
    """The lines of a new setting, the first without its indent."""
    start = f"{path[-1]}: "
    value = flow(change.after)
    items = ""
    if isinstance(change.after, list) and len(written(change.after)) > LONGEST_LIST:
        value = ""
        item_start = "\n" + "  " * len(path) + "- "
        items = "".join(item_start + flow(item) for item in change.after)
    if change.why and change.by == NEW:
        indent = 2 * (len(path) - 1)
        width = COMMENTS - indent - len(start) - 1
        value = f"{value.ljust(width)} # {change.why}"
    return f"{start}{value}{items}\n"


# Memory, time, batches and limits are reckoned for these.
MACHINES = ("machines", "nodes")

# What is true of one recipe alone: a number by itself, in digits or in words, not part of a name or
# of a number format; and `here`.
_FIGURE = re.compile(
    r"(?<![\w.`-])\d[\d.,]*(?:e-?\d+)?(?![\w-])(?! (?:bytes|bits)\b)"
    r"|\b(?:three|four|five|six|seven|eight|nine|ten|thirty|hundred|thousands|million|billion)\b"
    r"|\bhere\b"
)
_COMMENT = re.compile(r"[ \t]+#(?:[ \t].*)?$")


def edited(text: str, changes: Iterable[Override]) -> str:
    """The text with each change, and comments that are still true."""
    changes = list(changes)
    before = parse("the copy", text)
    text = edit(text, changes)
    after = parse("the copy", text)
    changed_paths = set()
    for change in changes:
        *parents, key = change.path
        if isinstance(key, int) and change.after is None:
            # The entries after it move up, so its place is another entry's.
            changed_paths.add(tuple(parents))
        elif before.lookup(change.path) != after.lookup(change.path):
            changed_paths.add(change.path)
    reasons = {}
    for change in changes:
        is_reason = change.why and change.why != f"follows {NEW}"
        if is_reason and change.by == NEW and change.path in changed_paths:
            reasons[change.path] = change.why
    lines = text.splitlines(keepends=True)
    # A file of another trainer has no scenario.
    scenario = before.data.get("scenario", "")
    for number, paths, column, comment in commented(after):
        line_reasons = [reasons[path] for path in paths if path in reasons]
        if line_reasons:
            new_comment = line_reasons[0]
        else:
            new_comment = _comment_after(paths, comment, after, changed_paths, scenario)
        if new_comment != comment:
            lines[number] = _commented_line(lines[number], column, new_comment)
    return "".join(lines)


def _commented_line(line: str, column: int, comment: str) -> str:
    """A line whose setting ends at this column, with another comment."""
    setting = line[:column]
    ending = line[column:]
    gap = ending[: len(ending) - len(ending.lstrip())]
    if comment:
        setting += f"{gap}# {comment}"
    if line.endswith("\n"):
        setting += "\n"
    return setting


def _comment_after(
    paths: list[Path_], comment: str, document: Document, changed_paths: set[Path_], scenario: str
) -> str:
    """The comment of a line with the settings at `paths`, now that those at `changed_paths` are
    changed."""
    changed = [path for path in paths if path in changed_paths]
    if changed:
        path = changed[0]
        value = document.lookup(path)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return _sentence(path, scenario)
    else:
        path = paths[0]
        is_item = isinstance(path[-1], int)
        if is_item or not any(_reckoned_from(change, path) for change in changed_paths):
            return comment
    clauses = [clause for clause in comment.split("; ") if not _FIGURE.search(clause)]
    return "; ".join(clauses) or _sentence(path, scenario)


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
    for section in ("data", "machines"):
        if section in path:
            return section in change
    if change[0] == path[0] == "stages" and change[1:2] != path[1:2]:
        return False
    if change[0] in MACHINES:
        return True
    if change[0] in OUTSIDE_RESULT:
        return False
    return "data" not in change or path[0] in OUTSIDE_RESULT


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
        settings_end = max(place.column - 1 + place.width for _, place in places)
        comment = _COMMENT.search(lines[number], settings_end)
        if comment:
            paths = sorted({path for path, _ in places}, key=len)
            comment_text = comment[0].strip().removeprefix("#").strip()
            yield number, paths, comment.start(), comment_text
