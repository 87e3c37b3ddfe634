"""What `recipe` says, for pages and pictures: run in this process, in a folder with our recipes and
without runs."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

from runner.commands import cli

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "<!-- Made by docs/making/pages.py, from the code; `make golden` writes it again. -->\n"


class _Screen(io.StringIO):
    """A terminal of so many columns, as far as a command can tell."""

    def isatty(self) -> bool:
        return True


def said(*arguments: str, folder: Path | None = None, columns: int = 0) -> str:
    """All that a command prints. folder: where it runs, by default one of its own, because runs in
    a checkout change what a plan says. columns: of the terminal that it prints to; 0 for none, as
    in a pipe."""
    if folder is None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "recipes").symlink_to(ROOT / "recipes")
            return said(*arguments, folder=folder, columns=columns)
    out, before, where = (
        _Screen() if columns else io.StringIO(),
        os.environ.get("COLUMNS"),
        Path.cwd(),
    )
    os.environ["COLUMNS"] = str(columns or 120)
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO() if "json" in arguments else out),
        ):
            cli._code([*arguments])
    finally:
        os.chdir(where)
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return out.getvalue().rstrip()
