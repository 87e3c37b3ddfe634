"""Trials: the settings that a search tries, whether each makes a valid recipe, and the study that
records them."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.check import by_schema
from runner.check.validate import changed
from runner.recipe.document import Path_
from runner.recipe.recipe import Override, Recipe
from runner.tools.files import Record
from runner.tools.problem import Problem, Stop, errors_of
from runner.tools.settings import Settings

if TYPE_CHECKING:
    from optuna import Study

MOST = 32  # no search has more trials
# Sections and settings that do not change the training.
NEVER = (
    "search",
    "name",
    "description",
    "scenario",
    "demo",
    "gates",
    "openshift",
    "nodes",
    "serve",
    "image",
)
# Settings with which trials are measured on different rows.
MEASURED_ON = (
    *("data.seed", "data.path", "data.hub"),
    *("data.validation_share", "data.validation_split", "data.validation_path"),
)
ATTEMPTS = 100  # attempts to draw a trial that differs from the earlier ones
ENDED = (
    "ended early after step"  # a trial's own mark in the study: the step after which it ended early
)


class Trial(NamedTuple):
    """A trial. number: from 1; settings: values by dotted name."""

    number: int
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"trial-{self.number:02d}"

    @property
    def changes(self) -> list[Override]:
        """The changes that turn the recipe into this trial's."""
        reason = f"trial {self.number}"
        tried = (
            Override(name, None, value, reason, reason) for name, value in self.settings.items()
        )
        return [Override("search", None, None, reason, reason), *tried]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settings.items())


def of(section: Settings) -> list[Trial]:
    """The trials of a section: every combination, or `trials` random ones, at most MOST."""
    # Each value once. A list may hold lists, so that values have no hash.
    over = {}
    for name, values in section["over"].plain().items():
        over[name] = [value for index, value in enumerate(values) if value not in values[:index]]
    between = section["between"].plain()
    names = [*over, *between]
    count = section.get("trials")
    combinations: list[tuple[Any, ...]] = []
    if not between and (count is None or math.prod(map(len, over.values())) <= count):
        combinations += islice(product(*over.values()), MOST)
    else:
        draw = random.Random(section["seed"])
        most = count or MOST
        for _ in range(most * ATTEMPTS):
            if len(combinations) == most:
                break
            drawn = (
                *map(draw.choice, over.values()),
                *(_between(low, high, draw) for low, high in between.values()),
            )
            if drawn not in combinations:
                combinations.append(drawn)
    trials = []
    for number, values in enumerate(combinations, 1):
        trials.append(Trial(number, dict(zip(names, values, strict=True))))
    return trials


def _between(low: float, high: float, draw: random.Random) -> float:
    """A number between two bounds, with three digits; a whole one between whole ones."""
    wide = low > 0 and high / low >= 10
    if wide:
        drawn = math.exp(draw.uniform(math.log(low), math.log(high)))
    else:
        drawn = draw.uniform(low, high)
    if isinstance(low, int) and isinstance(high, int):
        return round(drawn)
    return min(max(float(f"{drawn:.3g}"), low), high)


@dataclass(frozen=True)
class TrialRecord(Record):
    """Connects a run folder with its trial. journal: the study's file; study: its name; trial: the
    study's number for it; higher: whether more of what is measured is better, as with a reward;
    stop_poor: whether it may end early."""

    FILE = "trial.json"
    journal: str = ""
    study: str = ""
    trial: int = 0
    higher: bool = False
    stop_poor: bool = True


def study(journal: str, name: str, higher: bool) -> "Study":
    """The study in a file, which is created if it does not exist. Successive halving (Jamieson and
    Talwalkar 2016, arXiv 1502.07943; asynchronous: Li et al. 2020, arXiv 1810.05934): of the trials
    that reached 1, 2, 4, … evaluations, the better half continues."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(journal)),
        study_name=name,
        direction="maximize" if higher else "minimize",
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
        load_if_exists=True,
    )


def can_be_tried(recipe: Recipe) -> Iterator[Problem]:
    """Each setting exists and can change the training; bounds are in order; there are 2 to MOST
    trials."""
    section = recipe.settings.get("search")
    if not section:
        return
    wrong = []
    for section_name in ("over", "between"):
        for name in section[section_name]:
            setting_path = ("search", section_name, name)
            if name.partition(".")[0] in NEVER or not by_schema.has(recipe.scenario, name):
                wrong.append(
                    recipe.problem(
                        setting_path,
                        f"`{name}` is not a setting that trials can change.",
                        "Write a setting's whole name, for example `train.learning_rate`.",
                        key=True,
                    )
                )
            if name in MEASURED_ON:
                wrong.append(
                    recipe.note(
                        setting_path,
                        f"With several values of `{name}`, trials are measured on different rows, so their losses cannot be compared.",
                        "Compare the answers of the trials instead, or try other settings.",
                        key=True,
                    )
                )
    for name, (low, high) in section["between"].items():
        setting_path = ("search", "between", name)
        if low >= high:
            wrong.append(
                recipe.problem(
                    setting_path,
                    f"`{name}` has the bounds {low} and {high}, and the second must be larger.",
                    "Write the smaller one first.",
                )
            )
        if name in section["over"]:
            wrong.append(
                recipe.problem(
                    setting_path,
                    f"`{name}` is in `over` and in `between`.",
                    "Keep one of the two lines.",
                    key=True,
                )
            )
    combinations = math.prod(map(len, section["over"].values()))
    if section.get("trials") is None and section["between"]:
        wrong.append(
            recipe.problem(
                "search",
                "`between` needs a number of trials.",
                "Write `trials: 8` to draw eight of them at random.",
                key=True,
            )
        )
    elif section.get("trials") is None and combinations > MOST:
        message = (
            f"This search has {combinations:,} combinations, and at most {MOST} are tried.",
            "Write `trials: 8` to draw eight of them at random, or name fewer values.",
        )
        wrong.append(recipe.problem("search", *message, key=True))
    if not wrong and len(of(section)) < 2:
        wrong.append(
            recipe.problem(
                "search",
                "This search has fewer than two trials, so there is nothing to compare.",
                "Name more values.",
                key=True,
            )
        )
    yield from wrong


def each_is_valid(recipe: Recipe) -> Iterator[Problem]:
    """Each trial is a valid recipe, with its files. Problems that the recipe has without any trial
    are reported at their own lines."""
    section = recipe.settings.get("search")
    if not section or errors_of(can_be_tried(recipe)):
        return
    try:
        changed(recipe, Trial(0, {}).changes, look=False)
    except Stop:
        return
    for trial in of(section):
        try:
            changed(
                recipe, trial.changes, look=any(name.startswith("data.") for name in trial.settings)
            )
        except Stop as stop:
            problem = stop.problems[0]
            blamed = []
            for name in trial.settings:
                if f"`{name.rpartition('.')[2]}`" in problem.message:
                    blamed.append(name)
            if blamed and blamed[0] in section["over"]:
                section_name = "over"
            else:
                section_name = "between"
            setting_path: Path_
            if blamed:
                setting_path = ("search", section_name, blamed[0])
            else:
                setting_path = ("search",)
            message = (
                f"Trial {trial.number} ({trial}) cannot be trained: {problem.message}",
                problem.hint,
            )
            yield recipe.problem(setting_path, *message, key=True)


RULES = (can_be_tried,)
FILE_RULES = (each_is_valid,)
