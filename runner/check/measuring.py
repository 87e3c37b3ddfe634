"""Rules for how a recipe measures what it has trained."""

from __future__ import annotations

from collections.abc import Iterator

from runner.problem import Problem
from runner.recipe.recipe import Recipe


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The stand-in for lm-eval's tasks is there."""
    section = recipe.settings.get("evaluation")
    named = section and section.get("sample_task")
    if named and not (recipe.folder / named).is_file():
        yield recipe.document.problem(
            ("evaluation", "sample_task"),
            f"There is no file `{recipe.folder / named}`.",
            "Paths start from the recipe's own folder.",
        )


FILE_RULES = (sample_task,)
