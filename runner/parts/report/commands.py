"""`recipe report` writes a page about a run, `recipe runs` compares several, and `recipe why`
explains why one ended."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from runner import parts
from runner.catalog import troubles
from runner.commands import show
from runner.commands.options import command, end, open_recipe, say, table
from runner.parts.report import facts, page, sentences
from runner.recipe.document import differing, flat
from runner.run import provenance
from runner.run.launch import end_of
from runner.run.progress import earlier_runs, earlier_sentence, find_run
from runner.run.run_folder import RunFolder, all_here, find
from runner.tools.files import write_text
from runner.tools.problem import Stop, counted
from runner.tools.run_files import PAGE, RUN
from runner.tools.text import json_text

# Bytes at the end of a log that are searched for a reason: more than the traces of eight processes.
MOST = 1_000_000


@command
def report(runs: tuple[str, ...], out: str | None) -> None:
    """Create an HTML page about a run folder, or several side by side. A recipe instead of a folder
    means its latest run.

    The page is one complete file, so you can send it to others.
    """
    import pydantic  # noqa: F401 - missing packages are reported before anything is read

    folders = [*map(facts.run_of, runs)]
    if out:
        file = Path(out)
    elif len(folders) == 1:
        file = folders[0].path / PAGE
    else:
        file = Path(PAGE)
    if file.is_dir():
        file = file / PAGE
    write_text(file, page.render(list(map(facts.RunFacts, folders))))
    if len(runs) == 1 and Path(runs[0]).is_file():
        recipe = runs[0]
    else:
        recipe = "RECIPE"
    if file.resolve().is_relative_to(Path.cwd()):
        path = os.path.relpath(file)
    else:
        path = str(file)
    say(path)
    end(f"The page is {path}. Open it in a browser, or send it.", "chat", recipe, "--page")


# The columns of `recipe runs`. The settings that differ follow.
COLUMNS = ("folder", "recipe", "kind", "status", "changed", "loss", "gpu hours", "gates")


@command
def runs(name: str | None, sort: str, namespace: str | None, paged: bool, style: str) -> None:
    """Compare the runs below `runs/` here: state, validation loss, GPU hours, gates, and the
    settings that differ.

    Rehearsals, the trials of a search and runs that `recipe fetch` brought from a cluster are among
    them.
    """
    rows, facts_of_runs = _runs_here(name)
    if namespace is not None:
        parts.require("openshift")
        from runner.parts.openshift import watch

        for job in watch.as_runs(namespace):
            if _is_named(job["recipe"], name):
                rows.append(job)
        rows.sort(key=itemgetter("changed"), reverse=True)
    if not rows or (paged and not facts_of_runs):
        raise _no_runs(name, no_jobs=namespace is not None and not rows)
    _sort(rows, sort)
    for row in rows:
        row["settings"] = _without_names(row["settings"])
    if style == "json":
        say(json_text(rows))
    else:
        table(_table_rows(rows, same_recipe=bool(name)))
    if paged:
        write_text(Path("runs") / PAGE, page.render(facts_of_runs))
        sentence = f"The page about {counted(len(facts_of_runs), 'run')} is runs/{PAGE}."
    elif len(rows) == 1:
        sentence = "1 run is here."
    else:
        sentence = f"{len(rows)} runs are here."
    folders = [row["folder"] for row in rows if row["kind"] != "job"]
    if folders:
        end(sentence, "report", folders[0])
    else:
        end(sentence, "status", "RECIPE")


def _runs_here(name: str | None) -> tuple[list[dict[str, Any]], list[facts.RunFacts]]:
    """The runs of a recipe as rows, and the facts of those that have a plan."""
    rows: list[dict[str, Any]] = []
    facts_of_runs: list[facts.RunFacts] = []
    for run in all_here():
        if not _is_named(run.state.recipe, name):
            continue
        run_facts = _facts_of(run)
        rows.append(_row(run, run_facts))
        if run_facts:
            facts_of_runs.append(run_facts)
    return rows, facts_of_runs


def _is_named(recipe: str, name: str | None) -> bool:
    """A name also means those that continue it after a hyphen; no name means every recipe."""
    return not name or f"{recipe}-".startswith(f"{name}-")


def _sort(rows: list[dict[str, Any]], column: str) -> None:
    """Sorts rows, which are already sorted by time, by the numbers of a column; unknown ones are
    last."""
    if column != "changed":
        rows.sort(key=lambda row: math.inf if row[column] is None else row[column])


def _no_runs(name: str | None, no_jobs: bool) -> Stop:
    of_recipe = f" of a recipe `{name}`" if name else ""
    nor_jobs = ", and no jobs in the namespace" if no_jobs else ""
    return Stop(
        f"There are no runs{of_recipe} below this folder{nor_jobs}.",
        "`recipe run` and `recipe rehearse` make them.",
    )


def _without_names(settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings that can tell runs apart."""
    return {setting: value for setting, value in settings.items() if setting not in provenance.OWN}


def _table_rows(rows: Sequence[Mapping[str, Any]], same_recipe: bool) -> list[list[str]]:
    """The table of runs with its heading. Runs of one recipe also have a column for each setting
    that differs."""
    differing_settings: list[str] = []
    if same_recipe or len({row["recipe"] for row in rows}) == 1:
        # The settings of a job that somebody else sent are unknown.
        settings = [row["settings"] for row in rows if row["settings"]]
        differing_settings = [setting for setting, _ in differing(settings, "")]
    table_rows = [[*map(str.upper, COLUMNS), *differing_settings]]
    for row in rows:
        cells = [_cell(row[column]) for column in COLUMNS]
        for setting in differing_settings:
            cells.append(row["settings"].get(setting, ""))
        table_rows.append(cells)
    return table_rows


