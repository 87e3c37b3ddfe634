"""`recipe list`: the starter recipes."""

from __future__ import annotations

import click

from runner import packaged
from runner.commands.options import say
from runner.recipe.check import load


def facts() -> list[tuple[str, str, str, str, str]]:
    """Name, scenario, model, machines and description of every starter recipe."""
    rows = []
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
    for row in rows:
        say("  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip())


COMMAND = "list_recipes"
