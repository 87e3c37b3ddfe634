"""Scenario image-classification: a ResNet for small images, trained from random weights.

Axolotl does not train on images, so the engine is the runner's own `images`: transformers' ResNet
and Trainer. Settings under `trainer` have the names of transformers' TrainingArguments.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from runner import catalog
from runner.data.data_sets import stated
from runner.data.prepared import PreparedRows
from runner.parts.contract import Measurable, Summaries
from runner.parts.images.data import ImageSet, class_folders, class_names, named_classes
from runner.plan import Evaluation, Place, Plan, Stage
from runner.recipe import overrides
from runner.recipe.recipe import Override, Recipe
from runner.scenarios.shared import common, rehearsal
from runner.scenarios.shared.contradictions import contradictions
from runner.tools import packaged
from runner.tools.problem import Problem, Stop

# The module's name in images of 0.1, too.
TRAINER = "runner.parts.images.trainer"
CONFIG_FILE = "images.yaml"
TRAINER_SETTINGS = packaged.toml(__file__, "trainer.toml")
# Settings of the images as the network sees them.
Seen = Literal["random_crop_padding", "random_flip", "mean", "std"]
SEEN: tuple[Seen, ...] = get_args(Seen)
REHEARSAL = Path(__file__).with_name("rehearsal.toml")

# The most images, the width of the network, and the most processes in a rehearsal.
MAX_IMAGES = 1000
WIDTH = 16
MAX_PROCESSES = 2
# The narrow twin learns from this many images, with repetitions, in half a minute on two cores.
LOOKS = 5000
MIN_ACCURACY = 0.60


def translate(recipe: Recipe, place: Place) -> Plan:
    facts = common.batch_facts(recipe)
    return common.plan(
        recipe, place, lambda at: common.rows_and_training(recipe, at, train(recipe, at)), facts
    )


def measurable(recipe: Recipe) -> Measurable:
    return Measurable("images")


def train(recipe: Recipe, place: Place) -> Stage:
    """The stage that trains, in the plan's own folders."""
    runs_on = common.machines(recipe, place)
    data = recipe.data
    own = {"image_size": recipe.model.image_size, "classes": recipe.model.classes}
    prepare = common.made(ImageSet, data, path=common.data_file(recipe, place, data.path), **own)
    conditions, evaluation = common.measured(recipe, Evaluation("images", rows=place.data_dir))
    return Stage(
        name="train",
        engine="images",
        config={
            "model": {
                key: recipe.model[key] for key in ("architecture", "width", "image_size", "classes")
            },
            # The prepared images, and the augmentation in training.
            "data": {"folder": place.data_dir, **{key: data.get(key) for key in SEEN}},
            "prepare": asdict(prepare, dict_factory=stated),
            "trainer": trainer(recipe, place),
            "recipe_runner": common.run_settings(recipe, place),
        },
        config_file=CONFIG_FILE,
        data=asdict(prepare, dict_factory=stated),
        files=(),
        # torchrun reads the number of machines, their ranks and the master's address from PET_*.
        command=("torchrun", "-m", TRAINER, "--prepare", f"{place.config_dir}/{CONFIG_FILE}"),
        env=common.common_environment(recipe, place),
        machines=runs_on,
        shm_gib=common.shared_memory_gib(runs_on),
        gates=conditions,
        evaluation=evaluation,
    )


def trainer(recipe: Recipe, place: Place) -> dict[str, Any]:
    """Optimisation, evaluation and checkpoints."""
    computed = {
        "{learning_rate}": common.learning_rate(recipe),
        "{output_dir}": place.checkpoints_dir,
        "{bucket_mb}": common.ddp_bucket_mb(recipe),
        "{find_unused}": recipe.communication.ddp_find_unused_parameters,
        **{f"{{{name}}}": recipe.model.precision == name for name in ("bf16", "fp16")},
    }
    known = {**recipe.train.plain(), **computed}
    first = {name: known[setting] for name, setting in TRAINER_SETTINGS["first"].items()}
    last = {name: known[setting] for name, setting in TRAINER_SETTINGS["last"].items()}
    return {**first, **common.evaluated(recipe.train), **last}


def classes(recipe: Recipe) -> Iterator[Problem]:
    """The number of classes must be that of the folders of images, or of the hub's data set in the
    catalog."""
    data = recipe.data
    stated = recipe.model.classes
    if data.path:
        folder = recipe.folder / data.path
    else:
        folder = None
    if folder and folder.is_dir() and class_folders(folder):
        try:
            there = len(class_names(folder))
        except Stop as stop:
            reason, _, remedy = stop.text.partition("\n")
            yield recipe.problem("data.path", reason, remedy)
            return
        if there != stated:
            message = (
                f"`{folder}` has {there} folders of images, one for each class, but `classes` is {stated}.",
                f"Write `classes: {there}`.",
            )
            yield recipe.problem("model.classes", *message, mending=there)
    elif (
        data.hub
        and not data.path
        and (there := catalog.dataset(data.hub).get("classes", stated)) != stated
    ):
        message = (
            f"`{data.hub}` has {there} classes, but `classes` is {stated}.",
            f"Write `classes: {there}`.",
        )
        yield recipe.problem("model.classes", *message)


RULES = (classes, contradictions(__file__))


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    made = rehearsal.data(recipe, file)
    sample = recipe.data.sample
    if sample and any(change.setting == "data.path" and change.after == sample for change in made):
        # It replaces the recipe's own images, and may have another number of classes.
        import pyarrow
        from pyarrow import parquet

        with suppress(OSError, pyarrow.ArrowInvalid):
            count = len(
                named_classes(parquet.read_schema(recipe.folder / sample), recipe.data.label_column)
            )
            if count and count != recipe.model.classes:
                why = "those of the sample, which is of other images"
                made.append(overrides.substitute("model.classes", count, why))
    return [*made, *rehearsal.gates(recipe)]


def stands_in(recipe: Recipe, folder: Path) -> dict[str, Any]:
    return {"sample_rows": MAX_IMAGES}


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    """The narrow twin, processes instead of machines, and enough epochs."""
    # A process without an image would never make a step.
    processes = min(MAX_PROCESSES, common.world_size(recipe), rows.train_rows)
    computed = {
        "width": min(recipe.model.width, WIDTH),
        "micro": min(recipe.train.micro_batch_size, 32),
        "epochs": -(-LOOKS // rows.train_rows),
        "looks": LOOKS,
        "rows": rows.train_rows,
    }
    return [
        *(overrides.substitute(*row) for row in rehearsal.table("twin", REHEARSAL, **computed)),
        *rehearsal.on_processors(recipe, processes),
        *(overrides.substitute(*row) for row in rehearsal.table("training", REHEARSAL, **computed)),
        overrides.without_time_limit(rehearsal.BY),
    ]


def shown(original: Recipe, made: list[Override], rows: PreparedRows) -> Iterator[str]:
    yield from map(str, made)


def judge(plan: Plan, summaries: Summaries) -> None:
    """Raises Stop if fewer than 60 % of the validation images are classified correctly."""
    for summary in summaries:
        accuracy = summary.best_accuracy or 0.0
        if accuracy < MIN_ACCURACY:
            raise Stop(
                f"The rehearsal of `{plan.name}` did not learn: it classifies {accuracy:.1%} of the validation images correctly, but needs {MIN_ACCURACY:.0%}.",
                "Check the images and their classes, and how `data` changes them.",
            )
