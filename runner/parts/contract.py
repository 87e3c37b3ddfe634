"""The protocols of the modules of scenarios and parts. A module is a plain module that satisfies
one of them.

A folder of `runner/scenarios` with `schema.yaml` and `translation.py` is a scenario; recipes use
its name with `-` for each `_`. A part adds one with a line of its table
(`runner/parts/__init__.py`). A scenario's package has

    schema.yaml      the settings of its recipes; `make schemas` builds
    `schemas/<scenario>.schema.json` from it
    translation.py   translate(recipe, place), the Plan of a recipe at a place; pure; raises Stop if
    `advanced` contradicts
                     the recipe. measurable(recipe), what can be measured of its training; without
                     it no gate is judged.

and, if needed,

    rules.py         RULES, for what the schema cannot express, after those of `runner/check/`;
    FILE_RULES, which look at
                     files of this machine, and which commands about jobs leave out. They may also
                     be in translation.py
    rehearsal.py     Substitutions of a rehearsal; they may also be in translation.py. Missing
    members are those of language
                     models on rows
    work.py          functions for stages that train nothing. Each takes a frozen dataclass, whose
    JSON form is the stage's config,
                     and a function that reports progress. FIRST maps a name of these to a function
                     that shows the rows
    architecture.py  model_facts(settings), if recipes describe their model instead of naming one:
    that Model. Raises
                     BrokenSetting if the schema refuses a setting that it needs

In a part's tables, a module of `targets` is a FileTarget or a JobTarget, and a PlacedTarget if
recipes run there; of `preparers` a Preparer; of `formulas` has Formulas; of `measures` is a
Measurer; of `asked` a Classifier; `rules` and those of `rules_of` are a RuleModule; `forecast` is a
Forecasting. A module of `engines` is run as `python -m MODULE CONFIG`, by torchrun for several
processes. `stage_hooks` names a class, a StageHooks, and `callbacks` a function, a Callbacks.

mypy judges ours in `tests/typed_parts.py`.

This module imports nothing when it runs, so every room and every part may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from runner.data.prepared import PreparedRows
    from runner.data.report import Examined
    from runner.parts.evaluate.evaluate import Measures
    from runner.parts.evaluate.gates import Task
    from runner.parts.planner.forecast import Forecast
    from runner.parts.planner.row_counts import Rows
    from runner.plan import Kind, Place, Plan, Prediction, Stage
    from runner.recipe.recipe import Override, Recipe
    from runner.run.run_folder import StageFolder
    from runner.tools.files import Artifact
    from runner.tools.problem import Problem, Tell
    from runner.trainer.records import Summary
    from runner.trainer.results import History
    from runner.trainer.settings import RunSettings

Request = TypeVar("Request", contravariant=True)
Summaries = list["Summary"]  # of the stages of a rehearsal
Work = Mapping[
    str, Any
]  # what a stage that trains nothing does: the dataclass of a function in `work.py`, as JSON


class Rule(Protocol):
    """Judges every recipe, or those with a setting."""

    def __call__(self, recipe: Recipe, /) -> Iterable[Problem]: ...


class StageHooks:
    """What a part does before and after a stage of a run, on every kind of machine. Each method
    does nothing here; a part's own class has those that it needs."""

    def before_stage(self, folder: StageFolder, tell: Tell, where: str) -> None:
        """Raises Stop if the stage must not start. where: the option that names the place of the
        run, such as ` --cluster`."""

    def after_stage(self, folder: StageFolder, tell: Tell) -> None:
        """Raises Stop if no later stage may use the results of the finished stage."""

    def send_results(self, folder: StageFolder, tell: Tell) -> None:
        """Sends what the stage has left to another server. Never raises."""

    def report_lines(self, plan: Plan) -> Iterable[str]:
        """Lines for the end of a run, from the records in its folder."""
        return ()


class Callbacks(Protocol):
    """More callbacks for a training, in the training process."""

    def __call__(self, settings: RunSettings, history: History) -> list[TrainerCallback]: ...


@dataclass(frozen=True)
class Measurable:
    """What can be measured of a stage."""

    kind: Kind
    # Kinds of questions whose answers are counted separately, each recognised by words in it; or
    # rewards, by name.
    asked: Mapping[str, str] = field(default_factory=dict)
    validates: bool = True  # whether there are held-out rows
    blocks: bool = False  # whether there are blocks of text that all stages are measured on


