"""`recipe list`: the starter recipes."""

from __future__ import annotations

import shutil
import sys
import textwrap

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
    rows = [("NAME", "SCENARIO", "MODEL", "MACHINES", "DESCRIPTION"), *facts()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    firsts = ["  ".join(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)) for row in rows]
    longest = max(len(f"{first}  {row[4]}") for first, row in zip(firsts, rows, strict=True))
    # A narrow terminal would break lines where it likes; what is piped stays one line a recipe.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else longest
    for first, row in zip(firsts, rows, strict=True):
        if longest <= columns:
            say(f"{first}  {row[4]}".rstrip())
        else:
            say(first.rstrip())
            say(textwrap.fill(row[4], columns, initial_indent="    ", subsequent_indent="    "))


COMMAND = "list_recipes"
