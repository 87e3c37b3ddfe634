"""Rules for how a recipe measures what it has trained."""

from collections.abc import Iterator

from runner.recipe.recipe import Recipe
from runner.scenarios.shared import gates
from runner.tools.names import ALIKE, nearest
from runner.tools.problem import Problem


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The stand-in for lm-eval's tasks is there."""
    section = recipe.settings.get("evaluation")
    named = section and section.get("sample_task")
    if named and not (recipe.folder / named).is_file():
        message = f"There is no file `{recipe.folder / named}`."
        hint = "Paths start from the recipe's own folder."
        yield recipe.problem("evaluation.sample_task", message, hint)


def tasks(recipe: Recipe) -> Iterator[Problem]:
    """Tasks are called as lm-eval calls them, and as the gates do."""
    named = (recipe.settings.get("evaluation") or {}).get("tasks") or ()
    misspelt = gates.misspelt_tasks(recipe)
    for index, task in enumerate(named):
        place = ("evaluation", "tasks", index)
        if meant := misspelt.get(task):
            message = f"`{task}` is measured, and the gates ask for `{meant}`, so that they would never open."
            yield recipe.problem(place, message, f"Write `{meant}`.")
        elif task not in gates.USUAL_TASKS and (near := nearest(task, gates.USUAL_TASKS, ALIKE)):
            message = f"`{task}` is no usual task of lm-eval, and `{near}` is one."
            yield recipe.note(place, message, f"Write `{near}`, if it was meant; nothing to do otherwise.")


RULES = (tasks,)
FILE_RULES = (sample_task,)
