"""The rehearsal of causal-lm: short blocks, judged on documents that were not trained on."""

from collections.abc import Iterator

from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.scenarios.causal_lm.translation import validates
from runner.scenarios.shared import rehearsal
from runner.scenarios.shared.rehearsal import after_data, judge, shown, stands_in, substitute

__all__ = ["after_data", "before_data", "judge", "shown", "stands_in"]


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    rows = rehearsal.data(recipe, file)
    one_file = any(change.path[-1] == "path" and change.after for change in rows) or not validates(recipe)
    return [*rows, *_own(recipe, one_file), *rehearsal.split(recipe), *rehearsal.gates(recipe)]


def _own(recipe: Recipe, one_file: bool) -> Iterator[Override]:
    """one_file: whether the text is one file by now, without one to validate on."""
    yield substitute("resume_from", None, "a rehearsal begins anew")
    yield substitute("model.sequence_len", min(64, recipe.model.sequence_len), "short blocks make quick steps")
    yield substitute("train.cross_entropy", "plain", "the fused and chunked ones are compiled for a GPU")
    if one_file and not recipe.data.validation_share:
        why = "the text is one file, and learning is judged on documents that it did not see"
        yield substitute("data.validation_split", None, why)
        yield substitute("data.validation_path", None, why)
        yield substitute("data.validation_share", 0.1, why)
