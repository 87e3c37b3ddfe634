"""What a scenario's folder brings. Each part is a plain module that satisfies one of these protocols.

A folder here that has `schema.yaml` and `translation.py` is a scenario; its name, with `-` for each `_`, is what recipes
say. Nothing else names it. It has

    schema.yaml      what a recipe may say; `make schemas` builds `schemas/<scenario>.schema.json` from it
    translation.py   Translation: what the technique makes of a recipe

and, where it needs some,

    rules.py         Rules: what the schema cannot say
    rehearsal.py     Rehearsal: what stands in for the real thing; without it, as for language models on rows
    work.py          functions for its stages that train nothing, where its rows are of several kinds; each takes a frozen
                     dataclass, whose JSON form is the stage's config, and a function to tell what it does; FIRST has, by the name of such a
                     function, what shows the rows that it prepares
    architecture.py  Architecture: where the recipe describes its model and names none
    __init__.py      PREPARERS, ENGINES, MEASURES and ASKED: its own kinds of data, its own trainers, what measures models that
                     do not read, and what asks them, by name, each a dotted module that is imported when it is needed. A
                     module of PREPARERS is a Preparer; one of ENGINES is run as `python -m MODULE CONFIG`, by torchrun where
                     there are several processes; one of MEASURES has `measure(task, measures)` (see `runner.parts.evaluate.evaluate`);
                     one of ASKED has `load(weights)`, which gives a function from a file to the share of each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.catalog import Model
from runner.plan import Place, Plan
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe, Settings
from runner.tools.problem import Problem
from runner.trainer.summary import Summary

if TYPE_CHECKING:
    from runner.data.prepared import Rows
    from runner.data.rendered_example import Seen
    from runner.data.report import Report

Rule = Callable[[Recipe], Iterator[Problem]]


class Translation(Protocol):
    def translate(self, recipe: Recipe, place: Place) -> Plan:
        """The Plan of a recipe at a place; pure. Raises Stop where `advanced` contradicts the recipe."""
        ...


class Rules(Protocol):
    """RULES judge recipes of this scenario alone, after those of `runner/check/` that judge all. Rules that look at files of
    this machine stand in FILE_RULES, where there are any: whoever asks after a job need not have them."""

    RULES: tuple[Rule, ...]


class Architecture(Protocol):
    def model_facts(self, settings: Settings) -> Model:
        """The model that a recipe describes. Raises BrokenSetting where the schema refuses what it needs."""
        ...


class Rehearsal(Protocol):
    # What else stands in, once the rows are known; the path is the run's. None where nothing follows from the rows.
    after_data: Callable[[Recipe, Rows, Path], list[Override]] | None

    def before_data(self, recipe: Recipe, file: str | None) -> list[Override]:
        """What stands in for the recipe's data. file: rows to use instead of the recipe's sample. Raises Stop where there is
        nothing on this machine to rehearse with."""
        ...

    def stands_in(self, recipe: Recipe, folder: Path) -> dict[str, Any]:
        """What the data stage does besides, as more of its config. folder: of the run."""
        ...

    def shown(self, original: Recipe, made: list[Override], rows: Rows) -> Iterable[str]:
        """The substitutions that were made after the data, as a person reads them."""
        ...

    def judge(self, plan: Plan, summaries: list[Summary]) -> None:
        """Raises Stop where too little was learned."""
        ...


class Preparer(Protocol):
    def prepare(self, settings: Any, out: Path, **options: Any) -> Report:
        """Writes what `settings` ask for into `out`; a no-op where it already lies there. They are a frozen dataclass of its
        own, whose JSON form is a stage's `data`, with its name in PREPARERS as `kind`."""
        ...

    # Where rows can be shown: those that are trained on, one after the other, as the model is to see each.
    first: Callable[[Any], Iterator[Seen]]
