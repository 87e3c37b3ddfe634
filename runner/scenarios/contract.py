"""What the modules of a scenario and of a part hold. Each is a plain module that satisfies one of these protocols.

A folder of `runner/scenarios` that has `schema.yaml` and `translation.py` is a scenario; its name, with `-` for each `_`, is what
recipes say. A part brings one by a line of its table (`runner/parts/__init__.py`). A scenario's package has

    schema.yaml      what a recipe may say; `make schemas` builds `schemas/<scenario>.schema.json` from it
    translation.py   Translation: what the technique makes of a recipe, and what can be measured of its stages

and, where it needs some,

    rules.py         Rules: what the schema cannot say; or they are in translation.py
    rehearsal.py     Substitutions: what replaces the real thing; or it is in translation.py. Members that it lacks are those of
                     language models on rows
    work.py          functions for its stages that train nothing, where its rows are of several kinds; each takes a frozen
                     dataclass, whose JSON form is the stage's config, and a function to tell what it does; FIRST has, by the name
                     of such a function, what shows the rows that it prepares
    architecture.py  Architecture: where the recipe describes its model and names none

Of a part's tables, a module of `preparers` is a Preparer; one of `engines` is run as `python -m MODULE CONFIG`, by
torchrun if there are several processes; one of `formulas` has `of_stage(recipe, stage, rows, look)`, which gives the
planner's Formulas for a stage of that engine, or None; one of `measures` has `measure(task, measures)`; one of `asked`
has `load(weights)`, which gives a function from a file to the share of each answer; one of `targets` is a Target, that
of `forecast` a Forecasting, that of `rules` Rules for every recipe. `hooks` names functions by their moment:

    other_file(document)                   every Problem with a file of another tool; None if it is not that tool's
    as_recipe(document)                    the recipe that such a file would become, and notes; None if it is not that tool's
    followers()                            derived settings: of each its causes, and a function that gives settings with their
                                           values from the recipe before and after a change
    examiner(report)                       an Examiner of rows that are prepared (`runner.data.report`)
    before_stage(folder, tell, where)      raises Stop if a stage must not start; where: the option that names the cluster
    before_training(cfg, trainer, settings)  in the training process, before the first step: what is wrong, or an empty text
    blocks(settings, batch, resumed_at)    packed blocks to train on and to measure by, and the number of steps to count to
    callbacks(settings, history)           what else hears of a training while it runs, as callbacks of transformers' Trainer
    after_stage(folder, tell)              a stage that others build on has ended; raises Stop if nothing may follow
    after_run(recipe, run)                 lines for the end of a run
    on_record(plan)                        lines about what is on record: what people have decided, answers and their rewards
    after_plan(plan, run)                  the same, on plain machines, where there is no recipe
    measured(recipe, evaluation, section)  gates and Evaluation of a stage (see `common.measured`)
    in_rehearsal(recipe)                   Overrides of a rehearsal for sections of the part
    check_formats()                        other forms of what `recipe check` finds, by name (`check/batch.py`, Format)
    beside_jobs(recipe, plan)              files beside the jobs of a render
    computed(recipe)                       what the recipe's lines make together there: the setting's path and a Computed
    provenance(recipe)                     where a recipe comes from, as fields of the run's RunManifest
    at_the_end(run, tell)                  a context around a whole run
    prove(proofs, tell)                    judges prepared rows before a GPU is held
    rewarded(recipe)                       the rewards of a model's own answers, in the engine's settings
    tried(trainer, settings)               what rewards give to known answers, in words; and faults, by kind, with an example
    show_rows(recipe, place, count, say)   proves each stage's rows as the engine makes them; gives each proof's folder
    shown(folder, whole)                   what is on record of them, as lines of styled text
    models_at(url, recipe, stage)          the recipe's models behind a server
    model_on_claim(recipe, folder, tell)   a context with the small files of a model on a claim, in a folder of this machine
    why_on_cluster(path, sets, stage)      lines about the job of a recipe on the cluster
    promote_on_cluster(path, sets, stage, by, reason, tell)
                                           overrules a gate of a run on the cluster
    after_fetch(run, tell)                 the results of a run have come from the cluster
    gate_in_pod(folder, tell), promote_in_pod(folder, by, reason, tell)
                                           what `runner.entrypoints.stage` does beside running a stage
    seal_key(make, namespace)              the key that a namespace's pods seal with; make: write this person's where there is none
    page_of_runs(*runs)                    a run, or several beside each other, as an HTML page
    trace(run, operations)                 the exact memory of a training step
    plan_by_trace(recipe, plan, forecasts, as_json)
                                           shows a plan by traces alone; exit code
    plan_server(recipe, as_json)           shows what a server of the trained model needs; exit code
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.catalog import Model
from runner.plan import Kind, Place, Plan, Prediction, Stage
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe, Settings
from runner.tools.files import Artifact
from runner.tools.problem import Problem
from runner.trainer.records import Summary

if TYPE_CHECKING:
    from runner.data import RenderedExample
    from runner.data.report import PreparedRows, Report

Rule = Callable[[Recipe], Iterator[Problem]]


@dataclass(frozen=True)
class Measurable:
    """What can be measured of a stage."""

    kind: Kind
    # Kinds of questions whose answers are counted separately, each by words that are in it; or rewards, by name.
    asked: Mapping[str, str] = field(default_factory=dict)
    # Whether there are held-out rows.
    validates: bool = True
    # Whether there are blocks of text that all stages are measured on.
    blocks: bool = False


class Translation(Protocol):
    # By the section that has the gates, "" for the recipe itself, in the order of the stages. Without it no gate is judged.
    measurable: Callable[[Recipe], Mapping[str, Measurable]]
    # The same recipe as a list of stages, where the scenario has another form for them.
    in_stages: Callable[[Recipe], Recipe]

    def translate(self, recipe: Recipe, place: Place) -> Plan:
        """The Plan of a recipe at a place; pure. Raises Stop if `advanced` contradicts the recipe."""


class Rules(Protocol):
    """RULES judge recipes of this scenario, after those of `runner/check/`. FILE_RULES look at files of this machine,
    which commands about jobs do not need."""

    RULES: tuple[Rule, ...]


class Architecture(Protocol):
    def model_facts(self, settings: Settings) -> Model:
        """The model that a recipe describes. Raises BrokenSetting if the schema refuses a setting that it needs."""


class Substitutions(Protocol):
    # Further substitutions, once the rows are known; the path is the run's. None if nothing depends on the rows.
    @property
    def after_data(self) -> Callable[[Recipe, PreparedRows, Path], list[Override]] | None: ...

    def before_data(self, recipe: Recipe, file: str | None) -> list[Override]:
        """Substitutions of the data. file: rows to use instead of the recipe's sample. Raises Stop if this machine has
        nothing to rehearse with."""

    def stands_in(self, recipe: Recipe, folder: Path) -> Mapping[str, object]:
        """Additional work of the data stage, as part of its config. folder: of the run."""

    def shown(self, original: Recipe, made: list[Override], rows: PreparedRows) -> Iterable[str]:
        """The substitutions after the data, for people."""

    def judge(self, plan: Plan, summaries: list[Summary]) -> None:
        """Raises Stop if too little was learned."""


class Preparer(Protocol):
    def prepare(self, settings: Any, out: Path, **options: Any) -> Report:
        """Writes what `settings` ask for into `out`, unless it exists. They are a frozen dataclass, whose JSON form is
        a stage's `data`; its `kind` is the name in PREPARERS."""

    # If rows can be shown: the training rows, one after the other, as the model will see each.
    first: Callable[[Any], Iterator[RenderedExample]]


