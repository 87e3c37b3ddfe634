"""What a rehearsal puts in place of a network for images, and when it has learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.data.report import PreparedRows
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.rehearsal import BY, data, gates, on_processors, processes_for
from runner.tools.problem import Stop
from runner.trainer.summary import Summary

MAX_IMAGES = 1000
WIDTH = 16
# So many looks at images are enough for the narrow twin, and take half a minute on two cores.
LOOKS = 5000
MIN_ACCURACY = 0.60


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    made = data(recipe, file)
    return [*made, *_classes_of_sample(recipe, made), *gates(recipe)]


def _classes_of_sample(recipe: Recipe, made: list[Override]) -> Iterator[Override]:
    """The recipe's classes are those of its own images; a sample that stands in for them may have more or fewer."""
    sample = recipe.data.sample
    if not sample or not any(change.setting == "data.path" and change.after == sample for change in made):
        return
    import pyarrow
    from pyarrow import parquet

    from runner.parts.images.pictures import named_classes

    with suppress(OSError, pyarrow.ArrowInvalid):
        count = len(named_classes(parquet.read_schema(recipe.folder / sample), recipe.data.label_column))
        if count and count != recipe.model.classes:
            yield Override("model.classes", None, count, BY, "those of the sample, which is of other images")


def stands_in(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What the data stage of a rehearsal does besides: a seeded draw of the images."""
    return {"sample_rows": MAX_IMAGES}


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    """The narrow twin, processes in place of machines, and as many epochs as it takes."""
    train = recipe.train
    micro = min(train.micro_batch_size, 32)
    epochs = -(-LOOKS // rows.train_rows)
    enough = f"{LOOKS:,} looks or a few more at {rows.train_rows:,} images are enough for it"
    narrow = min(recipe.model.width, WIDTH)
    return [
        Override("model.width", None, narrow, BY, "a narrow twin, the same layers; it runs on two cores"),
        Override("model.precision", None, "fp32", BY, "runs on any processor"),
        Override("data.mean", None, None, BY, "measured on these images"),
        Override("data.std", None, None, BY, "measured on these images"),
        *on_processors(recipe, processes_for(recipe, rows)),
        Override("train.micro_batch_size", None, micro, BY, "small steps"),
        Override("train.gradient_accumulation_steps", None, 1, BY, "small steps"),
        Override("train.epochs", None, epochs, BY, enough),
        Override("train.effective_batch_size", None, None, BY, "computed from the lines above"),
        Override("train.learning_rate", None, 0.003, BY, "a narrow network takes larger steps"),
        Override("train.optimizer", None, "adamw_torch", BY, "runs on any processor"),
        Override("train.logging_steps", None, 5, BY, "few steps"),
        Override("train.report_to", None, "tensorboard", BY, "needs no account"),
        overrides.without_time_limit(BY),
    ]


def shown(original: Recipe, made: list[Override], rows: PreparedRows) -> Iterator[str]:
    yield from map(str, made)


def judge(plan: Plan, summaries: list[Summary]) -> None:
    """Raises Stop where fewer than 60 % of the validation images are told right."""
    for summary in summaries:
        accuracy = summary.best_accuracy or 0.0
        if accuracy < MIN_ACCURACY:
            raise Stop(
                f"The rehearsal of `{plan.name}` did not learn: it tells {accuracy:.1%} of the validation images right, and "
                f"{MIN_ACCURACY:.0%} are needed.",
                "Look at the images and their classes, and at what is done to them under `data`.",
            )
