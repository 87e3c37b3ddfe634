"""Online: what only the hub can say of a recipe, asked where somebody wishes it. `recipe check` itself needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from runner.catalog.published import why_no_hub
from runner.check import sources
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings
from runner.tools.names import listed, setting
from runner.tools.problem import Problem, Stop

LATER = "What prepares the data asks again, before a GPU is held."


def datasets(recipe: Recipe) -> Iterator[Problem]:
    """The datasets on the hub are there, and have the columns that the recipe names; the library reads them that will read
    them later. A note where nobody can be asked."""
    named = [(home, data) for home, data in recipe.data_sets() if data.get("hub")]
    if not named:
        return
    if why := why_no_hub() if find_spec("datasets") else "the library `datasets` is not installed":
        names = listed(dict.fromkeys(data["hub"] for _, data in named))
        message = f"The hub was not asked for the columns of {names}: {why}."
        yield recipe.document.problem((*named[0][0], "hub"), message, LATER, severity="note")
        return
    for home, data in named:
        yield from sources.said_of(home, _dataset(recipe, home, data))


def _dataset(recipe: Recipe, home: Path_, data: Settings) -> Iterator[Problem]:
    from runner.data import data_sets

    source = data_sets.Source(
        hub=data["hub"], revision=data.get("revision"), subset=data.get("subset"), split=data.get("split"), path=None
    )
    try:
        there = data_sets.hub_columns(source)
    except data_sets.Unreachable as reason:
        yield recipe.document.problem((*home, "hub"), _first(reason), LATER, severity="note")
    except Stop as reason:
        yield recipe.document.problem((*home, "hub"), _first(reason), f"Look at it on the hub, and at {_lines(home)}.")
    else:
        yield from sources.fits(recipe, home, data, "hub", data["hub"], there)


def _lines(home: Path_) -> str:
    return f"`hub`, `subset`, `split` and `revision` of `{setting(home)}`"


def _first(reason: Stop) -> str:
    return reason.text.split("\n")[0]
