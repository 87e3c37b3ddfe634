"""Rules about what lines say of the hub: names and splits of data sets, as far as the catalog knows them, and revisions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner import catalog
from runner.check.lints import note
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings
from runner.tools.files import saved_by_datasets
from runner.tools.names import listed, nearest
from runner.tools.problem import Problem

ASK_HUB = "`recipe check --online` asks the hub"


def _known(section: Settings) -> Mapping[str, Any]:
    """What the catalog knows of the data set that a section names; nothing of others."""
    hub, subset = section.get("hub"), section.get("subset")
    return catalog.dataset(f"{hub}:{subset}" if subset else hub) or {}


def hub_names(recipe: Recipe) -> Iterator[Problem]:
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        near = catalog.near_dataset(hub) if hub else None
        if hub and "/" not in hub and not _known(section):
            message = f"`{hub}` names no owner, and data sets on the hub have one."
            hint = f"Write `{near or f'OWNER/{hub}'}`; {ASK_HUB}."
            yield note(recipe, (*home, "hub"), message, hint)
        elif hub and near:
            message = f"`{hub}` is not known here, and `{near}` is."
            yield note(recipe, (*home, "hub"), message, f"Write `{near}`, if it was meant; {ASK_HUB}.")


def unknown(recipe: Recipe) -> Iterator[Problem]:
    """Data sets that the catalog does not have, once for all; one that is likely misspelt has its own note."""
    strange: dict[str, Path_] = {}
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        if hub and not _known(section) and not catalog.near_dataset(hub):
            strange.setdefault(hub, home)
    if strange:
        message = f"Not in the catalog, so that its columns, subsets and splits are not known here: {listed(strange)}."
        hint = f"`recipe check {recipe.document.file} --online` asks the hub; so does `recipe submit`."
        yield note(recipe, (*next(iter(strange.values())), "hub"), message, hint)


def commits(recipe: Recipe) -> Iterator[Problem]:
    """Of models, tokenizers and data sets alike; a set takes the line of its section, which is judged once."""
    named = [*recipe.data_sections, *recipe.data_sets()]
    for home in dict.fromkeys([("model",), ("tokenizer",), *(home for home, _ in named)]):
        revision = recipe.document.lookup((*home, "revision"))
        if isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{7,39}", revision):
            yield recipe.document.problem(
                (*home, "revision"),
                f"`{revision}` is the beginning of a commit, and the hub knows whole ones alone.",
                "Write all 40 digits, or a branch or tag such as `main`.",
            )


def splits(recipe: Recipe) -> Iterator[Problem]:
    """Of a data set of the catalog it is known which splits it has; parts of one and several are `train[:10%]` and `train+test`."""
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        there = _known(section).get("splits") if hub else None
        for setting in ("split", "validation_split", "test_split"):
            named = re.findall(r"(?:^|\+)\s*([\w.-]+)", section.get(setting) or "") if section.knows(setting) else []
            if there and (gone := [name for name in named if name not in there]):
                near = nearest(gone[0], there)
                hint = (f"Did you mean `{near}`? " if near else "") + f"It has {listed(there)}; {ASK_HUB}."
                message = f"`{hub}` has no split `{gone[0]}`."
                yield recipe.document.problem((*home, setting), message, hint)


# Lines about a data set on the hub; a folder that `datasets` has saved has splits too.
_OF_HUB = ("revision", "subset", "split", "test_split")


def left_over(recipe: Recipe) -> Iterator[Problem]:
    """Lines about the hub that stand beside a file say nothing."""
    for home, section in recipe.data_sets():
        path = section.get("path")
        if not path or section.get("hub"):
            continue
        written = recipe.document.lookup(home) or {}
        names = [name for name in _OF_HUB if written.get(name)]
        if saved_by_datasets(recipe.folder / path) or recipe.on_claim(path):
            names = [name for name in names if name in ("revision", "subset")]
        if names:
            message = f"{listed(names)} {'is' if len(names) == 1 else 'are'} about a data set on the hub, and the rows come from `{path}`."
            yield note(
                recipe,
                (*home, names[0]),
                message,
                f"Delete {'the line' if len(names) == 1 else 'the lines'}; nobody reads {'it' if len(names) == 1 else 'them'}.",
            )


RULES = (splits, left_over, hub_names, commits)
