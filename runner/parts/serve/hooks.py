"""The models of a recipe behind a server: for the commands that take `--url`, and for the plan of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.commands.options import say
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop, errors_of

if TYPE_CHECKING:
    from runner.parts.serve.served import Served


def models_at(url: str, recipe: Recipe, stage: str | None) -> Served:
    """The recipe's models behind a server. Raises Stop where it has none of them."""
    from runner.parts.serve import served

    return served.at(url, recipe, stage)


def plan_server(recipe: Recipe, as_json: bool) -> int:
    """Shows what a server of what the recipe trains needs; 1 where it does not fit."""
    from runner.parts.serve import needs as reckoned
    from runner.parts.serve import show_needs
    from runner.parts.serve.kserve import served

    _, server, needs = served(recipe)
    if needs is None:
        raise Stop(
            f"Nobody can count the weights of `{recipe.model.base}` here, so nothing can be said of a server's memory.",
            "`recipe models` shows the models that are known, and writes down others.",
        )
    if as_json:
        say(show_needs.as_json(server, needs))
    else:
        show_needs.show(server, needs)
    problems = reckoned.problems(recipe, server, needs)
    for problem in () if as_json else problems:
        say(f"\n{problem}")
    return int(bool(errors_of(problems)))
