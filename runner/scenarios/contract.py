"""The protocols of the modules of scenarios and parts. A module is a plain module that satisfies one of them.

A folder of `runner/scenarios` with `schema.yaml` and `translation.py` is a scenario; recipes use its name with `-` for each `_`.
A part adds one with a line of its table (`runner/parts/__init__.py`). A scenario's package has

    schema.yaml      the settings of its recipes; `make schemas` builds `schemas/<scenario>.schema.json` from it
    translation.py   Translation: turns a recipe into stages, and lists what can be measured of them

and, if needed,

    rules.py         RULES, for what the schema cannot express, after those of `runner/check/`; FILE_RULES, which look at
                     files of this machine, and which commands about jobs leave out. They may also be in translation.py
    rehearsal.py     Substitutions of a rehearsal; they may also be in translation.py. Missing members are those of language
                     models on rows
    work.py          functions for stages that train nothing. Each takes a frozen dataclass, whose JSON form is the stage's config,
                     and a function that reports progress. FIRST maps a name of these to a function that shows the rows
    architecture.py  model_facts(settings), if recipes describe their model instead of naming one: that Model. Raises
                     BrokenSetting if the schema refuses a setting that it needs

In a part's tables, a module of `preparers` is a Preparer; of `engines` is run as `python -m MODULE CONFIG`, by torchrun
for several processes; of `formulas` has `of_stage(recipe, stage, rows, look)`, which returns the planner's Formulas for
a stage of that engine, or None; of `measures` has `measure(task, measures)`; of `asked` has `load(weights)`, which
returns a function from a file to the share of each answer; of `targets` is a Target. `forecast` names a Forecasting,
`rules` a module with rules for every recipe, and `hooks` names functions:

    other_file(document)                   every Problem with a file of another tool; None if it is not that tool's
    as_recipe(document)                    the recipe made from such a file, and notes; None if it is not that tool's
    followers()                            derived settings: the causes of each, and a function that returns settings with values
                                           from the recipe before and after a change
    examiner(report)                       an Examiner of prepared rows (`runner.data.report`)
    before_stage(folder, tell, where)      raises Stop if a stage must not start; where: the option that names the cluster
    before_training(cfg, trainer, settings)  in the training process, before the first step: the fault, or an empty text
    blocks(settings, batch, resumed_at)    packed blocks for training and validation, and the number of the last step
    callbacks(settings, history)           more callbacks for transformers' Trainer
    trackers(config, settings)             callbacks that send curves to a server, instead of those of the engine, whose
                                           config they change
    after_stage(folder, tell)              after a finished stage; raises Stop if no later stage may use it
    send_results(folder, tell)             sends what a stage has left to such a server; never raises
    send_export(folder, made, form, tell)  the same with an exported model, in the folder `made`
    after_run(recipe, run)                 lines for the end of a run
    after_plan(plan, run)                  the same on plain machines, which have no recipe
    on_record(plan)                        lines from records: overruled gates, and answers with their rewards
    measured(recipe, evaluation, section)  gates and Evaluation of a stage (see `common.measured`)
    in_rehearsal(recipe)                   Overrides of a rehearsal for sections of the part
    check_formats()                        more output formats of `recipe check`, by name (`check/batch.py`, Format)
    beside_jobs(recipe, plan)              files beside the jobs of a render
    computed(recipe)                       values that follow from the recipe's lines: the setting's path and a Computed
    provenance(recipe)                     the origin of a recipe, as fields of the run's RunManifest
    at_the_end(run, tell)                  a context around a whole run
    prove(proofs, tell)                    judges prepared rows before a GPU is reserved
    rewarded(recipe)                       the rewards of a model's own answers, in the engine's settings
    tried(trainer, settings)               rewards of known answers, in words; and faults, by kind, with an example
    show_rows(recipe, place, count, say)   proves each stage's rows as the engine makes them; returns each proof's folder
    shown(folder, whole)                   lines of styled text from the proof in a folder
    models_at(url, recipe, stage)          the recipe's models behind a server
    judged_at(hub, url, recipe, stage, tell)
                                           the stage, and EvalHub's Measurement of its served models
    model_on_claim(recipe, folder, tell)   a context with a local folder of the small files of a model on a claim
    why_on_cluster(recipe, path, stage)    lines about the job of a recipe on the cluster
    promote_on_cluster(path, sets, stage, by, reason, tell)
                                           overrules a gate of a run on the cluster
    runs_on_cluster(namespace)             rows of `recipe runs`, for the training jobs of a namespace
    after_fetch(run, tell)                 after the results of a run were downloaded from the cluster
    page_in_pod(folder, tell)              writes the page of a run on the claim
    gate_in_pod(folder, tell), promote_in_pod(folder, by, reason, tell)
                                           two subcommands of `runner.entrypoints.stage`
    seal_key(make, namespace)              the key that a namespace's pods seal with; make: create the user's own if it is missing
    page_of_runs(*runs)                    an HTML page about one run or several
    trace(run, operations)                 the exact memory of a training step
    plan_by_trace(recipe, plan, forecasts, as_json)
                                           prints a plan by traces alone; returns the exit code
    plan_server(recipe, as_json)           prints what a server of the trained model needs; returns the exit code
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.plan import Kind, Place, Plan, Prediction, Stage
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
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
    # Kinds of questions whose answers are counted separately, each recognised by words in it; or rewards, by name.
    asked: Mapping[str, str] = field(default_factory=dict)
    validates: bool = True  # whether there are held-out rows
    blocks: bool = False  # whether there are blocks of text that all stages are measured on


class Translation(Protocol):
    # By the section with the gates ("": the recipe itself), in the order of stages. Without it no gate is judged.
    measurable: Callable[[Recipe], Mapping[str, Measurable]]
    # The recipe in the form with `stages`, if the scenario has another form for several stages.
    in_stages: Callable[[Recipe], Recipe]

    def translate(self, recipe: Recipe, place: Place) -> Plan:
        """The Plan of a recipe at a place; pure. Raises Stop if `advanced` contradicts the recipe."""


class Substitutions(Protocol):
    # Further substitutions, once the rows are known; the path is the run's. None if nothing depends on the rows.
    @property
    def after_data(self) -> Callable[[Recipe, PreparedRows, Path], list[Override]] | None: ...

    def before_data(self, recipe: Recipe, file: str | None) -> list[Override]:
        """Substitutions of the data. file: rows to use instead of the recipe's sample. Raises Stop if this machine has
        nothing to rehearse with."""

    def stands_in(self, recipe: Recipe, folder: Path) -> Mapping[str, object]:
        """Additions to the data stage's config: what replaces the base model. folder: of the run."""

    def shown(self, original: Recipe, made: list[Override], rows: PreparedRows) -> Iterable[str]:
        """The substitutions after the data, in words."""

    def judge(self, plan: Plan, summaries: list[Summary]) -> None:
        """Raises Stop if too little was learned."""


class Preparer(Protocol):
    def prepare(self, settings: Any, out: Path, **options: Any) -> Report:
        """Prepares rows in `out`, unless they exist. settings: a frozen dataclass, whose JSON form is a stage's `data`;
        its `kind` is the name in PREPARERS."""

    # If rows can be shown: the training rows, one after the other, as the model will see each.
    first: Callable[[Any], Iterator[RenderedExample]]


class Target(Protocol):
    """A place to run that `recipe render` writes files for, by `emitted` or, with a job for each stage, by `job`."""

    def named(self, recipe: Recipe) -> bool:
        """Whether the recipe has this target's section."""

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
        """The plan with the sizes of claims, and pods' memory and time to end, from recipe and catalog alone."""

    def written(self, recipe: Recipe, plan: Plan) -> Mapping[str, int]:
        """The bytes that a plan writes to each claim, by its name; nothing if there are no formulas for the model."""

    def on_processor(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The `predictions` for this machine's processor, which is measured first."""

    def predictions(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The forecast of each stage that trains; nothing if there are no formulas for the model."""
