"""The rehearsal of causal-lm: short blocks, judged on documents that were not trained on."""

from __future__ import annotations

from collections.abc import Iterator

from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.scenarios.causal_lm.translation import validates
from runner.scenarios.shared import rehearsal
from runner.scenarios.shared.rehearsal import BY, after_data, judge, shown, stands_in

__all__ = ["after_data", "before_data", "judge", "shown", "stands_in"]


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    rows = rehearsal.data(recipe, file)
    one_file = any(change.path[-1] == "path" and change.after for change in rows) or not validates(recipe)
    return [*rows, *_own(recipe, one_file), *rehearsal.split(recipe), *rehearsal.gates(recipe)]


def _own(recipe: Recipe, one_file: bool) -> Iterator[Override]:
    """one_file: whether the text is one file by now, without one to validate on."""
    yield Override("resume_from", None, None, BY, "a rehearsal begins anew")
    yield Override("model.sequence_len", None, min(64, recipe.model.sequence_len), BY, "short blocks make quick steps")
    yield Override("train.cross_entropy", None, "plain", BY, "the fused and chunked ones are compiled for a GPU")
    if one_file and not recipe.data.validation_share:
        why = "the text is one file, and learning is judged on documents that it did not see"
        yield Override("data.validation_split", None, None, BY, why)
        yield Override("data.validation_path", None, None, BY, why)
        yield Override("data.validation_share", None, 0.1, BY, why)
