"""Rehearsal of stages: each as a recipe of its own, on its rows, from the twin that the stage before has trained."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from runner.data.report import PreparedRows
from runner.recipe.overrides import Override, of_each
from runner.recipe.recipe import Recipe
from runner.scenarios.language import translation as language
from runner.scenarios.shared import rehearsal
from runner.tools.problem import Stop


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    if data:
        hint = "Write `--set stages.0.data.path=FILE`, with the number of the stage."
        raise Stop("`--data` replaces the rows of one training, and this recipe has several stages.", hint)
    return of_each(recipe, lambda name, one: language.before_data(one, None))


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    def of(name: str, one: Recipe) -> list[Override]:
        own = PreparedRows.read(folder / "data" / name)
        assert own, name
        return rehearsal.after_data(one, own, folder)

    return of_each(recipe, of)


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    """The twin has the layers of the stage that trains most, and the tokens of the first."""
    each = list(recipe.stage_recipes.values())
    return rehearsal.stands_in(max(each, key=rehearsal.layers), folder)


def shown(original: Recipe, made: list[Override], rows: PreparedRows) -> Iterable[str]:
    return rehearsal.shown(next(iter(original.stage_recipes.values())), made, rows)
