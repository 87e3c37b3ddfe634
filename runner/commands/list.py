"""`recipe list`: the starter recipes."""

from __future__ import annotations

import click

from runner import packaged
from runner.check.validate import load
from runner.commands.options import say, short, table


def facts() -> list[tuple[str, str, str, str, str]]:
    """Name, scenario, model, machines and description of every starter recipe."""
    rows: list[tuple[str, str, str, str, str]] = []
    for path in packaged.starters():
        recipe, _, _ = load(path)
        machines = recipe.machines
        model = recipe.settings.get("model") or {}
        model = model.get("base") or model.get("architecture") or "-"
        shape = f"{machines.nodes} × {machines.gpus_per_node} {short(machines.gpu)}"
        rows.append((recipe.name, recipe.scenario, model, shape, recipe.description or ""))
    return rows


@click.command("list")
def list_recipes() -> None:
    """Show the starter recipes that `recipe new` copies."""
    table([("NAME", "SCENARIO", "MODEL", "MACHINES", "DESCRIPTION"), *facts()])
    if short := [name for name, path in packaged.named().items() if path in packaged.minimal()]:
        say("\nIn a few lines, everything else by default:")
        table([(name, load(packaged.named()[name])[0].description or "") for name in short])


COMMAND = "list_recipes"
