"""Scenario stages: trainings one after the other, each translated and rehearsed as a recipe of its
own, in its own folders; a rehearsal starts each from the twin that the previous stage trained."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data.prepared import PreparedRows
from runner.data.tokenizers import Pretrained
from runner.plan import Place, Plan, Stage
from runner.recipe.overrides import of_each
from runner.recipe.recipe import CONVERSATIONS, Override, Recipe
from runner.recipe.stages import BASE, EARLIER_ROWS, PRETRAIN, STAGES, names_base, one_file, starts
from runner.scenarios.contract import Summaries
from runner.scenarios.language import translation as language
from runner.scenarios.shared import common, rehearsal
from runner.tools.files import in_image, remote
from runner.tools.problem import Problem, worded

# Names that no stage may have: other keys in the config of the data stage, and other folders of the
# run.
TAKEN = (
    "data",
    "model",
    "models",
    "work",
    "out",
    "twins",
    "proofs",
    "config",
    "logs",
    "scratch",
    "evaluation",
)
# The same for a pretraining.
OF_TEXT = ("init", "text", "tokenizer", "blocks", "lengths", "cleaning")


def translate(recipe: Recipe, place: Place) -> Plan:
    first = next(iter(recipe.stage_recipes.values()))
    if PRETRAIN in first.settings:
        facts = _own(first).facts(first)
    else:
        facts = {"world_size": common.world_size(recipe)}
    return common.plan(recipe, place, lambda place: each(recipe, place, recipe), facts)


def _own(recipe: Recipe) -> Any:
    """The translation of a stage's technique, which another part may bring."""
    return scenarios.part(recipe.scenario, "translation")


def each(recipe: Recipe, place: Place, file: Recipe) -> Iterator[Stage]:
    """The rows of all stages, then each training. An adapter is part of the best model of its
    stage. file: the recipe as it is written."""
    init = list[Stage]()
    trained = list[Stage]()
    after = list[Stage]()
    rows = dict[str, Any]()
    models = dict[str, Any]()
    texts = tuple[str, ...]()
    begun = common.work(place, common.DATA, {"out": place.data_dir}, common.PREPARING)
    # The tokenizer of the model so far; and, by stage, the model's facts and tokenizer for its
    # proof.
    tokenizer = Pretrained(f"{place.data_dir}/tokenizer")
    proven = dict[str, Any]()
    # Weeks may pass between the data and what follows a pretraining.
    fresh = any(PRETRAIN in one.settings for one in recipe.stage_recipes.values())
    proves = place.prepared or (fresh and place.accelerator)
    for index, (name, one) in enumerate(recipe.stage_recipes.items()):
        if PRETRAIN in one.settings:
            begun, first, trained = _own(one).pretraining(one, place)
            trained = [_with(stage, fingerprint=file.fingerprint) for stage in trained]
            init = [first]
            texts = ("text", "tokenizer")
            known: dict[str, Any] = {"model": asdict(one.facts), "tokenizer": tokenizer.base}
            continue
        here = replace(place.below(name), data_dir=f"{place.data_dir}/{name}")
        begins = starts(recipe.document, index)
        if not begins:
            here = replace(here, model_dir=place.below(trained[-1].name).best_model_dir)
        elif names_base(recipe.document, index):
            named = not one.base_folder and not one.model.base.startswith("/")
            fetched = named and (place.prepared or remote(one.model.base))
            here = replace(here, model_dir=f"{place.run_dir}/{name}-base" if fetched else None)
        if begins:
            models[name], tokenizer = common.fetched_ahead(one, here), common.tokenizer(one, here)
            facts = one.model_facts
            known = {
                "model": facts and asdict(facts),
                "tokenizer": here.model_dir or common.base_model(one, here),
            }
        stage = _with(language.training(one, here), fingerprint=file.fingerprint)
        proven[name], rows[name] = known, {**stage.data, "tokenizer": asdict(tokenizer)}
        after.append(
            _trained(place, replace(stage, name=name, data=rows[name]), trained, begins, proves)
        )
        trained.append(after[-1])
    drawn = _drawn(recipe, rows)
    sources = {
        name: (name, *((drawn[name]["of"], "earlier_rows") if name in drawn else ()))
        for name in rows
    }
    config = {
        "work": "stages.data",
        "on_claim": place.prepared,
        "models": models,
        "earlier_rows": drawn,
        **rows,
    }
    begun = replace(
        begun,
        config={**begun.config, **config},
        parts={**begun.parts, **{name: (*sources[name], *texts) for name in rows}},
    )
    yield common.proving(file, place, begun, after if proves else [], proven)
    yield from (*init, *trained)


