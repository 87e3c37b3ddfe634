"""Scenario stages: trainings one after the other, each translated and rehearsed as a recipe of its
own, in its own folders; a rehearsal starts each from the twin that the previous stage trained."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data.prepared import PreparedRows
from runner.data.tokenizers import Pretrained
from runner.parts.contract import Summaries
from runner.plan import Place, Plan, Stage, rows_key
from runner.recipe.overrides import of_each, substitute
from runner.recipe.recipe import CONVERSATIONS, Override, Recipe
from runner.recipe.stages import BASE, EARLIER_ROWS, PRETRAIN, STAGES, names_base, one_file, starts
from runner.scenarios.language import translation as language
from runner.scenarios.shared import axolotl, common, rehearsal
from runner.tools.files import in_image, remote
from runner.tools.problem import Problem
from runner.trainer.settings import ProofSettings, StageOptions

# Names that no stage may have: other folders of the run.
TAKEN = (
    "data",
    "model",
    "config",
    "logs",
    "scratch",
    "evaluation",
)
# The same for a pretraining.
OF_TEXT = ("init", "text", "tokenizer", "blocks", "cleaning")
LONGEST_ROW = 512  # tokens, in a rehearsal of what follows a pretraining


def translate(recipe: Recipe, place: Place) -> Plan:
    return common.plan(recipe, place, lambda place: each(recipe, place), _facts(recipe))


def _facts(recipe: Recipe) -> dict[str, Any]:
    """Facts about the plan; after a pretraining also the number formats of all stages."""
    pretraining = recipe.pretraining
    if pretraining is None:
        return {"world_size": common.world_size(recipe)}
    facts: dict[str, Any] = _own(pretraining).facts(pretraining)
    for name, stage_recipe in recipe.stage_recipes.items():
        if stage_recipe.makes_model:
            continue
        facts["precision"][name] = stage_recipe.model.precision
        if axolotl.multiplies_in_fp8(stage_recipe):
            facts["precision"][name] = "fp8"
        if (stage_recipe.settings.get("speed") or {}).get("fp8"):
            facts["fp8_stages"].append(name)
    return facts


def _own(recipe: Recipe) -> Any:
    """The translation of a stage's technique, which another part may bring."""
    return scenarios.part(recipe.scenario, "translation")


def each(recipe: Recipe, place: Place) -> Iterator[Stage]:
    """The rows of all stages, then each training. An adapter is part of the best model of its
    stage."""
    stages = _Stages(recipe, place)
    for index, (name, stage_recipe) in enumerate(recipe.stage_recipes.items()):
        if stage_recipe.makes_model:
            stages.add_pretraining(stage_recipe)
        else:
            stages.add_training(index, name, stage_recipe)
    yield stages.data()
    yield from (*stages.init, *stages.trained)


