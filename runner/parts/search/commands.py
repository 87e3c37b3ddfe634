"""`recipe search`: runs the trials of a recipe one after the other, and writes the best as a
recipe."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from runner import parts, scenarios
from runner.catalog import troubles
from runner.check import copying
from runner.check.validate import changed, valid
from runner.commands.options import command, end, open_recipe, say, table
from runner.commands.run import at_work, confirm, watch
from runner.parts.search import trials
from runner.plan import Prediction
from runner.recipe import units
from runner.recipe.reading import parse, read, written
from runner.recipe.recipe import PROMPTS, Override, Recipe
from runner.run import inference, pipeline, this_machine
from runner.run import run as running
from runner.run.launch import Progress, forking
from runner.run.run_folder import RunFolder, StageFolder, folder
from runner.run.this_machine import LocalRun
from runner.scenarios import place, translate
from runner.tools.child_process import Event
from runner.tools.files import content_hash, write_text
from runner.tools.problem import Stop, listed
from runner.tools.run_files import PAGE, RUN
from runner.trainer.records import Summary

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

JOURNAL = "search.journal"
WRITTEN = (
    "# Written by `recipe search`."  # the first line of a recipe that this command may replace
)

CONTINUES = "Fix the cause above. The same command then continues, and repeats no finished trial."
# Names of the catalog's troubles, which may also come after many steps.
OF_THE_STORAGE = ("disk full", "storage lost", "no right to write")


@dataclass(frozen=True)
class TriedTrial:
    """A trial: its recipe, its prediction, which may be empty, and its run."""

    trial: trials.Trial
    recipe: Recipe
    planned: Prediction
    run: RunFolder

    @property
    def cells(self) -> tuple[str, ...]:
        """The number and the values, for tables."""
        return str(self.trial.number), *map(written, self.trial.settings.values())

    @cached_property
    def summary(self) -> Summary | None:
        """Of the finished training; None if there is none."""
        has_run = (self.run.path / RUN).is_file()
        if has_run:
            return next(iter(pipeline.summaries(inference.plan_of(self.recipe, self.run))), None)
        return None


@dataclass(frozen=True)
class Search:
    """A recipe's trials, and the folder with their runs. changes: the person's changes of the
    recipe."""

    recipe: Recipe
    tried: list[TriedTrial]
    home: Path
    changes: list[Override]

    @cached_property
    def study(self) -> "Study":
        """The record of these trials. Trials with other settings have another one, in the same
        file."""
        self.home.mkdir(parents=True, exist_ok=True)
        return trials.study(str(self.home / JOURNAL), self.name, self.higher)

    @property
    def name(self) -> str:
        return content_hash([trial.recipe.fingerprint for trial in self.tried])

    @property
    def higher(self) -> bool:
        """Whether more is better, as with a reward; a loss should fall."""
        return self.recipe.rows == PROMPTS

    def known(self, tried: TriedTrial) -> "FrozenTrial | None":
        """The study's entry for a trial; None before its first start."""
        recorded = self.study.trials
        if tried.trial.number <= len(recorded):
            return recorded[tried.trial.number - 1]
        return None

    def is_finished(self, tried: TriedTrial) -> bool:
        record = self.known(tried)
        return record is not None and record.state.is_finished()

    def reached(self, tried: TriedTrial) -> float | None:
        summary = tried.summary
        if summary:
            if self.higher:
                return summary.best_reward
            return summary.best_validation_loss
        return None


