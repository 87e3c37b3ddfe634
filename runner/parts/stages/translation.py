"""Scenario stages: trainings one after the other, each translated as a recipe of its own in folders of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.plan import Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.language import translation as language
from runner.scenarios.shared import common
from runner.tools.problem import Problem

# What the config of the data stage has beside the rows of each stage, and the names of the other stages' folders.
TAKEN = ("data", "model", "work", "out", "twin", "proofs", "config", "logs", "scratch", "evaluation")


def translate(recipe: Recipe, place: Place) -> Plan:
    facts = {"world_size": common.world_size(recipe)}
    return common.plan(recipe, place, lambda place: _stages(recipe, place), facts)


def _stages(recipe: Recipe, place: Place) -> Iterator[Stage]:
    """The rows of all stages, then each training. An adapter is part of the best model of its stage."""
    trained: list[Stage] = []
    base = place.model_dir
    for name, one in recipe.stage_recipes.items():
        here = replace(place.below(name), data_dir=f"{place.data_dir}/{name}", model_dir=base)
        trained.append(_trained(place, name, language.training(one, here), trained))
        base = here.best_model_dir
    yield _rows(recipe, place, trained)
    yield from trained


def _trained(place: Place, name: str, stage: Stage, earlier: list[Stage]) -> Stage:
    """A training as a stage of the plan, which starts from the model of the last of the earlier ones."""
    own = dict(stage.config["recipe_runner"])
    if place.prepared:
        own["proof"] = {"prepared": f"{common.proof_dir(place)}/{name}"}
    if earlier and "time_limit_seconds" in own:
        # All stages share a time limit, so each reads how much of it the earlier ones have used.
        own["time_limit_earlier"] = [place.below(other.name).run_dir for other in earlier]
    gated = next((other.name for other in reversed(earlier) if other.gates), None)
    return replace(
        stage,
        name=name,
        folder=name,
        config={**stage.config, "recipe_runner": own},
        reads={common.DATA: (f"{name}/",), **{other.name: () for other in earlier[-1:]}},
        evaluation=stage.evaluation and replace(stage.evaluation, before=gated),
        model=None if earlier else stage.model,
    )


def _rows(recipe: Recipe, place: Place, trained: list[Stage]) -> Stage:
    """The stage that prepares the rows of each training, and on a claim downloads the base model and proves the rows."""
    ahead, rows = place.prepared, {stage.name: dict(stage.data) for stage in trained}
    config = {
        "work": "stages.data",
        "out": place.data_dir,
        "on_claim": ahead,
        "model": common.fetched_ahead(recipe, place),
        **rows,
    }
    parts = {name: (name,) for name in rows}
    prepares = common.work(place, common.DATA, config, common.PREPARING, parts=parts)
    tokenizer = place.model_dir or common.base_model(recipe, place)
    return common.proving(recipe, place, prepares, trained if ahead else [], recipe.model_facts, tokenizer)


def names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage has a name of its own, which is also the name of its folder."""
    written = [stage["name"] for stage in recipe.stages]
    for index, name in enumerate(written):
        if name in TAKEN:
            message = f"A stage cannot be called `{name}`, because that is the name of a folder of every run."
            yield recipe.problem(("stages", index, "name"), message, "Choose another name, such as `sft`.")
        elif name in written[:index]:
            message = f"Two stages are called `{name}`, and each needs a folder of its own."
            yield recipe.problem(("stages", index, "name"), message, "Rename one of them.")


RULES = (names,)
