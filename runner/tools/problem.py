"""A user's mistake, described so that the user can fix it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner import __version__

Tell = Callable[[str], None]  # prints a line for people
Severity = Literal["error", "note"]  # whether a problem stops the command, or only informs
SHOWN = 200  # the number of characters of a line that are shown; recipes have shorter lines

# A misspelled name is at least this similar to the right one; two different names rarely are.
ALIKE = 0.87


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its type's name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and what to do.

    file: as the user named it, or `--set key=value` for a setting on the command line. line,
    column: from 1; 0 if there is no place in a file. message: what is wrong, in plain words. hint:
    what to do about it; may be empty. source: the text of the line; width: the number of characters
    that the caret marks. `mends`: a dotted setting with a value that alone solves the problem, or
    None; `allows`: the same at a price, so that only a person may choose it. setting: the dotted
    name of the setting that it is about, without the numbers of list entries; empty for the recipe
    as a whole. check: the name of what found it, `column-missing`."""

    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    source: str = ""
    width: int = 1
    severity: Severity = "error"
    mends: tuple[str, Any] | None = None
    allows: tuple[str, Any] | None = field(default=None, compare=False)
    # Two checks that find the same report it once.
    setting: str = field(default="", compare=False)
    check: str = field(default="", compare=False)

    @property
    def rule(self) -> str:
        """The name of the rule that is broken, which stays the same in later releases: the section
        of the recipe, and the check, as in `data/column-missing`."""
        section = self.setting.partition(".")[0] or "recipe"
        return f"{section}/{self.check or 'other'}"

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place = f"{self.file}:{self.line}:{self.column}"
        label = "note: " if self.severity == "note" else ""
        lines = [f"{place}: {label}{self.message}"]
        if self.source.strip():
            lines += self._excerpt()
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)

    def _excerpt(self) -> list[str]:
        """The part of the line around the caret, and the caret below it."""
        start = max(0, min(self.column - 1 - SHOWN // 3, len(self.source) - SHOWN))
        end = start + SHOWN
        line = "".join(map(_printable, self.source[start:end]))
        cut_before = "…" if start else ""
        cut_after = "…" if end < len(self.source) else ""
        before = cut_before + line[: self.column - 1 - start]
        excerpt = cut_before + line + cut_after
        width = max(1, min(self.width, len(excerpt) - len(before)))
        number = f"{self.line:>5}"
        margin = " " * len(number)
        blanks = "".join("\t" if letter == "\t" else " " for letter in before)
        carets = "^" * width
        return [f"{number} | {excerpt}", f"{margin} | {blanks}{carets}"]

    def as_json(self) -> dict[str, str | int]:
        """The fields that tools read; `line` and `column` are 1-based, 0 for the file as a
        whole."""
        return {
            name: getattr(self, name)
            for name in ("severity", "rule", "file", "line", "column", "message", "hint")
        }


def _printable(letter: str) -> str:
    """The same letter, or the sign for one that a terminal would not show as itself."""
    if letter.isprintable() or letter in "\t\u00a0":
        return letter
    return "\ufffd"


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that stop a command; the others only inform."""
    return [problem for problem in problems if problem.severity == "error"]


def found_by(check: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems, each with the name of the check that found it, unless it has a more exact
    one."""
    named = []
    for problem in problems:
        if problem.check:
            named.append(problem)
        else:
            named.append(replace(problem, check=check))
    return named


class Stop(Exception):
    """A command cannot continue, and explains why: exit code 1 (the work failed) or 2 (wrong
    use)."""

    def __init__(
        self, problems: Problem | str | Iterable[Problem], hint: str = "", code: int = 1
    ) -> None:
        if isinstance(problems, str):
            self.text = problems + (f"\n{hint}" if hint else "")
            self.problems: list[Problem] = []
        else:
            if isinstance(problems, Problem):
                self.problems = [problems]
            else:
                self.problems = list(problems)
            self.text = "\n\n".join(str(problem) for problem in self.problems)
        self.code = code
        super().__init__(self.text)


class Unreachable(Stop):
    """Something outside, a hub or a server, does not answer: the same work may succeed later."""


class Interrupted(KeyboardInterrupt):
    """^C, with a message about what was interrupted and what to do."""


def report_bug() -> str:
    """Writes the traceback of the current exception to a file, and returns a message with its
    path."""
    import tempfile
    import traceback

    file, name = tempfile.mkstemp(".txt", "recipe-bug-")
    with open(file, "w", encoding="utf-8") as report:
        report.write(f"recipe-runner {__version__}\n")
        traceback.print_exc(file=report)
    return f"This is a bug in recipe-runner, not in your recipe. {name} has the details; please report it."


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of these names most similar to `word`, or None. cutoff: the least similarity, from
    0 to 1 (equal)."""
    import difflib  # late, because recipes without mistakes do not need it

    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    if matches:
        return by_lower[matches[0]]
    return None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The beginning of a hint, with the nearest name and a space at its end; empty without one."""
    near = nearest(word, names)
    if near:
        return f"Did you mean `{near}`? "
    return ""


def listed(names: Iterable[str], joint: str = "and") -> str:
    """Names as a list for people: `a`, `b` and `c`."""
    quoted = [f"`{word}`" for word in names]
    if len(quoted) == 1:
        return quoted[0]
    if quoted:
        return f"{', '.join(quoted[:-1])} {joint} {quoted[-1]}"
    return ""


def plural(noun: str, count: int) -> str:
    """The noun for this many things."""
    if count == 1:
        return noun
    return f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A count of things in words: `no notes`, `1 note`, `2 notes`."""
    return f"{count or 'no'} {plural(noun, count)}"


def shortened(text: str, most: int) -> str:
    """A text on one line, of at most this many characters."""
    flat = " ".join(text.split())
    if len(flat) <= most:
        return flat
    return f"{flat[: most - 1]}…"


def setting(path: Iterable[str | int]) -> str:
    """A setting's full name, `data.sets[1].path`, which `--set` accepts too."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path
    ).removeprefix(".")