def _drawn(recipe: Recipe, rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each stage that also trains on an earlier one's rows: that stage, the rows' share, and
    the draw's seed."""
    found = {}
    names = list(recipe.stage_recipes)
    for index, name in enumerate(names):
        share = recipe.stages[index].get(EARLIER_ROWS)
        if share:
            earlier = [
                one
                for one in names[:index]
                if one in rows and rows[one]["kind"] == rows[name]["kind"]
            ]
            found[name] = {"of": earlier[-1], "share": share, "seed": rows[name]["seed"]}
    return found


def _with(stage: Stage, **settings: Any) -> Stage:
    """The stage with other settings of the runner's own."""
    return replace(
        stage,
        config={**stage.config, "recipe_runner": {**stage.config["recipe_runner"], **settings}},
    )


def _trained(place: Place, stage: Stage, earlier: list[Stage], begins: bool, proves: bool) -> Stage:
    """A training as a stage of the plan. earlier: the trainings before; begins: whether it starts
    from its own model, not from that of the last of them; proves: whether its rows are proven with
    the data."""
    own = dict[str, Any]()
    evaluation = stage.evaluation
    proof = dict[str, str]()
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
    """Each stage has a name of its own, which is also the name of its folder; only the first one
    pretrains."""
    written = [stage["name"] for stage in recipe.stages]
    taken: tuple[str, ...]
    if recipe.stages[0]["technique"] == PRETRAIN:
        taken = (*TAKEN, *OF_TEXT)
    else:
        taken = TAKEN
    for index, name in enumerate(written):
        if name in taken:
            yield recipe.problem(("stages", index, "name"), *worded("stages.name-taken", name=name))
        elif name in written[:index]:
            yield recipe.problem(("stages", index, "name"), *worded("stages.name-twice", name=name))
        if index and recipe.stages[index]["technique"] == PRETRAIN:
            yield recipe.problem(
                ("stages", index, "technique"), *worded("stages.pretraining-first")
            )


def earlier_rows(recipe: Recipe) -> Iterator[Problem]:
    there = False
    for index, (stage, one) in enumerate(
        zip(recipe.stages, recipe.stage_recipes.values(), strict=False)
    ):
        talks = PRETRAIN not in one.settings and one.rows == CONVERSATIONS
        if stage.get(EARLIER_ROWS) and not (talks and there):
            yield recipe.problem(
                (STAGES, index, EARLIER_ROWS), *worded("stages.no-earlier-rows"), key=True
            )
        there = there or talks


def models(recipe: Recipe) -> Iterator[Problem]:
    """Pods mount one image with a model, the one of all stages; and no stage can start from a model
    that gives scores."""
    for index, one in enumerate(recipe.stage_recipes.values()):
        if names_base(recipe.document, index) and in_image(
            one.settings.get("model", {}).get("base")
        ):
            yield recipe.problem(
                (STAGES, index, "model", "base"),
                *worded("stages.image-of-one", base=one.model.base),
            )

        if one.scores and index + 1 < len(recipe.stages) and not starts(recipe.document, index + 1):
            yield recipe.problem((STAGES, index + 1, "name"), *worded("stages.starts-from-scores"))


RULES = (names, earlier_rows, models)


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    if data:
        raise one_file()
    return of_each(
        recipe, lambda name, one: scenarios.rehearsal(one.scenario).before_data(one, None)
    )


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    twins = _twins(recipe, folder)

    def of(name: str, one: Recipe) -> list[Override]:
        if PRETRAIN in one.settings:
            return []
        own = PreparedRows.read(folder / "data" / name)
        assert own, name
        changes = rehearsal.after_data(one, own, folder, twins.get(name))
        return [
            made
            for made in changes
            if name in twins or made.path[0] != "model" or made.path[1] not in BASE
        ]

    return of_each(recipe, of)


def _twins(recipe: Recipe, folder: Path) -> dict[str, Path]:
    """The folder of the twin of each base model, by the stage that starts from it."""
    return {
        name: folder / (f"{rehearsal.TWIN}-{name}" if index else rehearsal.TWIN)
        for index, (name, one) in enumerate(recipe.stage_recipes.items())
        if PRETRAIN not in one.settings and starts(recipe.document, index)
    }


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    """Each twin has the layers of the stage that trains most of them, and the tokens of its first
    stage."""
    twins = _twins(recipe, folder)
    trained = dict[str, list[Recipe]]()
    for name, one in recipe.stage_recipes.items():
        trained.setdefault(name if name in twins else next(reversed(trained), ""), []).append(one)
    made = {
        name: rehearsal.twin_of(max(trained[name], key=rehearsal.layers), twins[name])
        for name in twins
    }
    return {"twins": made, "sample_rows": rehearsal.MAX_ROWS}


def shown(original: Recipe, made: list[Override], rows: PreparedRows) -> Iterable[str]:
    return rehearsal.shown(next(iter(original.stage_recipes.values())), made, rows)


def judge(plan: Plan, summaries: Summaries) -> None:
    """Judges each stage as if it were alone; a context length need not learn as much as a whole
    training."""
    tokens = plan.facts.get("tokens", {})
    pretrained = [summary for summary in summaries if summary.stage in tokens]
    if pretrained:
        scenarios.rehearsal("pipeline").judge(plan, pretrained)
    rehearsal.judge(plan, [summary for summary in summaries if summary not in pretrained])
