"""Opened: a recipe's file that somebody edits. Nothing is written until asked, and nothing that another program has written is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runner.recipe import copying, reading
from runner.tools.problem import Problem, Stop


class ChangedElsewhere(Exception):
    """The file is not as it was read: another program has written it meanwhile, or taken it away. text: its own by now, None
    where it is gone."""

    def __init__(self, text: str | None) -> None:
        super().__init__()
        self.text = text


@dataclass
class Opened:
    """path: of the file. known: its text as it was read or written last, with the line ends of an editor."""

    path: Path
    known: str = field(init=False)

    def __post_init__(self) -> None:
        """Raises Stop where the file is missing, or no text."""
        self.read()

    def read(self) -> str:
        self.known = _unix(reading.text(self.path))
        return self.known

    def save(self, text: str, over: bool = False) -> None:
        """Writes the text. over: whether also over what another program has written.

        Raises ChangedElsewhere where one has, and Stop where the file cannot be written."""
        now = reading.text(self.path) if self.path.is_file() else None
        if not over and (now is None or _unix(now) != self.known):
            raise ChangedElsewhere(None if now is None else _unix(now))
        try:
            if now is None:
                self.path.touch()
            copying.write(self.path, text.replace("\n", "\r\n") if now and "\r\n" in now else text)
        except OSError as error:
            raise Stop(Problem(str(self.path), 0, 0, f"This file cannot be written: {error.strerror}.")) from None
        self.known = text


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")
