"""Problem: what a person can do wrong, said so that the person can mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and what to do.

    file: as the person named it; a setting given on the command line has `--set key=value` here.
    line, column: 1-based; 0 where there is no place in a file.
    message: what is wrong, in plain words.
    hint: what to do about it; may be empty.
    source: the text of the line, for showing; width: how many characters the caret marks.
    severity: `error` stops the command, `note` only informs.
    """

    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    source: str = ""
    width: int = 1
    severity: str = "error"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
        lines = [f"{place}{'note: ' if self.severity == 'note' else ''}{self.message}"]
        if self.source.strip():
            number = f"{self.line:>5}"
            lines.append(f"{number} | {self.source}")
            lines.append(f"{' ' * len(number)} | {' ' * (self.column - 1)}{'^' * max(1, self.width)}")
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)

    def as_json(self) -> dict[str, str | int]:
        """The five fields that tools read; `line` and `column` are 1-based, 0 for the file as a whole."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "hint": self.hint,
        }


class Stop(Exception):
    """A command cannot go on and says why: exit code 1 (the work said no) or 2 (wrong use)."""

    def __init__(self, problems: Problem | str | Iterable[Problem], hint: str = "", code: int = 1) -> None:
        if isinstance(problems, str):
            self.text = problems + (f"\n{hint}" if hint else "")
            self.problems: list[Problem] = []
        else:
            self.problems = [problems] if isinstance(problems, Problem) else list(problems)
            self.text = "\n\n".join(str(problem) for problem in self.problems)
        self.code = code
        super().__init__(self.text)
