"""What a rehearsal puts in place of a network for images, and when it has learned."""

from __future__ import annotations

from runner.execute.data.report import Report
from runner.plan import Plan
from runner.problem import Stop
from runner.recipe import placing
from runner.recipe.changes import Change
from runner.recipe.recipe import Recipe

MAX_IMAGES = 1000
MAX_PROCESSES = 2
WIDTH = 16
# So many looks at images are enough for the narrow twin, and take half a minute on two cores.
MIN_LOOKS = 8000
MIN_ACCURACY = 0.60


def changes(recipe: Recipe, report: Report, by: str) -> list[Change]:
    """The narrow twin, processes in place of machines, and as many epochs as it takes."""
    train, machines = recipe.train, recipe.machines
    processes = min(MAX_PROCESSES, machines.nodes * machines.gpus_per_node, report.train_rows)
    micro = min(train.micro_batch_size, 32)
    epochs = max(train.epochs, -(-MIN_LOOKS // report.train_rows))
    enough = f"at least {MIN_LOOKS:,} looks at {report.train_rows} images"
    narrow = min(recipe.model.width, WIDTH)
    return [
        Change("model.width", None, narrow, by, "a narrow twin, the same layers; it runs on two cores"),
        Change("model.precision", None, "fp32", by, "runs on any processor"),
        Change("data.mean", None, None, by, "measured on these images"),
        Change("data.std", None, None, by, "measured on these images"),
        Change("machines.nodes", None, 1, by, "this machine"),
        Change(
            "machines.gpus_per_node",
            None,
            processes,
            by,
            f"{processes} process{'es' if processes > 1 else ''} on the CPU{', talking over gloo' if processes > 1 else ''}",
        ),
        Change("train.micro_batch_size", None, micro, by, "small steps"),
        Change("train.gradient_accumulation_steps", None, 1, by, "small steps"),
        Change("train.epochs", None, epochs, by, enough),
        Change("train.effective_batch_size", None, None, by, "computed from the lines above"),
        Change("train.learning_rate", None, 0.003, by, "a narrow network takes larger steps"),
        Change("train.optimizer", None, "adamw_torch", by, "runs on any processor"),
        Change("train.logging_steps", None, 5, by, "few steps"),
        Change("train.report_to", None, "tensorboard", by, "needs no account"),
        placing.without_time_limit(by),
    ]


def judge(plan: Plan, summary: dict) -> None:
    """Raises Stop where fewer than 60 % of the validation images are told right."""
    accuracy = summary["best_accuracy"]
    if accuracy < MIN_ACCURACY:
        raise Stop(
            f"The rehearsal of `{plan.name}` did not learn: it tells {accuracy:.1%} of the validation images right, and "
            f"{MIN_ACCURACY:.0%} are needed.",
            "Look at the images and their classes, and at what is done to them under `data`.",
        )