class Target(Protocol):
    """What `recipe render` writes for. It has `emitted` or, for a cluster's job for each stage, `job`."""

    def named(self, recipe: Recipe) -> bool:
        """Whether the recipe has a section that asks for it."""

    def emitted(self, recipe: Recipe) -> list[Artifact]:
        """The files. Pure: the same recipe gives the same bytes."""

    def job(self, plan: Plan, stage: Stage) -> list[Artifact]:
        """The files of one stage's job, beside the engine's own. plan: of this stage alone. Pure, as above."""

    # The folders of the recipe's machines on this target. Raises Stop if the recipe lacks the target's section.
    place: Callable[[Recipe], Place]


class Forecasting(Protocol):
    """The estimate of a recipe's needs."""

    def problems(self, recipe: Recipe, plan: Plan, allowed: Collection[str]) -> list[Problem]:
        """Errors if a stage cannot fit its GPU, and notes. allowed: problems that become notes."""

    def sized(self, recipe: Recipe, plan: Plan) -> Plan:
        """The plan with the sizes of its claims, its pods' memory and their time to end, from recipe and catalog
        alone."""

    def written(self, recipe: Recipe, plan: Plan) -> Mapping[str, int]:
        """The bytes that a plan writes to each claim, by its name; nothing if there are no formulas for the model."""

    def on_processor(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The same as `predictions`, for this machine's processor, which is measured first."""

    def predictions(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The forecast of each stage that trains; nothing if there are no formulas for the model."""
