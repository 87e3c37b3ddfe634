"""Answers before and after training, beside each other on a screen."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.tools.own_words import pieces
from runner.tools.text import Styled, printable

# The screen width from which two answers are side by side, and the width of a pipe.
WIDE = 80


def side_by_side(rows: Iterable[Mapping[str, Any]]) -> Iterator[Styled]:
    """The lines of questions with both answers. Words that can only come from the training rows are bold on a terminal,
    and between asterisks elsewhere."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else WIDE
    console = Console(width=width, force_terminal=terminal, color_system="standard" if terminal else None)

    def answer(text: str, own: Iterable[str] = ()) -> Text:
        marked, mark = Text(), "" if terminal else "*"
        for piece, ours in pieces(printable(text) or "(nothing)", set(own)):
            marked.append(f"{mark}{piece}{mark}" if ours else piece, "bold" if ours else "")
        return marked

    for row in rows:
        before, after = answer(row["before"]), answer(row["after"], row.get("learned") or ())
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        if width >= WIDE:
            for _ in range(2):
                table.add_column(ratio=1, overflow="fold")
            table.add_row("before:", "after:")
            table.add_row(before, after)
        else:
            table.add_row("before:", before)
            table.add_row("after:", after)
        with console.capture() as drawn:
            console.print()
            console.print(Text(printable(row["question"])))
            console.print(table)
        yield from (Styled(line.rstrip()) for line in drawn.get().splitlines())