@command
def search(
    path: str,
    sets: tuple[str, ...],
    out: str | None,
    rehearse: bool,
    dry_run: bool,
    write: bool,
    submit: bool,
    yes: bool,
) -> None:
    """Train with each of the settings in the section `search`, one after the other. Poor trials end
    early, and the best one becomes a recipe. After a stop, the same command continues."""
    recipe, changes = open_recipe(path, sets, environment=True)
    if not recipe.settings.get("search"):
        raise Stop(
            f"`{path}` has no section `search`, so there is nothing to try.",
            "Name the settings and their values, for example `--set 'search.over={train.learning_rate: [1e-4, 2e-4]}'`.",
        )
    run_kind = "rehearsal" if rehearse else "run"
    if out:
        home = Path(out).absolute()
    else:
        home = folder(f"{recipe.name}-search", run_kind).path
    tried = []
    for trial in trials.of(recipe.settings["search"]):
        trial_recipe = changed(recipe, trial.changes)[0]
        planned = next(
            iter(
                scenarios.forecasting().predictions(
                    trial_recipe, translate(trial_recipe, place(trial_recipe))
                )
            ),
            Prediction(),
        )
        tried.append(
            TriedTrial(trial, trial_recipe, planned, RunFolder(home / trial.name, run_kind))
        )
    this_search = Search(recipe, tried, home, changes)
    _show(this_search, rehearse)
    if dry_run:
        end("Nothing was started. These trials are ready.", "search", path)
        return
    if write or submit:
        _send(this_search, submit)
        return
    waiting = [trial for trial in this_search.tried if not this_search.is_finished(trial)]
    if waiting and not rehearse:
        _require_patience(this_search, waiting, yes)
    _run_all(this_search, waiting, path, sets)
    _conclude(this_search, rehearse)


def _require_patience(search: Search, waiting: list[TriedTrial], yes: bool) -> None:
    """Prints how long the waiting trials take on this machine, and asks if that is over an hour.
    Raises Stop after a no, or if this machine's main memory is too small for one of them."""
    local_runs = [this_machine.local_run(trial.recipe, trial.run) for trial in waiting]
    for trial, local in zip(waiting, local_runs, strict=True):
        _require_memory(search, trial, local)
    takes = _takes(local_runs)
    say(f"\n{takes}")
    seconds = _seconds(local_runs)
    is_long = seconds is None or seconds > running.UNASKED
    rehearse = (
        f"`recipe search {search.recipe.file} --rehearse` tries all of them with a tiny model."
    )
    if is_long and not confirm(yes, takes, rehearse):
        raise Stop(
            "Nothing was started.", f"Fewer values, epochs or rows take less time. {rehearse}"
        )


def _require_memory(search: Search, trial: TriedTrial, local: LocalRun) -> None:
    for prediction in local.predictions.values():
        if local.on_processor and prediction.too_large:
            need = units.gib(prediction.memory or 0)
            have = units.gib(prediction.usable or 0)
            raise Stop(
                f"This machine has no GPU, and trial {trial.trial.number} needs about {need} of main memory, but it has {have}.",
                f"`recipe search {search.recipe.file} --write` writes the trials as recipes for other machines.",
            )


def _seconds(local_runs: list[LocalRun]) -> float | None:
    """The time of all trials together; None if that of one is unknown."""
    total = 0.0
    for local in local_runs:
        for stage in local.plan.stages:
            if not stage.trains:
                continue
            prediction = local.predictions.get(stage.name)
            if prediction is None or prediction.seconds is None:
                return None
            total += prediction.seconds
    return total


def _takes(local_runs: list[LocalRun]) -> str:
    """How long the trials take here, as a sentence."""
    if local_runs[0].on_processor:
        where = "on this machine's CPU, because it has no GPU"
    else:
        where = "on this machine's GPUs"
    count = len(local_runs)
    seconds = _seconds(local_runs)
    if seconds is None:
        return f"How long the {count} trials that are not finished take {where} is unknown."
    if count == 1:
        return f"The trial that is not finished takes about {units.duration(seconds)} {where}."
    return f"The {count} trials that are not finished take about {units.duration(seconds)} together {where}."


def _run_all(search: Search, waiting: list[TriedTrial], path: str, sets: tuple[str, ...]) -> None:
    """Runs the trials in order. Raises Stop after a failure that other values cannot change, and if
    two in a row fail in the same way before their first step."""
    last_failure = ""
    for trial in waiting:
        say(f"\nTrial {trial.trial.number} of {len(search.tried)}: {trial.trial}")
        steps = StepsSeen()
        failure = ""
        try:
            _run(search, trial, path, sets, steps)
        except Stop as stop:
            say(f"\nThis trial ended without a result.\n{stop.text}", err=True)
            if _fails_in_each(trial, stop):
                raise Stop(
                    "The search has stopped, because every other trial would fail in the same way.",
                    CONTINUES,
                ) from None
            # A failure in training is a result of the trial's settings, and the next trial may do
            # well.
            if not steps.seen:
                failure = _without_trial(stop.text, trial)
        if failure and failure == last_failure:
            raise Stop(
                "Two trials in a row have failed in the same way before their first step. The search has stopped, because other values cannot change that.",
                CONTINUES,
            )
        last_failure = failure


