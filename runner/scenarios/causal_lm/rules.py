"""Rules for plain text: where validation data comes from, and what needs some."""

from collections.abc import Iterator

from runner.recipe.recipe import Recipe
from runner.scenarios.causal_lm.translation import validates
from runner.scenarios.shared import cadence, gates
from runner.tools.names import listed
from runner.tools.names import setting as name_of
from runner.tools.problem import Problem

# Lines of `data` that give validation data, and the line that each of the first two belongs to.
VALIDATION = {"validation_split": "hub", "validation_path": "path"}
GIVES_VALIDATION = (*VALIDATION, "validation_share")


def one_validation(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    given = [setting for setting in GIVES_VALIDATION if data.get(setting)]
    if len(given) > 1:
        message = f"`data` has {listed(given)}, and validation data comes from one place."
        yield recipe.problem(("data", given[1]), message, "Keep one of these lines.")
    for setting, source in VALIDATION.items():
        # A file goes with any list of data sets; a split is one of each.
        lacking = [home for home, one in recipe.data_sets() if not one.get(source)]
        if data.get(setting) and lacking and not (setting == "validation_path" and data.get("sets")):
            message = f"`{setting}` goes with `{source}`, and `{name_of(lacking[0])}` has no `{source}`."
            hint = "Use `validation_share` to take a share of the documents instead."
            yield recipe.problem(("data", setting), message, hint)

    file, split = data.get("validation_path"), data.get("validation_split")
    trained = [(recipe.folder / name).resolve() for _, one in recipe.data_sets() if (name := one.get("path"))]
    same_file = file and (recipe.folder / file).resolve() in trained
    if same_file or (split and split == data.get("split")):
        message = f"Validation is on the text that is trained, `{file if same_file else split}`, and would call best what learned it by heart."
        hint = "Name another, or use `validation_share` to take a share of the documents."
        yield recipe.problem(("data", "validation_path" if same_file else "validation_split"), message, hint)


def metrics(recipe: Recipe) -> list[str]:
    """What can be measured; on held-out documents only where the recipe has some."""
    return gates.producible("text", recipe.evaluation.tasks or (), validates=validates(recipe))


RULES = (one_validation, cadence.rule(validates), gates.rule(metrics))
