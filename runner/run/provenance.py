"""Provenance: the commit and the starter that a recipe came from, for the record of a run."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from runner.check import origins
from runner.check.validate import load
from runner.recipe.document import differing, flat
from runner.recipe.reading import read
from runner.recipe.recipe import Recipe
from runner.tools import packaged
from runner.tools.files import Record
from runner.tools.problem import Stop


@dataclass(frozen=True)
class Differs(Record):
    """A setting that differs from the starter's, with both values as a recipe writes them; empty if
    there is none."""

    setting: str = ""
    starter: str = ""
    here: str = ""
    origin: str = ""


# Different in every copy, without effect on training.
OWN = ("name", "description")


def nearest_starter(recipe: Recipe) -> tuple[str, tuple[Differs, ...]]:
    """The starter of the recipe's scenario that the recipe differs least from, and the settings
    that differ; an empty name for none."""
    recipe_settings = flat(recipe.settings.plain())
    starters: list[tuple[str, list[tuple[str, list[str]]]]] = []
    for name, file in packaged.named().items():
        try:
            if read(file).data.get("scenario") != recipe.scenario:
                continue
            starter_settings = flat(load(file, look=False)[0].settings.plain())
        except Stop:
            continue  # an edited starter
        rows = differing([starter_settings, recipe_settings], "")
        starters.append((name, [row for row in rows if row[0] not in OWN]))
    starter, rows = min(starters, key=lambda starter: len(starter[1]), default=("", []))
    if rows:
        origin_of = origins.origins(recipe.document, recipe.settings.plain())
    else:
        origin_of = {}
    differs = tuple(
        Differs(setting, starter_value, recipe_value, origin_of.get(setting, ""))
        for setting, (starter_value, recipe_value) in rows
    )
    return starter, differs


def commit(file: Path) -> str:
    """The commit of a file's repository, with a `+` if the file has changed; empty if git does not
    track it."""
    command = [
        "git",
        "-C",
        str(file.absolute().parent),
        "status",
        "--porcelain=v2",
        "--branch",
        "--ignored",
        "--",
    ]
    try:
        output = subprocess.run(
            [*command, file.name],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.split() for line in output.splitlines()]
    head = next((line[2] for line in lines if line[:2] == ["#", "branch.oid"]), "(initial)")
    changed = [line[0] for line in lines if line[0] != "#"]
    if head == "(initial)" or {"?", "!"} & set(changed):
        return ""
    return head + ("+" if changed else "")
