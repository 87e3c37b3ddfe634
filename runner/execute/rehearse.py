"""Rehearsal: the whole way of a recipe on any machine, with a tiny twin in place of the base model.

A rehearsal is the recipe with substitutions, each a Change like `--set`, and then the same check, the same
translation, the same engine and the same results as the full run.
"""

from __future__ import annotations

from pathlib import Path

from runner import catalog
from runner.execute import rehearse_images, runs, substitutions, twin
from runner.execute.data import prepare, tokenizers
from runner.execute.runs import RunFolder
from runner.execute.training import Tell, Watch, place_for, train
from runner.plan import Place, Plan
from runner.problem import Stop
from runner.recipe.changes import Change
from runner.recipe.check import changed
from runner.recipe.recipe import Recipe
from runner.scenarios import conversations, translate

MAX_ROWS = 240
MIN_GAIN = 0.10


def rehearse(recipe: Recipe, run: RunFolder, data: str | None, data_dir: str | None, tell: Tell, watch: Watch) -> dict:
    """Rehearses a recipe in a run folder; returns the run's summary.

    data: a file with rows to use instead of the recipe's sample. data_dir: where prepared data goes, by default into
    the run folder.

    Raises Stop where anything fails, and where training makes the validation loss less than 10 % better, or, with
    images, tells fewer than 60 % of the validation images right.
    """
    place = place_for(run, accelerator=False, data_dir=data_dir)
    if translate(recipe, place).stages[0].engine == "images":
        return _rehearse_images(recipe, run, place, data, tell, watch)
    recipe, made = changed(
        recipe, substitutions.data(recipe, data) + substitutions.own(recipe) + substitutions.split(recipe)
    )
    tell("Preparing the data")
    twin_dir, facts = run.path / "base_model", recipe.model_facts
    marks = conversations.marks(recipe) or catalog.chat_template("chatml")
    fixed_head = "adapter" in recipe.train
    vocabulary = twin.FIXED_HEAD_VOCABULARY if fixed_head else twin.VOCABULARY
    report = prepare(
        translate(recipe, place).stages[0].data,
        Path(place.data_dir),
        tokenizer_for=lambda texts: tokenizers.train(texts, twin_dir, facts, marks, vocabulary),
        sample_rows=MAX_ROWS,
    )
    for line in report.lines():
        tell(f"  {line}")
    original = recipe
    recipe, more = changed(
        recipe, substitutions.model(recipe) + substitutions.training(recipe, report) + substitutions.adapter(recipe)
    )
    made = [*made, *more]
    tell("What stands in for the real thing")
    for line in substitutions.shown(original, made, report):
        tell(f"  {line}")
    run.mark("running", substitutions=[change.as_json() for change in made])
    tell("Building the tiny twin")
    twin.build(
        original.model_facts,
        layers=substitutions.layers(original),
        seed=original.train.seed,
        folder=twin_dir,
        fixed_head=fixed_head,
    )
    recipe, _ = changed(recipe, [Change("model.base", None, str(twin_dir), substitutions.BY)])
    plan = translate(recipe, place)
    summary = train(plan, run, tell, watch)
    _judge_gain(plan, summary)
    return summary


def data_files(recipe: Recipe, data: str | None) -> dict[str, Path]:
    """What a rehearsal learns from, as `substitutions.data` chooses it, by what names it."""
    if data:
        return {"--data": Path(data)} if Path(data).exists() else {}
    if sample := recipe.data.get("sample"):
        return {"data.sample": recipe.folder / sample}
    return runs.data_files(recipe)


def _rehearse_images(recipe: Recipe, run: RunFolder, place: Place, data: str | None, tell: Tell, watch: Watch) -> dict:
    recipe, made = changed(recipe, substitutions.data(recipe, data))
    tell("Preparing the images")
    report = prepare(
        translate(recipe, place).stages[0].data, Path(place.data_dir), sample_rows=rehearse_images.MAX_IMAGES
    )
    for line in report.lines():
        tell(f"  {line}")
    recipe, more = changed(recipe, rehearse_images.changes(recipe, report, substitutions.BY))
    made = [*made, *more]
    tell("What stands in for the real thing")
    for change in made:
        tell(f"  {change}")
    run.mark("running", substitutions=[change.as_json() for change in made])
    plan = translate(recipe, place)
    summary = train(plan, run, tell, watch)
    rehearse_images.judge(plan, summary)
    return summary


def _judge_gain(plan: Plan, summary: dict) -> None:
    first, best = summary["first_validation_loss"], summary["best_validation_loss"]
    steps = summary["steps"]
    if steps < substitutions.MIN_STEPS:
        raise Stop(
            f"The rehearsal made {steps} steps, and {substitutions.MIN_STEPS} are needed to judge it.",
            "Give it more rows with `--data`.",
        )
    gain = 1 - best / first if first else 0.0
    if gain < MIN_GAIN:
        raise Stop(
            f"The rehearsal of `{plan.name}` did not learn: the validation loss went from {first:.3f} to {best:.3f}, "
            f"{gain:.1%} better, and {MIN_GAIN:.0%} are needed.",
            "Look at the prepared rows, and at what is trained.",
        )
