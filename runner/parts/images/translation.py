"""Scenario image-classification: a ResNet for small images, trained from random weights.

Axolotl trains no images, so the engine is the runner's own `images`: transformers' ResNet and Trainer. Settings under
`trainer` have the names that transformers' TrainingArguments give them.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from runner.parts.images.pictures import Images
from runner.plan import Evaluation, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import cadence, common, gates

# The name that images of 0.1 know it by, too.
TRAINER = "runner.scenarios.image_classification.trainer"
CONFIG_FILE = "images.yaml"


def translate(recipe: Recipe, place: Place) -> Plan:
    def stages(place: Place) -> Iterator[Stage]:
        yield from common.rows_and_training(recipe, place, train(recipe, place))

    return common.plan(recipe, place, stages, common.batch_facts(recipe))


def train(recipe: Recipe, place: Place) -> Stage:
    """The stage that trains, in the plan's own folders."""
    runs_on, data = common.machines(recipe, place), asdict(preparation(recipe, place))
    return Stage(
        name="train",
        engine="images",
        config={
            "model": {key: recipe.model[key] for key in ("architecture", "width", "image_size", "classes")},
            "data": images(recipe, place),
            "prepare": data,
            "trainer": trainer(recipe, place),
            "recipe_runner": common.run_facts(recipe, place),
        },
        config_file=CONFIG_FILE,
        data=data,
        files=(),
        # torchrun reads the number of machines, their ranks and the master's address from PET_*.
        command=("torchrun", "-m", TRAINER, "--prepare", f"{place.config_dir}/{CONFIG_FILE}"),
        env=environment(recipe, place),
        machines=runs_on,
        shm_gib=common.shared_memory_gib(runs_on),
        gates=(conditions := gates.of(recipe.gates)),
        evaluation=Evaluation("images", tuple(gate.metric for gate in conditions), rows=place.data_dir),
    )


def images(recipe: Recipe, place: Place) -> dict[str, Any]:
    """The prepared images, and what training does to each as it reads it."""
    data = recipe.data
    return {
        "folder": place.data_dir,
        "random_crop_padding": data.random_crop_padding,
        "random_flip": data.random_flip,
        "mean": list(data.mean) if data.mean else None,
        "std": list(data.std) if data.std else None,
    }


def preparation(recipe: Recipe, place: Place) -> Images:
    return common.made(
        Images,
        recipe.data,
        path=common.data_file(recipe, place, recipe.data.path),
        image_size=recipe.model.image_size,
        classes=recipe.model.classes,
    )


def trainer(recipe: Recipe, place: Place) -> dict[str, Any]:
    """Optimisation, evaluation and checkpoints."""
    train = recipe.train
    return {
        "num_train_epochs": train.epochs,
        "per_device_train_batch_size": train.micro_batch_size,
        "per_device_eval_batch_size": train.micro_batch_size,
        "gradient_accumulation_steps": train.gradient_accumulation_steps,
        "learning_rate": common.learning_rate(recipe),
        "lr_scheduler_type": train.lr_scheduler,
        "warmup_ratio": train.warmup_ratio,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "optim": train.optimizer,
        "bf16": recipe.model.precision == "bf16",
        "fp16": recipe.model.precision == "fp16",
        "seed": train.seed,
        "logging_steps": train.logging_steps,
        **cadence.evaluated(train),
        "save_total_limit": train.keep_checkpoints,
        "output_dir": place.checkpoints_dir,
        "report_to": train.report_to,
        "ddp_bucket_cap_mb": common.ddp_bucket_mb(recipe),
        "ddp_find_unused_parameters": recipe.communication.ddp_find_unused_parameters,
    }


def environment(recipe: Recipe, place: Place) -> dict[str, str]:
    """Environment of every training process; W&B and MLflow put the curves under the recipe's name."""
    project = {"wandb": "WANDB_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}.get(recipe.train.report_to)
    return common.common_environment(recipe, place) | ({project: recipe.name} if project else {})
