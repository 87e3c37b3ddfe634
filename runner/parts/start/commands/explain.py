"""`recipe explain`: what a setting does, what more and less of it cost, and where it goes."""

import json
from dataclasses import asdict

import click

from runner.check.validate import load
from runner.commands.options import complete_recipe, complete_setting, end, listing_option, say, set_option, table
from runner.parts.start import explaining
from runner.parts.start.explaining import Explained
from runner.recipe import overrides as changing
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.scenarios import names
from runner.tools import packaged
from runner.tools.problem import Stop

# What a setting is tried on where no recipe is named: the first of these starters that has it.
STARTERS = ("survival", "lyrics", "gemma", "resnet", "seven-b")
MOST_LINES, WIDTH = 6, 110


@click.command()
@click.argument("setting", metavar="SETTING", shell_complete=complete_setting)
@click.argument("path", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@set_option
@listing_option
def explain(setting: str, path: str | None, sets: tuple[str, ...], style: str) -> None:
    """Say what a setting does, what it may be, what more and less of it cost, and which emitted lines it changes.

    With RECIPE: what it is there, and why; without, it is tried on a starter. A section shows its settings.
    """
    recipe = load(path, changing.from_options(sets))[0] if path else None
    scenarios = (recipe.scenario,) if recipe else names()
    first, *others = explaining.named(setting, scenarios)
    told = explaining.facts(first, scenarios)
    on, called = (recipe, path) if recipe and path else _starter(told, sets)
    told = [explaining.tried(one, on) if on.scenario in one.scenarios and not one.within else one for one in told]
    if style == "json":
        entries = [asdict(one) | {"tried_on": called if one.here else None} for one in told]
        say(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    for one in told:
        _show(one, called)
    if others:
        say(f"Other settings of that name: {', '.join(_name(other) for other in others)}.")
    end("What another value would take a plan says.", "plan", path or "RECIPE", "--set", f"{_name(first)}=VALUE")


def _starter(told: list[Explained], sets: tuple[str, ...]) -> tuple[Recipe, str]:
    for name in STARTERS:
        recipe = load(packaged.named()[name], changing.from_options(sets))[0]
        if any(recipe.scenario in one.scenarios for one in told):
            return recipe, f"the starter {name}"
    raise Stop("No starter has it.")


def _name(setting: str) -> str:
    return setting.replace("[0]", "[]")


def _show(one: Explained, called: str) -> None:
    say(f"{_name(one.setting)}: {one.title}, of {', '.join(one.scenarios)}")
    say(one.meaning)
    for values, scenarios in one.values.items():
        if values:
            say(f"{values}   ({', '.join(scenarios)})" if len(one.values) > 1 else values)
    say()
    if one.within:
        table([(f"  {name}", title) for name, title in one.within])
        say()
    if one.here is None:
        return
    why = "" if one.here.value is None else ": the default" if one.origin == "default" else f": {one.origin}"
    say(f"In {called} it is {one.here.shown}{why}.")
    if one.source:
        say(f"  {one.source}")
    say()
    if not one.beside:
        return
    rows = [one.here, *one.beside]
    if len({(each.memory_bytes, each.seconds) for each in rows if each.memory_bytes is not None}) > 1:
        cells = [
            (
                each.shown,
                units.gib(each.memory_bytes) if each.memory_bytes is not None else "-",
                units.duration(each.seconds) if each.seconds else "-",
                "as it is" if each is one.here else each.refused,
            )
            for each in rows
        ]
        table([("VALUE", "MEMORY", "TIME", ""), *cells])
        say()
    else:
        refused = [each for each in one.beside if each.refused]
        ends = ":" if refused or one.here.refused else "."
        say(f"By the plan neither memory nor time depends on it{ends}\n")
        for each in refused:
            say(f"  {each.shown}: {each.refused}\n")
    _places(one)


def _places(one: Explained) -> None:
    """The emitted lines that the first value that changes any has made others."""
    shown = next((each for each in one.beside if each.changed), None)
    if shown is None or not shown.changed:
        say("No emitted file changes with any value that was tried.\n")
        return
    say(f"{'Left out,' if shown.value is None else f'With {shown.shown}'} these emitted lines are others:")
    for path, lines in shown.changed.items():
        for line in lines[:MOST_LINES]:
            say(f"  {path}: {line if len(line) <= WIDTH else line[:WIDTH] + ' …'}")
        if len(lines) > MOST_LINES:
            say(f"  {path}: and {len(lines) - MOST_LINES} more")
    say()
