"""The provenance of a run's recipe: its commit, and the most similar starter."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.check import origins
from runner.check.validate import load
from runner.recipe.document import differing, leaves
from runner.recipe.reading import read
from runner.recipe.recipe import Recipe
from runner.run.run_manifest import Differs
from runner.tools import packaged
from runner.tools.problem import Stop

# Different in every copy, without effect on training.
_OWN = ("name", "description")


def provenance(recipe: Recipe) -> Mapping[str, Any]:
    """The fields of a RunManifest: `commit`, `starter` and `differs`."""
    starter, differs = _starter(recipe)
    return {"commit": _commit(recipe.file), "starter": starter, "differs": differs}


def _commit(file: Path) -> str:
    """The commit of a file's repository, with a `+` if the file has changed; empty if git does not track it."""
    command = ["git", "-C", str(file.absolute().parent), "status", "--porcelain=v2", "--branch", "--ignored", "--"]
    try:
        said = subprocess.run([*command, file.name], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    facts = [line.split() for line in said.splitlines()]
    head = next((words[2] for words in facts if words[:2] == ["#", "branch.oid"]), "(initial)")
    changed = [words[0] for words in facts if words[0] != "#"]
    return "" if head == "(initial)" or {"?", "!"} & set(changed) else head + ("+" if changed else "")


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Every setting that is not a section, by its dotted name, and its value as in a recipe."""
    return {
        ".".join(map(str, path)): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for path, value in leaves(settings)
        if value != {}
    }


def _starter(recipe: Recipe) -> tuple[str, tuple[Differs, ...]]:
    """The most similar starter of the recipe's scenario, and the differences; an empty name for none."""
    own, best = flat(recipe.settings.plain()), None
    for name, file in packaged.named().items():
        try:
            if read(file).data.get("scenario") != recipe.scenario:
                continue
            other = flat(load(file, look=False)[0].settings.plain())
        except Stop:
            continue  # an edited starter
        rows = [(name, values) for name, values in differing([other, own], "") if name not in _OWN]
        if best is None or len(rows) < len(best[1]):
            best = name, rows
    if best is None:
        return "", ()
    known = origins.origins(recipe.document, recipe.settings.plain())
    return best[0], tuple(Differs(name, there, here, known.get(name, "")) for name, (there, here) in best[1])
