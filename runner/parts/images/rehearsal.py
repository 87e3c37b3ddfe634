"""What a rehearsal puts in place of a network for images, and when it has learned."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.data.report import PreparedRows
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.rehearsal import BY, data, gates, on_processors, processes_for, substitute
from runner.tools.problem import Stop
from runner.trainer.records import Summary

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
            yield substitute("model.classes", count, "those of the sample, which is of other images")


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
        substitute("model.width", narrow, "a narrow twin, the same layers; it runs on two cores"),
        substitute("model.precision", "fp32", "runs on any processor"),
        substitute("data.mean", None, "measured on these images"),
        substitute("data.std", None, "measured on these images"),
        *on_processors(recipe, processes_for(recipe, rows)),
        substitute("train.micro_batch_size", micro, "small steps"),
        substitute("train.gradient_accumulation_steps", 1, "small steps"),
        substitute("train.epochs", epochs, enough),
        substitute("train.effective_batch_size", None, "computed from the lines above"),
        substitute("train.learning_rate", 0.003, "a narrow network takes larger steps"),
        substitute("train.optimizer", "adamw_torch", "runs on any processor"),
        substitute("train.logging_steps", 5, "few steps"),
        substitute("train.report_to", "tensorboard", "needs no account"),
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
