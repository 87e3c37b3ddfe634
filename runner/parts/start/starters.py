"""Starters: the recipe that a copy is made of, by its name or its file."""

from __future__ import annotations

from pathlib import Path

from runner.recipe.reading import read
from runner.tools import packaged
from runner.tools.names import listed, nearest
from runner.tools.problem import Stop


def find(source: str) -> Path:
    """The recipe that `--from` means: a file, or a starter recipe by name."""
    starters = packaged.named()
    if Path(source).is_file():
        return Path(source)
    if source in starters:
        return starters[source]
    near = nearest(source, starters)
    hint = f"Did you mean `{near}`? " if near else ""
    raise Stop(f"There is no starter recipe and no file `{source}`.", f"{hint}Starter recipes: {listed(starters)}.")


def minimal(source: str) -> Path:
    """The minimal starter of a starter's scenario: one on the same data, else the one that is called after it."""
    if source not in packaged.named():
        find(source)
        raise Stop(
            f"`--minimal` goes with a starter recipe, and `{source}` is a file.",
            f"Name one: {listed(path.stem for path in packaged.starters())}.",
        )
    wanted = read(packaged.named()[source])
    scenario, hub = wanted.data["scenario"], wanted.lookup(("data", "hub"))
    fitting = [document for file in packaged.minimal() if (document := read(file)).data["scenario"] == scenario]
    if not fitting:
        raise Stop(f"The scenario `{scenario}` has no minimal starter.", "Leave out `--minimal`.")
    best = max(fitting, key=lambda one: (one.lookup(("data", "hub")) == hub, Path(one.file).stem == scenario))
    return Path(best.file)