def _facts_of(run: RunFolder) -> facts.RunFacts | None:
    """The facts of a run; None if it has no plan."""
    with suppress(Stop):
        return facts.RunFacts(run)
    return None


def _row(run: RunFolder, run_facts: facts.RunFacts | None) -> dict[str, Any]:
    """A run as a row of the table. What is unknown is None or empty."""
    row: dict[str, Any] = {
        **show.run_row(run),
        "loss": None,
        "gpu hours": None,
        "gates": "",
        "settings": {},
    }
    if not run_facts:
        return row
    summaries = [stage.summary for stage in run_facts.trained if stage.summary]
    if summaries:
        row["loss"] = summaries[-1].best_validation_loss
    gpu_hours = []
    for summary in summaries:
        if summary.gpu:
            gpu_hours.append(summary.training_seconds * summary.world_size / 3600)
    if gpu_hours:
        row["gpu hours"] = sum(gpu_hours)
    if run_facts.gated:
        row["gates"] = "open" if all(stage.open for stage in run_facts.gated) else "closed"
    row["settings"] = flat(run_facts.planned.settings)
    return row


def _cell(value: object) -> str:
    if value in (None, ""):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@command
def why(path: str, sets: tuple[str, ...], stage: str | None) -> None:
    """Explain in a sentence why a job does not start, hangs or has ended, and what to do.

    PATH is a recipe (its job on the cluster, or else its latest run here), a run folder, or a file:
    a log, events, or the output of `oc describe`. `-` reads standard input. The word in brackets at
    the end of an answer is a heading of the page "When something goes wrong" (docs/troubles.md).
    """
    file = Path(path)
    follows: tuple[str, ...] = ("doctor",)
    lines: Iterable[str]
    if _is_recipe(path):
        lines, verb = _of_recipe(path, sets, stage)
        follows = (verb, path)
    elif sets or stage:
        raise Stop(
            "`--set` and `--stage` need a recipe.", "Leave them out, or name the recipe.", code=2
        )
    elif (file / RUN).is_file():
        lines = _of_run(find("", path))
        follows = ("report", path)
    elif file.is_dir():
        lines = _of_folder(file)
    elif path == "-":
        text = sys.stdin.buffer.read().decode(errors="replace")
        lines = _of_text(text[-MOST:])
    else:
        lines = _of_text(end_of(file, most=MOST))
    for line in lines:
        say(line)
    subject = "this text" if path == "-" else path
    end(f"This is everything that recipe found about {subject}.", *follows)


def _is_recipe(path: str) -> bool:
    """A recipe, which may be missing; neither a folder, nor a log, nor standard input."""
    file = Path(path)
    if path == "-" or file.is_dir():
        return False
    return file.suffix in (".yaml", ".yml") or not file.is_file()


def _of_recipe(path: str, sets: tuple[str, ...], stage: str | None) -> tuple[Iterable[str], str]:
    """The problem of a recipe's job on the cluster, or else of its latest run here; and the command
    for more of it."""
    recipe, _ = open_recipe(path, sets, look=False)
    nowhere: Stop | None = None
    if recipe.settings.get("openshift"):
        try:
            parts.require("openshift")
            from runner.parts.openshift import commands as cluster_commands

            return cluster_commands.why_on_cluster(recipe, path, stage), "logs"
        except Stop as stop:
            nowhere = stop
    try:
        run = find_run(recipe, None)
    except Stop:
        no_run = f"`{recipe.name}` has no run on this machine."
        older_runs = earlier_runs(recipe)
        if older_runs:
            no_run = f"{no_run} {earlier_sentence(older_runs)}"
        if nowhere:
            raise Stop(f"{no_run} {nowhere.text}") from None
        raise Stop(
            no_run, "Try it with `recipe rehearse`, or list its problems with `recipe check`."
        ) from None
    lines = _of_run(run)
    if nowhere:
        no_job = nowhere.text.splitlines()[0]
        heading = f"{no_job} What follows is about the run on this machine: {run.path}"
        lines = chain([heading], lines)
    return lines, "report"


def _of_text(text: str) -> Iterator[str]:
    """The problem that a log, events or a pod's description show, and the line that shows it."""
    yield from _explain(troubles.diagnose_anything(text))


def _explain(diagnosis: troubles.Diagnosis) -> Iterator[str]:
    sentence = diagnosis.meaning or "No known problem was found in it."
    yield sentence[0].upper() + sentence[1:]
    if diagnosis.trouble:
        yield f"The line that shows it: {diagnosis.line}"
    elif diagnosis.line:
        yield f"Its last error: {diagnosis.line}"


def _of_folder(folder: Path) -> Iterator[str]:
    """The problem in all logs of a folder, because one may explain why another waited. Raises Stop
    without a log."""
    logs = sorted(folder.rglob("*.log"))
    if not logs:
        raise Stop(
            f"`{folder}` is not a run folder, and contains no log.",
            "Name a recipe, a run folder, or a file with a log.",
        )
    tails = [end_of(log, most=MOST) for log in logs]
    yield from _explain(troubles.diagnose(tails, troubles.LOG, troubles.SERVER))


def _of_run(run: RunFolder) -> Iterator[str]:
    """Why a run of this machine or of plain machines ended; or, if it did not, its progress."""
    run_facts = _facts_of(run)
    if not run_facts:
        yield from _of_folder(run.path)  # a run of an older version
        return
    yield from sentences.first(run_facts)[:1]
    yield from sentences.reasons(run_facts)