class _Stages:
    """The stages of a plan, which grow by one training after the other."""

    def __init__(self, recipe: Recipe, place: Place) -> None:
        self.recipe = recipe
        self.place = place
        self.proves = _proves(recipe, place)
        # The stage `data` without rows, and the parts of its config that all rows depend on.
        self.without_rows = common.work(
            place, common.DATA, {"out": place.data_dir}, common.PREPARING
        )
        self.text_parts: tuple[str, ...] = ()
        self.init: list[Stage] = []
        self.trained: list[Stage] = []
        self.on_rows: list[Stage] = []  # the trainings without those of a pretraining
        self.rows: dict[str, Any] = {}  # of each of them, by its name
        self.models: dict[str, Any] = {}  # the base models that are fetched ahead, by stage
        # The tokenizer of the model so far; and its facts and tokenizer, as a proof needs them.
        self.tokenizer = Pretrained(f"{place.data_dir}/tokenizer")
        self.model_to_prove: dict[str, Any] = {}
        self.models_to_prove: dict[str, Any] = {}  # the same of each stage's model

    def add_pretraining(self, stage_recipe: Recipe) -> None:
        pretraining = _own(stage_recipe).pretraining(stage_recipe, self.place)
        self.without_rows, init, trained = pretraining
        self.text_parts = ("text", "tokenizer")
        self.init = [init]
        self.trained = [self._of_this_recipe(stage) for stage in trained]
        self.model_to_prove = {
            "model": stage_recipe.facts.record,
            "tokenizer": f"{self.place.data_dir}/tokenizer",
        }

    def add_training(self, index: int, name: str, stage_recipe: Recipe) -> None:
        """Adds a training on rows. index: of the stage."""
        begins = starts(self.recipe.document, index)
        stage_place = self._place_of(index, name, stage_recipe)
        if begins:
            self._take_base_model(name, stage_recipe, stage_place)
        stage = self._of_this_recipe(language.training(stage_recipe, stage_place))
        self.models_to_prove[name] = self.model_to_prove
        self.rows[name] = {**stage.data, "tokenizer": asdict(self.tokenizer)}
        stage = replace(stage, name=name, data=self.rows[name])
        stage = _trained(self.place, stage, self.trained, begins, self.proves)
        self.on_rows.append(stage)
        self.trained.append(stage)

    def data(self) -> Stage:
        """The stage that prepares the rows of every training."""
        data = _with_rows(
            self.without_rows, self.recipe, self.place, self.models, self.rows, self.text_parts
        )
        proven = self.on_rows if self.proves else []
        return common.proving(self.recipe, self.place, data, proven, self.models_to_prove)

    def _of_this_recipe(self, stage: Stage) -> Stage:
        return common.as_stage_of_several(stage, fingerprint=self.recipe.fingerprint)

    def _place_of(self, index: int, name: str, stage_recipe: Recipe) -> Place:
        """The place of a training, whose model is that of the one before or its own base model."""
        place = self.place
        stage_place = replace(place.below(name), data_dir=f"{place.data_dir}/{name}")
        if not starts(self.recipe.document, index):
            earlier = place.below(self.trained[-1].name)
            return replace(stage_place, model_dir=earlier.best_model_dir)
        if names_base(self.recipe.document, index):
            return _with_base_model(stage_recipe, name, stage_place, place)
        return stage_place

    def _take_base_model(self, name: str, stage_recipe: Recipe, stage_place: Place) -> None:
        """The model so far is now the base model of a stage."""
        self.models[name] = common.fetched_ahead(stage_recipe, stage_place)
        self.tokenizer = common.tokenizer(stage_recipe, stage_place)
        facts = stage_recipe.model_facts
        self.model_to_prove = {
            "model": facts and facts.record,
            "tokenizer": stage_place.model_dir or common.base_model(stage_recipe, stage_place),
        }


def _proves(recipe: Recipe, place: Place) -> bool:
    """Whether rows are proven with the data. Weeks may pass between the data and what follows a
    pretraining."""
    return bool(place.prepared or (recipe.pretraining and place.accelerator))


def _with_base_model(stage_recipe: Recipe, name: str, stage_place: Place, place: Place) -> Place:
    """The place of a stage that names its own base model, with the folder for one that is
    downloaded ahead."""
    on_hub = not stage_recipe.base_folder and not stage_recipe.model.base.startswith("/")
    if on_hub and (place.prepared or remote(stage_recipe.model.base)):
        return replace(stage_place, model_dir=f"{place.run_dir}/{name}-base")
    return replace(stage_place, model_dir=None)


def _with_rows(
    begun: Stage,
    recipe: Recipe,
    place: Place,
    models: Mapping[str, object],
    rows: Mapping[str, object],
    texts: tuple[str, ...],
) -> Stage:
    """The stage `data` with the rows of every training. begun: it as a pretraining needs it; texts:
    the parts of its config that all rows depend on."""
    drawn = _drawn(recipe, rows)
    parts = dict(begun.parts)
    for name in rows:
        sources: tuple[str, ...] = (rows_key(name),)
        if name in drawn:
            sources = (rows_key(name), rows_key(drawn[name]["of"]), "earlier_rows")
        parts[name] = (*sources, *texts)
    config = {
        **begun.config,
        "work": "stages.data",
        "on_claim": place.prepared,
        "models": models,
        "earlier_rows": drawn,
        **{rows_key(name): stage_rows for name, stage_rows in rows.items()},
    }
    return replace(begun, config=config, parts=parts)