def _fails_in_each(trial: TriedTrial, failure: Stop) -> bool:
    """Whether a trial failed for a reason that no trial's values can change: the machine's storage,
    or rows, model and tokenizer, which all trials prepare in the same way."""
    trouble = troubles.find(failure.text, troubles.LOG)
    if trouble and trouble.trouble.name in OF_THE_STORAGE:
        return True
    if any({"data", "model"} & set(name.split(".")) for name in trial.trial.settings):
        return False
    try:
        plan = inference.plan_of(trial.recipe, trial.run)
    except Stop:
        return False
    first_stage = plan.stages[0]
    return not first_stage.trains and StageFolder(plan, first_stage).state.status == "begun"


class StepsSeen:
    """Watches a trial, and remembers whether its training has made a step."""

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def watch(self) -> Iterator[Progress]:
        """As the usual `watch`, which it calls."""
        with watch() as show:

            def note(event: Event) -> None:
                self.seen = self.seen or event["event"] == "step"
                show(event)

            yield note


def _without_trial(failure: str, trial: TriedTrial) -> str:
    """A failure's text without what differs from trial to trial: its folder, and the number of a
    request."""
    return re.sub(r"Request ID: [^\s)]+", "", failure.replace(str(trial.run.path), ""))


def _show(search: Search, rehearse: bool) -> None:
    """Prints the trials and what each needs. Raises Stop if one does not fit its GPU, or all of
    them exceed the budget."""
    rows = [("TRIAL", *search.tried[0].trial.settings, "GPU MEMORY", "TIME")]
    for tried in search.tried:
        if tried.planned.memory:
            memory = units.gib(tried.planned.memory)
        else:
            memory = "unknown"
        if tried.planned.seconds is not None:
            time = units.duration(tried.planned.seconds)
        else:
            time = "unknown"
        rows.append((*tried.cells, memory, time))
    table(rows)
    hours = sum((tried.planned.seconds or 0) * tried.planned.gpus for tried in search.tried) / 3600
    budget = search.recipe.settings["search"].get("gpu_hours")
    if hours >= 0.05:
        say(f"\nAll trials together take about {hours:.1f} GPU hours if none ends early.")
    if rehearse:
        return
    large = [tried.trial.number for tried in search.tried if tried.planned.too_large]
    if large:
        message = (
            f"Trials that do not fit on the {search.recipe.machines.gpu}: {listed(map(str, large))}.",
            "Remove the values that need too much memory. `recipe plan RECIPE --set SETTING=VALUE` shows what each needs.",
        )
        raise Stop(search.recipe.problem("search", *message, key=True))
    if budget is not None and hours > budget:
        raise Stop(
            search.recipe.problem(
                "search.gpu_hours",
                f"The trials take about {hours:.1f} GPU hours, and `search.gpu_hours` allows {budget:g}.",
                "Raise it, or try fewer values.",
            )
        )


def _run(
    search: Search, tried: TriedTrial, path: str, sets: tuple[str, ...], steps: StepsSeen
) -> None:
    frozen = search.known(tried) or search.study.ask()
    stop_poor = search.recipe.settings["search"]["stop_poor"]
    record = trials.TrialRecord(
        str(search.home / JOURNAL), search.name, frozen.number, search.higher, stop_poor
    )
    out = str(tried.run.path)
    changes = tried.trial.changes
    with at_work(tried.run.kind, path, sets, out, False, more=changes) as (
        recipe,
        recipe_changes,
        run,
    ):
        record.write(run.path)
        if run.kind == "rehearsal":
            with forking():
                running.rehearse(
                    recipe, run, None, pipeline.Selection(), say, steps.watch, recipe_changes
                )
        else:
            running.run(
                recipe,
                run,
                pipeline.Selection(),
                say,
                steps.watch,
                recipe_changes,
                lambda takes: True,
            )
    search.study.tell(frozen.number, search.reached(tried))


