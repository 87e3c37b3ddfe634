"""Scenario stages: trainings one after the other, each translated as a recipe of its own in folders of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from runner import scenarios
from runner.data.tokenizers import Pretrained
from runner.plan import Place, Plan, Stage
from runner.recipe.recipe import CONVERSATIONS, Recipe
from runner.recipe.stages import EARLIER_ROWS, PRETRAIN, STAGES, names_base, starts
from runner.scenarios.language import translation as language
from runner.scenarios.shared import common
from runner.tools.problem import Problem, worded

# What the config of the data stage has beside the rows of each stage, and the names of the other stages' folders.
TAKEN = ("data", "model", "models", "work", "out", "twins", "proofs", "config", "logs", "scratch", "evaluation")
# The same of a pretraining.
OF_TEXT = ("init", "text", "tokenizer", "blocks", "lengths", "cleaning")


def translate(recipe: Recipe, place: Place) -> Plan:
    first = next(iter(recipe.stage_recipes.values()))
    facts = _own(first).facts(first) if PRETRAIN in first.settings else {"world_size": common.world_size(recipe)}
    return common.plan(recipe, place, lambda place: each(recipe, place, recipe), facts)


def _own(recipe: Recipe) -> Any:
    """The translation of a stage's technique, which another part may bring."""
    return scenarios.part(recipe.scenario, "translation")


def each(recipe: Recipe, place: Place, file: Recipe) -> Iterator[Stage]:
    """The rows of all stages, then each training. An adapter is part of the best model of its stage. file: the recipe as
    it is written."""
    init, trained, after = list[Stage](), list[Stage](), list[Stage]()
    rows, models, texts = dict[str, Any](), dict[str, Any](), tuple[str, ...]()
    begun = common.work(place, common.DATA, {"out": place.data_dir}, common.PREPARING)
    # Of the model that a stage starts from, or that the stages before have trained: its tokenizer, facts and folder.
    tokenizer, proven = Pretrained(f"{place.data_dir}/tokenizer"), dict[str, Any]()
    # Weeks may pass between the data and what follows a pretraining.
    fresh = any(PRETRAIN in one.settings for one in recipe.stage_recipes.values())
    proves = place.prepared or (fresh and place.accelerator)
    for index, (name, one) in enumerate(recipe.stage_recipes.items()):
        if PRETRAIN in one.settings:
            begun, first, trained = _own(one).pretraining(one, place)
            trained = [_with(stage, fingerprint=file.fingerprint) for stage in trained]
            init, texts = [first], ("text", "tokenizer")
            known: dict[str, Any] = {"model": asdict(one.facts), "tokenizer": tokenizer.base}
            continue
        here = replace(place.below(name), data_dir=f"{place.data_dir}/{name}")
        begins = starts(recipe.document, index)
        if not begins:
            here = replace(here, model_dir=place.below(trained[-1].name).best_model_dir)
        elif names_base(recipe.document, index):
            fetched = place.prepared and not one.base_folder and not one.model.base.startswith("/")
            here = replace(here, model_dir=f"{place.run_dir}/{name}-base" if fetched else None)
        if begins:
            models[name], tokenizer = common.fetched_ahead(one, here), common.tokenizer(one, here)
            facts = one.model_facts
            known = {"model": facts and asdict(facts), "tokenizer": here.model_dir or common.base_model(one, here)}
        stage = _with(language.training(one, here), fingerprint=file.fingerprint)
        proven[name], rows[name] = known, {**stage.data, "tokenizer": asdict(tokenizer)}
        after.append(_trained(place, replace(stage, name=name, data=rows[name]), trained, begins, proves))
        trained.append(after[-1])
    drawn = _drawn(recipe, rows)
    sources = {name: (name, *((drawn[name]["of"], "earlier_rows") if name in drawn else ())) for name in rows}
    config = {"work": "stages.data", "on_claim": place.prepared, "models": models, "earlier_rows": drawn, **rows}
    begun = replace(
        begun,
        config={**begun.config, **config},
        parts={**begun.parts, **{name: (*sources[name], *texts) for name in rows}},
    )
    yield common.proving(file, place, begun, after if proves else [], proven)
    yield from (*init, *trained)


def _drawn(recipe: Recipe, rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each stage that also trains on rows of an earlier one: that stage, their share, and the seed of the draw."""
    found, names = {}, list(recipe.stage_recipes)
    for index, name in enumerate(names):
        if share := recipe.stages[index].get(EARLIER_ROWS):
            earlier = [one for one in names[:index] if one in rows and rows[one]["kind"] == rows[name]["kind"]]
            found[name] = {"of": earlier[-1], "share": share, "seed": rows[name]["seed"]}
    return found


def _with(stage: Stage, **settings: Any) -> Stage:
    """The stage with other settings of the runner's own."""
    return replace(stage, config={**stage.config, "recipe_runner": {**stage.config["recipe_runner"], **settings}})


def _trained(place: Place, stage: Stage, earlier: list[Stage], begins: bool, proves: bool) -> Stage:
    """A training as a stage of the plan. earlier: the trainings before; begins: whether it starts from a model of its own,
    and not from that of the last of them; proves: whether its rows are proven with the data."""
    own, evaluation, proof = dict[str, Any](), stage.evaluation, dict[str, str]()
    if proves:
        proof["prepared"] = f"{common.proof_dir(place)}/{stage.name}"
    if evaluation and evaluation.sample_task:
        proof["questions"] = evaluation.sample_task
    if earlier and "time_limit_seconds" in stage.config["recipe_runner"]:
        # All stages share a time limit, so each reads how much of it the earlier ones have used.
        own["time_limit_earlier"] = [place.below(other.name).run_dir for other in earlier]
    gated = next((other.name for other in reversed(earlier) if other.gates), None)
    blocks = (earlier and earlier[0].evaluation and earlier[0].evaluation.text_blocks) or ""
    return replace(
        _with(stage, **own, **({"proof": proof} if proof else {})),
        folder=stage.name,
        reads={common.DATA: (f"{stage.name}/",), **({} if begins else {earlier[-1].name: ()})},
        evaluation=evaluation and replace(evaluation, before=gated, text_blocks=blocks),
        model=stage.model if begins else None,
    )


def names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage has a name of its own, which is also the name of its folder."""
    written = [stage["name"] for stage in recipe.stages]
    taken = (*TAKEN, *OF_TEXT) if recipe.stages[0]["technique"] == PRETRAIN else TAKEN
    for index, name in enumerate(written):
        if name in taken:
            yield recipe.problem(("stages", index, "name"), *worded("stages.name-taken", name=name))
        elif name in written[:index]:
            yield recipe.problem(("stages", index, "name"), *worded("stages.name-twice", name=name))


def pretraining_first(recipe: Recipe) -> Iterator[Problem]:
    for index, stage in enumerate(recipe.stages):
        if index and stage["technique"] == PRETRAIN:
            yield recipe.problem(("stages", index, "technique"), *worded("stages.pretraining-first"))


def earlier_rows(recipe: Recipe) -> Iterator[Problem]:
    there = False
    for index, (stage, one) in enumerate(zip(recipe.stages, recipe.stage_recipes.values(), strict=False)):
        talks = PRETRAIN not in one.settings and one.rows == CONVERSATIONS
        if stage.get(EARLIER_ROWS) and not (talks and there):
            yield recipe.problem((STAGES, index, EARLIER_ROWS), *worded("stages.no-earlier-rows"), key=True)
        there = there or talks


RULES = (names, pretraining_first, earlier_rows)