class Substitutions(Protocol):
    # Further substitutions, once the rows are known; the path is the run's. None if nothing depends
    # on the rows.
    @property
    def after_data(self) -> Callable[[Recipe, PreparedRows, Path], list[Override]] | None: ...

    def before_data(self, recipe: Recipe, file: str | None) -> list[Override]:
        """Substitutions of the data. file: rows to use instead of the recipe's sample. Raises Stop
        if this machine has nothing to rehearse with."""

    def stands_in(self, recipe: Recipe, folder: Path) -> Mapping[str, object]:
        """Additions to the data stage's config: what replaces the base model. folder: of the
        run."""

    def shown(self, original: Recipe, changes: list[Override], rows: PreparedRows) -> Iterable[str]:
        """The substitutions after the data, in words."""

    def judge(self, plan: Plan, summaries: Summaries) -> None:
        """Raises Stop if too little was learned."""


class Target(Protocol):
    """A place to run that `recipe render` writes files for: a FileTarget or a JobTarget. A recipe
    runs there if it is a PlacedTarget."""

    def named(self, recipe: Recipe, /) -> bool:
        """Whether the recipe has this target's section."""


@runtime_checkable
class FileTarget(Target, Protocol):
    """A target with files of a whole recipe."""

    def emitted(self, recipe: Recipe, /) -> list[Artifact]:
        """The files. Pure: the same recipe gives the same bytes."""


@runtime_checkable
class JobTarget(Target, Protocol):
    """A target with a job for each stage."""

    def job(self, plan: Plan, stage: Stage, /) -> list[Artifact]:
        """The files of one stage's job, beside the engine's own. plan: of this stage alone. Pure,
        as above."""


@runtime_checkable
class PlacedTarget(Target, Protocol):
    """A target with machines."""

    def place(self, recipe: Recipe, /) -> Place:
        """The folders of the recipe's machines on this target. Raises Stop if the recipe lacks the
        target's section."""


class RuleModule(Protocol):
    """A module of `rules` or `rules_of`. It may have FILE_RULES, too, which look at files of this
    machine."""

    @property
    def RULES(self) -> Sequence[Rule]: ...


class Formulas(Protocol):
    """What a stage of an engine needs, by closed formulas."""

    def of_stage(self, recipe: Recipe, stage: Stage, rows: Rows, look: bool, /) -> Forecast | None:
        """The forecast; None if the stage's model is unknown. look: whether to read the hub's
        cache."""


class Preparer(Protocol[Request]):
    """Prepares one kind of rows. It may have `first(request)`, too: the training rows as the model
    will see each."""

    def prepare(
        self, request: Request, out: Path, /, *, sample_rows: int | None = None
    ) -> Examined:
        """Prepares rows in the folder `out`, unless they exist. request: a frozen dataclass, whose
        JSON form is a stage's `data`. sample_rows: keep at most this many."""


class Measurer(Protocol):
    """Measures the models of an engine, in a process of its own."""

    def measure(self, task: Task, measures: Measures, /) -> None:
        """Adds the results to `measures`."""


class Classifier(Protocol):
    """Answers for a model that is asked about a file."""

    def load(self, weights: Path, /) -> Callable[[Path], Mapping[str, float]]:
        """A function from a file to the share of each answer. It raises Stop for other files."""


class Forecasting(Protocol):
    """The estimate of a recipe's needs."""

    def problems(self, recipe: Recipe, plan: Plan, allowed: Collection[str]) -> list[Problem]:
        """Errors if a stage cannot fit its GPU, and notes. allowed: problems that become notes."""

    def sized(self, recipe: Recipe, plan: Plan) -> Plan:
        """The plan with the sizes of claims, and pods' memory and time to end, from recipe and
        catalog alone."""

    def written(self, recipe: Recipe, plan: Plan) -> Mapping[str, int]:
        """The bytes that a plan writes to each claim, by its name; nothing if there are no formulas
        for the model."""

    def on_processor(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The `predictions` for this machine's processor, which is measured first."""

    def predictions(self, recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
        """The forecast of each stage that trains; nothing if there are no formulas for the
        model."""