def _conclude(search: Search, rehearse: bool) -> None:
    """Prints all results, the best first, and writes the page about them and the best recipe."""
    # Those without a result come last.
    sign = -1 if search.higher else 1
    in_order = sorted(
        search.tried,
        key=lambda tried: math.inf if (result := search.reached(tried)) is None else sign * result,
    )
    best = in_order[0]
    if search.reached(best) is None:
        raise Stop(
            "No trial has finished, so there is no best one.",
            "The messages above say why each ended. After a repair, the same command repeats these trials alone.",
        )
    rows = [
        (
            "TRIAL",
            *best.trial.settings,
            "MEAN REWARD" if search.higher else "VALIDATION LOSS",
            "STEPS",
            "",
        )
    ]
    for tried in in_order:
        record = search.known(tried)
        value = search.reached(tried)
        summary = tried.summary
        if record and trials.ENDED in record.user_attrs:
            early = "ended early"
        else:
            early = ""
        if value is None:
            reached = "no result"
        else:
            reached = f"{value:.4f}"
        steps = f"{summary.steps:,}" if summary else ""
        rows.append(
            (*tried.cells, reached, steps, "best" if tried is best and not rehearse else early)
        )
    say()
    table(rows)
    finished = [tried.run for tried in in_order if tried.summary]
    if parts.has("report"):
        from runner.parts.report import page

        write_text(search.home / PAGE, page.of_runs(*finished))
        say(f"\nAll curves are on the page {RunFolder(search.home).shown / PAGE}.")
    if rehearse:
        work = f"{len(finished)} of {len(search.tried)} trials work here, with a tiny model"
        end(f"{work}, whose losses do not tell which is best.", "search", search.recipe.file)
        return
    file = search.recipe.file.with_name(f"{search.recipe.file.stem}-best.yaml")
    _write(search, best, file, search.recipe.name)
    end(
        f"Trial {best.trial.number} is the best of {len(search.tried)}, and {file} has its settings.",
        "run",
        file,
    )


def _send(search: Search, submit: bool) -> None:
    """Writes each trial as a recipe with a name of its own, and with `submit` sends them to the
    cluster."""
    recipe = search.recipe
    files = []
    for tried in search.tried:
        files.append(recipe.file.with_name(f"{recipe.file.stem}-{tried.trial.number}.yaml"))
        _write(search, tried, files[-1], f"{recipe.name}-{tried.trial.number}")
    if submit:
        parts.require("openshift")
        context = click.get_current_context()
        send = cast(click.Group, context.find_root().command).get_command(context, "submit")
        for file in files:
            say(f"\n{file}")
            context.invoke(cast(click.Command, send), path=str(file))
        result = (
            f"{len(files)} trials are on the cluster. After `recipe fetch` of each, compare them."
        )
        end(result, "runs", "--sort", "loss")
        return
    end(f"{len(files)} recipes were written, {files[0]} and so on.", "check", *files[:1])


def _write(search: Search, tried_trial: TriedTrial, file: Path, name: str) -> None:
    """Writes a trial's recipe under a name. Raises Stop if another file is there, or if the name
    makes no recipe."""
    if file.exists() and not file.read_text(encoding="utf-8").startswith(WRITTEN):
        raise Stop(
            f"This trial has no recipe of its own, because `{file}` is another file.",
            f"Move it away and repeat the command, or write these settings yourself: {tried_trial.trial}.",
        )
    document = read(search.recipe.file)
    reason = f"trial {tried_trial.trial.number} of {len(search.tried)}"
    tried = []
    for setting, value in tried_trial.trial.settings.items():
        tried.append(Override(setting, None, value, copying.NEW, reason))
    if name == search.recipe.name:
        text = document.text
    else:
        text = copying.rename(document, name)
    text = copying.edited(text, [*search.changes, Override("search"), *tried])
    valid(parse(str(file), text))
    write_text(file, f"{WRITTEN}\n{text}")
