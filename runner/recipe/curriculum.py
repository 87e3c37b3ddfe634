"""What a pipeline reads at once, and under which schedule: context lengths of pretraining, rows of the stages after it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from runner.problem import Problem
from runner.recipe.recipe import Recipe

# The stages after pretraining, each a section of its own.
AFTER = ("sft", "dpo", "lora")


def stage_of(sequence_len: int) -> str:
    """The name of the stage that trains on blocks of this length."""
    return f"pretrain-{sequence_len}"


def order(recipe: Recipe) -> Iterator[Problem]:
    """Lengths rise, shares rise, the last one is the whole, and every length gets a step."""
    pretrain, parts = recipe.pretrain, recipe.pretrain.curriculum
    for index, (before, part) in enumerate(pairwise(parts), 1):
        for setting in ("sequence_len", "until"):
            if part[setting] <= before[setting]:
                yield recipe.document.problem(
                    ("pretrain", "curriculum", index, setting),
                    f"`{setting}` is {part[setting]:g} here and {before[setting]:g} in the line before; both must rise.",
                    "Put the lines in rising order.",
                )
    if parts[-1].until != 1:
        yield recipe.document.problem(
            ("pretrain", "curriculum", len(parts) - 1, "until"),
            f"The last context length ends at {parts[-1].until:g} of the steps, so the rest would not be trained.",
            "Let the last one end at 1.0.",
        )
    ends = [round(part.until * pretrain.steps) for part in parts]
    if any(end <= start for start, end in pairwise([0, *ends])):
        yield recipe.document.problem(
            ("pretrain", "steps"),
            f"{pretrain.steps:,} steps are too few for {len(parts)} context lengths.",
            "Raise `steps`.",
        )


def schedule(recipe: Recipe) -> Iterator[Problem]:
    """The learning rate rises, and falls to a lower end."""
    pretrain = recipe.pretrain
    if pretrain.min_learning_rate > pretrain.learning_rate:
        yield recipe.document.problem(
            ("pretrain", "min_learning_rate"),
            f"`min_learning_rate` {pretrain.min_learning_rate:g} is above `learning_rate` {pretrain.learning_rate:g}.",
            "Lower it.",
        )
    if pretrain.warmup_steps >= pretrain.steps:
        yield recipe.document.problem(
            ("pretrain", "warmup_steps"),
            f"The warmup of {pretrain.warmup_steps:,} steps leaves nothing of {pretrain.steps:,} steps.",
            "Lower it.",
        )


def context(recipe: Recipe) -> Iterator[Problem]:
    """No stage reads more at once than the model can."""
    most = recipe.model.context
    for index, part in enumerate(recipe.pretrain.curriculum):
        if part.sequence_len > most:
            yield recipe.document.problem(
                ("pretrain", "curriculum", index, "sequence_len"),
                f"Blocks of {part.sequence_len:,} tokens are longer than the model's context of {most:,}.",
                "Raise `model.context`, or shorten the blocks.",
            )
    for stage in AFTER:
        section = recipe.settings.get(stage)
        if section and section.sequence_len > most:
            yield recipe.document.problem(
                (stage, "sequence_len"),
                f"The model reads at most {most:,} tokens, and `sequence_len` is {section.sequence_len:,}.",
                f"Write at most {most}.",
            )


RULES = (order, schedule, context)
