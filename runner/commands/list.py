"""`recipe list`: the starter recipes, and one's own recipes and runs."""

import json
import time
from pathlib import Path

import click

from runner.check import batch
from runner.check.validate import load
from runner.commands.options import end, listing_option, say, short, table
from runner.tools import packaged
from runner.tools.problem import Stop

# Of a run that a command began and did not end, and is not at work in any more.
INTERRUPTED = "interrupted"


def facts(path: Path, name: str = "") -> dict[str, str]:
    """What a recipe says of itself, under `name` or its own. Of one that is wrong, that it is."""
    try:
        recipe, _, _ = load(path, look=False)
    except Stop:
        said = f"`recipe check {path}` says what is wrong with it"
        return {"name": name or str(path), "scenario": "-", "model": "-", "machines": "-", "description": said}
    machines, model = recipe.machines, recipe.settings.get("model") or {}
    return {
        "name": name or recipe.name,
        "scenario": recipe.scenario,
        "model": model.get("base") or model.get("architecture") or "-",
        "machines": f"{machines.nodes} × {machines.gpus_per_node} {short(machines.gpu)}",
        "description": recipe.description or "",
    }


def runs() -> list[dict[str, str]]:
    """What the run folders below this one say of themselves, the newest first."""
    from runner.run.run_folder import all_here
    from runner.tools.run_files import RUN

    found = []
    for run in all_here():
        state = run.state
        status = INTERRUPTED if state.status == "running" and not run.at_work else state.status
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime((run.path / RUN).stat().st_mtime))
        found.append(
            {"folder": str(run.shown), "recipe": state.recipe, "kind": run.kind, "status": status, "changed": changed}
        )
    return found


@click.command("list")
@listing_option
def list_recipes(style: str) -> None:
    """Show the starter recipes that `recipe new` copies, and the recipes and runs of this folder."""
    starters = [facts(path) for path in packaged.starters()]
    minimal = [facts(path, name) for name, path in packaged.named().items() if path in packaged.minimal()]
    own = [facts(path, str(path)) for path in batch.within(Path())]
    made = runs()
    if style == "json":
        whole = {"starters": starters, "minimal": minimal, "recipes": own, "runs": made}
        say(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    _table(starters)
    if minimal:
        say("\nIn a few lines, everything else by default:")
        table([(each["name"], each["description"]) for each in minimal])
    for title, rows in (("Your recipes here", own), ("Your runs here", made)):
        if rows:
            say(f"\n{title}:")
            _table(rows)
    end(f"{len(starters)} starters; each trains something else.", "new", "my-demo", "--from", "survival")


def _table(rows: list[dict[str, str]]) -> None:
    table([tuple(key.upper() for key in rows[0]), *(tuple(each.values()) for each in rows)])
