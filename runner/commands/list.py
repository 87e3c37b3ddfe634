"""`recipe list`: the starter recipes."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

from runner import packaged
from runner.check.validate import load
from runner.commands.options import say


def facts() -> list[tuple[str, str, str, str, str]]:
    """Name, scenario, model, machines and description of every starter recipe."""
    rows: list[tuple[str, str, str, str, str]] = []
    for path in packaged.starters():
        recipe, _, _ = load(path)
        machines = recipe.machines
        model = recipe.settings.get("model") or {}
        model = model.get("base") or model.get("architecture") or "-"
        shape = f"{machines.nodes} × {machines.gpus_per_node} {machines.gpu.removeprefix('NVIDIA-')}"
        rows.append((recipe.name, recipe.scenario, model, shape, recipe.description or ""))
    return rows


@click.command("list")
def list_recipes() -> None:
    """Show the starter recipes that `recipe new` copies."""
    _table([("NAME", "SCENARIO", "MODEL", "MACHINES", "DESCRIPTION"), *facts()])
    if short := [name for name, path in packaged.named().items() if path in packaged.minimal()]:
        say("\nIn a few lines, everything else by default:")
        _table([(name, load(packaged.named()[name])[0].description or "") for name in short])


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows in columns, the last one below the others where the terminal is too narrow for it."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    firsts = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    longest = max(len(f"{first}  {row[-1]}") for first, row in zip(firsts, rows, strict=True))
    # A narrow terminal would break lines where it likes; what is piped stays one line a recipe.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else longest
    for first, row in zip(firsts, rows, strict=True):
        if longest <= columns:
            say(f"{first}  {row[-1]}".rstrip())
        else:
            say(first.rstrip())
            say(textwrap.fill(row[-1], columns, initial_indent="    ", subsequent_indent="    "))


COMMAND = "list_recipes"
