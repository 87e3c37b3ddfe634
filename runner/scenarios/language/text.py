"""Plain text as rows: documents joined and cut into blocks of equal length."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from runner.data.data_sets import PlainText, TextSet
from runner.plan import Place
from runner.recipe.overrides import Override
from runner.recipe.recipe import TEXT, Recipe
from runner.scenarios.shared import common, rehearsal
from runner.tools.names import listed, setting
from runner.tools.problem import Problem, worded

# Lines of `data` that give validation data, and the line that each of the first two belongs to.
VALIDATION = {"validation_split": "hub", "validation_path": "path"}
GIVES_VALIDATION = (*VALIDATION, "validation_share")


def validates(recipe: Recipe) -> bool:
    """Whether the recipe holds out rows; without them, there is no evaluation, and the last weights are kept."""
    return recipe.rows != TEXT or any(recipe.data.get(name) for name in GIVES_VALIDATION)


def validation(recipe: Recipe, place: Place, sets: Iterable[TextSet]) -> Iterator[TextSet]:
    """The data for the validation loss alone: a split of each dataset, or a file; empty for a share or nothing."""
    data = recipe.data
    if split := data.validation_split:
        yield from (replace(one, split=split, share=1.0) for one in sets)
    if path := common.data_file(recipe, place, data.validation_path):
        yield TextSet(hub=None, revision=None, subset=None, split=data.split, path=path, text=data.text)


def plain_text(recipe: Recipe, place: Place, **own: Any) -> PlainText:
    plain = common.rows(
        PlainText,
        recipe,
        place,
        recipe.data,
        effective_batch_size=common.effective_batch_size(recipe),
        epochs=recipe.train.epochs,
        warmup_steps=recipe.train.warmup_steps or 0,  # a share never exceeds the number of steps
        eval_steps=recipe.train.eval_steps if validates(recipe) else None,
        **own,
    )
    return replace(plain, validation_sets=tuple(validation(recipe, place, plain.sets)))


def one_validation(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    if recipe.rows != TEXT:
        return
    given = [name for name in GIVES_VALIDATION if data.get(name)]
    if len(given) > 1:
        yield recipe.problem(("data", given[1]), *worded("scenarios.several-validations", given=listed(given)))
    for name, source in VALIDATION.items():
        # A file works with any list of data sets; a split must exist in each.
        lacking = [home for home, one in recipe.data_sets() if not one.get(source)]
        if data.get(name) and lacking and not (name == "validation_path" and data.get("sets")):
            said = worded("scenarios.validation-needs", name=name, source=source, lacking=setting(lacking[0]))
            yield recipe.problem(("data", name), *said)

    file, split = data.get("validation_path"), data.get("validation_split")
    trained = [(recipe.folder / name).resolve() for _, one in recipe.data_sets() if (name := one.get("path"))]
    same_file = file and (recipe.folder / file).resolve() in trained
    if same_file or (split and split == data.get("split")):
        said = worded("scenarios.validation-is-training", text=file if same_file else split)
        yield recipe.problem(("data", "validation_path" if same_file else "validation_split"), *said)


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    rows = rehearsal.data(recipe, file)
    one_file = any(change.path[-1] == "path" and change.after for change in rows) or not validates(recipe)
    return [*rows, *_short_blocks(recipe, one_file), *rehearsal.split(recipe), *rehearsal.gates(recipe)]


def _short_blocks(recipe: Recipe, one_file: bool) -> Iterator[Override]:
    """Short blocks, judged on held-out documents. one_file: whether the text is one file, without another to validate
    on."""
    yield rehearsal.substitute(
        "model.sequence_len", min(64, recipe.model.sequence_len), "short blocks make quick steps"
    )
    yield from rehearsal.kernels(recipe)
    if one_file and not recipe.data.validation_share:
        why = "the text is one file, and the rehearsal needs held-out documents"
        yield rehearsal.substitute("data.validation_split", None, why)
        yield rehearsal.substitute("data.validation_path", None, why)
        yield rehearsal.substitute("data.validation_share", 0.1, why)