def _drawn(recipe: Recipe, rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each stage that also trains on an earlier one's rows: that stage, the rows' share, and
    the draw's seed."""
    drawn: dict[str, dict[str, Any]] = {}
    names = list(recipe.stage_recipes)
    for index, name in enumerate(names):
        share = recipe.stages[index].get(EARLIER_ROWS)
        if share:
            earlier = []
            for before in names[:index]:
                if before in rows and rows[before]["kind"] == rows[name]["kind"]:
                    earlier.append(before)
            drawn[name] = {"of": earlier[-1], "share": share, "seed": rows[name]["seed"]}
    return drawn


def _trained(place: Place, stage: Stage, earlier: list[Stage], begins: bool, proves: bool) -> Stage:
    """A training as a stage of the plan. earlier: the trainings before; begins: whether it starts
    from its own model, not from that of the last of them; proves: whether its rows are proven with
    the data."""
    options: StageOptions = {}
    evaluation = stage.evaluation
    if earlier and "time_limit_seconds" in stage.config["recipe_runner"]:
        # All stages share a time limit, so each reads how much of it the earlier ones have used.
        options["time_limit_earlier"] = [place.below(trained.name).run_dir for trained in earlier]
    gated = next((trained.name for trained in reversed(earlier) if trained.gates), None)
    blocks = (earlier and earlier[0].evaluation and earlier[0].evaluation.text_blocks) or ""
    prepared = f"{common.proof_dir(place)}/{stage.name}" if proves else None
    questions = evaluation.sample_task if evaluation else None
    if prepared or questions:
        options["proof"] = ProofSettings(prepared=prepared, questions=questions)
    reads: dict[str, tuple[str, ...]] = {common.DATA: (f"{stage.name}/",)}
    if not begins:
        reads[earlier[-1].name] = ()
    return replace(
        common.as_stage_of_several(stage, **options),
        folder=stage.name,
        reads=reads,
        evaluation=evaluation and replace(evaluation, before=gated, text_blocks=blocks),
        model=stage.model if begins else None,
    )


def names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage has a name of its own, which is also the name of its folder; only the first one
    pretrains."""
    written = [stage["name"] for stage in recipe.stages]
    reserved_names: tuple[str, ...]
    if recipe.stages[0]["technique"] == PRETRAIN:
        reserved_names = (*TAKEN, *OF_TEXT)
    else:
        reserved_names = TAKEN
    for index, name in enumerate(written):
        if name in reserved_names:
            yield recipe.problem(
                ("stages", index, "name"),
                f"A stage cannot be called `{name}`, because that is the name of a folder of every run.",
                "Choose another name, such as `sft`.",
            )
        elif name in written[:index]:
            yield recipe.problem(
                ("stages", index, "name"),
                f"Two stages are called `{name}`, and each needs a folder of its own.",
                "Rename one of them.",
            )
        if index and recipe.stages[index]["technique"] == PRETRAIN:
            yield recipe.problem(
                ("stages", index, "technique"),
                "Pretraining makes a new model, so it can only be the first stage.",
                "Move this stage to the beginning, or delete the ones before it.",
            )


def earlier_rows(recipe: Recipe) -> Iterator[Problem]:
    has_earlier_rows = False
    for index, (stage, stage_recipe) in enumerate(
        zip(recipe.stages, recipe.stage_recipes.values(), strict=False)
    ):
        talks = not stage_recipe.makes_model and stage_recipe.rows == CONVERSATIONS
        if stage.get(EARLIER_ROWS) and not (talks and has_earlier_rows):
            yield recipe.problem(
                (STAGES, index, EARLIER_ROWS),
                "Rows can be drawn only from conversations of a stage before, and only beside conversations.",
                "Delete the line.",
                key=True,
            )
        has_earlier_rows = has_earlier_rows or talks


def models(recipe: Recipe) -> Iterator[Problem]:
    """Pods mount one image with a model, the one of all stages; and no stage can start from a model
    that gives scores."""
    for index, stage_recipe in enumerate(recipe.stage_recipes.values()):
        if names_base(recipe.document, index) and in_image(
            stage_recipe.settings.get("model", {}).get("base")
        ):
            yield recipe.problem(
                (STAGES, index, "model", "base"),
                f"Pods mount only the image that `model.base` of the whole recipe names, so this stage would not find `{stage_recipe.model.base}`.",
                "Copy the model to a claim or to S3, and name that place here.",
            )

        if (
            stage_recipe.scores
            and index + 1 < len(recipe.stages)
            and not starts(recipe.document, index + 1)
        ):
            yield recipe.problem(
                (STAGES, index + 1, "name"),
                "This stage would start from the reward model before it, which gives scores and writes nothing.",
                "Move the reward model to the end, or name another `model.base` here.",
            )


def gates(recipe: Recipe) -> Iterator[Problem]:
    """After a pretraining, each stage that another one follows has gates, because the next may hold
    GPUs for days. The pretraining's own schema requires its gates."""
    if recipe.pretraining is None:
        return
    for index, stage in enumerate(recipe.stages[:-1]):
        if index and not stage.get("gates"):
            yield recipe.problem(
                (STAGES, index, "name"),
                f"The stage `{stage['name']}` has no `gates`, so the next one would start from any result.",
                "Write what it must reach, for example `gates: [generated_tokens >= 1]`.",
            )


def job_names(recipe: Recipe) -> Iterator[Problem]:
    trained = list[str]()
    for name, stage_recipe in recipe.stage_recipes.items():
        if stage_recipe.makes_model:
            lengths = _own(stage_recipe).curriculum(stage_recipe)
            trained += [length.name for length in lengths]
        else:
            trained.append(name)
    yield from common.long_job_name(recipe, trained)


RULES = (names, earlier_rows, models, gates, job_names)


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    if data:
        raise one_file()

    def changes_of(name: str, stage_recipe: Recipe) -> list[Override]:
        changes = scenarios.rehearsal(stage_recipe.scenario).before_data(stage_recipe, None)
        if stage_recipe.pretrained:
            length = min(LONGEST_ROW, stage_recipe.model.sequence_len)
            changes.append(substitute("model.sequence_len", length, "short rows make quick steps"))
        return changes

    return of_each(recipe, changes_of)


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    twins = _twins(recipe, folder)

    def changes_of(name: str, stage_recipe: Recipe) -> list[Override]:
        if stage_recipe.makes_model:
            return []
        stage_rows = PreparedRows.read(folder / "data" / name)
        assert stage_rows, name
        changes = rehearsal.after_data(stage_recipe, stage_rows, folder, twins.get(name))
        if name in twins:
            return changes
        # It starts from the twin of an earlier stage.
        return [
            change for change in changes if change.path[0] != "model" or change.path[1] not in BASE
        ]

    return of_each(recipe, changes_of)


def _twins(recipe: Recipe, folder: Path) -> dict[str, Path]:
    """The folder of the twin of each base model, by the stage that starts from it."""
    twins = {}
    for index, (name, stage_recipe) in enumerate(recipe.stage_recipes.items()):
        if not stage_recipe.makes_model and starts(recipe.document, index):
            twins[name] = folder / (f"{rehearsal.TWIN}-{name}" if index else rehearsal.TWIN)
    return twins


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    """Each twin has the layers of the stage that trains most of them, and the tokens of its first
    stage."""
    twins = _twins(recipe, folder)
    trained: dict[str, list[Recipe]] = {}
    twin = ""
    for name, stage_recipe in recipe.stage_recipes.items():
        if name in twins:
            twin = name
        trained.setdefault(twin, []).append(stage_recipe)
    configs = {
        name: rehearsal.twin_of(max(trained[name], key=rehearsal.layers), twins[name])
        for name in twins
    }
    return {"twins": configs, "sample_rows": rehearsal.MAX_ROWS}


def shown(original: Recipe, changes: list[Override], rows: PreparedRows) -> Iterable[str]:
    return rehearsal.shown(next(iter(original.stage_recipes.values())), changes, rows)


def judge(plan: Plan, summaries: Summaries) -> None:
    """Judges each stage as if it were alone; a context length need not learn as much as a whole
    training."""
    tokens = plan.facts.get("tokens", {})
    pretrained = [summary for summary in summaries if summary.stage in tokens]
    if pretrained:
        scenarios.rehearsal(PRETRAIN).judge(plan, pretrained)
    rehearsal.judge(plan, [summary for summary in summaries if summary not in pretrained])
