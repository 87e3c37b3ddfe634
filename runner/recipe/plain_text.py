"""Rules about training on plain text: validation data, checkpoints, and the loss."""

from __future__ import annotations

from collections.abc import Iterator

from runner import catalog
from runner.names import listed
from runner.problem import Problem
from runner.recipe.recipe import Recipe

# Lines of `data` that give validation data, and the line that each of the first two belongs to.
VALIDATION = {"validation_split": "hub", "validation_path": "path"}


def one_validation(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    given = [setting for setting in (*VALIDATION, "validation_share") if data.get(setting)]
    if "text" not in data:
        return
    if len(given) > 1:
        yield recipe.document.problem(
            ("data", given[1]),
            f"`data` has {listed(given)}, and validation data comes from one place.",
            "Keep one of these lines.",
        )
    for setting, source in VALIDATION.items():
        if data.get(setting) and not data.get(source):
            yield recipe.document.problem(
                ("data", setting),
                f"`{setting}` goes with `{source}`, and `data` has no `{source}`.",
                "Use `validation_share` to take a share of the documents instead.",
            )


def checkpoints_are_evaluated(recipe: Recipe) -> Iterator[Problem]:
    """The best checkpoint can only be found among those that were evaluated."""
    train = recipe.train
    if "save_steps" not in train or "eval_steps" not in train or train.save_steps % train.eval_steps == 0:
        return
    if any(recipe.data.get(setting) for setting in (*VALIDATION, "validation_share")):
        yield recipe.document.problem(
            ("train", "save_steps"),
            f"A checkpoint every {train.save_steps} steps and an evaluation every {train.eval_steps}: some checkpoints would never be evaluated.",
            f"Let `save_steps` be a multiple of `eval_steps`, for example {train.eval_steps}.",
        )


def loss_fits_model(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts if "model" in recipe.settings else None
    if facts and recipe.train.get("cross_entropy") == "fused" and facts.model_type not in catalog.fused_loss_models():
        yield recipe.document.problem(
            ("train", "cross_entropy"),
            f"Axolotl has no fused cross-entropy for models of the type `{facts.model_type}`.",
            "Write `cross_entropy: auto`, which is chunked for this model.",
        )
