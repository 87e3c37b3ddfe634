"""`recipe report` writes a page about a run, `recipe runs` compares several, and `recipe why`
explains why one ended."""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from runner import parts
from runner.catalog import troubles
from runner.commands import show
from runner.commands.options import command, end, open_recipe, say, table
from runner.parts.report import facts, page, sentences
from runner.recipe.document import differing, flat
from runner.run.launch import end_of
from runner.run.run_folder import RunFolder, all_here, find
from runner.tools.files import write_text
from runner.tools.problem import Stop, worded
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
        shown = os.path.relpath(file)
    else:
        shown = str(file)
    say(shown)
    end(f"The page is {shown}. Open it in a browser, or send it.", "chat", recipe, "--page")


# The columns of `recipe runs`. The settings that differ follow.
COLUMNS = ("folder", "recipe", "kind", "status", "changed", "loss", "gpu hours", "gates")


@command
def runs(name: str | None, sort: str, namespace: str | None, paged: bool, style: str) -> None:
    """Compare the runs below `runs/` here: state, validation loss, GPU hours, gates, and the
    settings that differ.

    Rehearsals, the trials of a search and runs that `recipe fetch` brought from a cluster are among
    them.
    """
    begins = f"{name}-" if name else ""
    found = [(run, _known(run)) for run in all_here() if f"{run.state.recipe}-".startswith(begins)]
    with_page = [known for _, known in found if known]
    rows = [_row(run, known) for run, known in found]
    if namespace is not None:
        rows += (
            row
            for row in parts.hook("runs_on_cluster")(namespace)
            if f"{row['recipe']}-".startswith(begins)
        )
        rows.sort(key=itemgetter("changed"), reverse=True)
    if not rows or (paged and not with_page):
        of = f" of a recipe `{name}`" if name else ""
        if namespace is None or rows:
            nor = ""
        else:
            nor = ", and no jobs in the namespace"
        raise Stop(
            f"There are no runs{of} below this folder{nor}.",
            "`recipe run` and `recipe rehearse` make them.",
        )
    if sort != "changed":
        rows.sort(key=lambda row: math.inf if row[sort] is None else row[sort])
    for row in rows:
        # Only the settings that tell runs apart.
        row["settings"] = {
            setting: value for setting, value in row["settings"].items() if setting not in page.OWN
        }
    alike = name or len({row["recipe"] for row in rows}) == 1
    # The settings of a job that somebody else sent are unknown.
    known_settings = [row["settings"] for row in rows if row["settings"]]
    if alike:
        tried = [name for name, _ in differing(known_settings, "")]
    else:
        tried = []
    if style == "json":
        say(json_text(rows))
    else:
        cells = (
            [
                *(_cell(row[name]) for name in COLUMNS),
                *(row["settings"].get(name, "") for name in tried),
            ]
            for row in rows
        )
        table([[*map(str.upper, COLUMNS), *tried], *cells])
    if paged:
        write_text(Path("runs") / PAGE, page.render(with_page))
    number = len(with_page if paged else rows)
    if number == 1:
        count = "1 run"
        are = "is"
    else:
        count = f"{number} runs"
        are = "are"
    if paged:
        what = f"The page about {count} is runs/{PAGE}."
    else:
        what = f"{count} {are} here."
    here = [row["folder"] for row in rows if row["kind"] != "job"]
    end(what, *(("report", here[0]) if here else ("status", "RECIPE")))


def _known(run: RunFolder) -> facts.RunFacts | None:
    """The facts of a run; None if it has no plan."""
    with suppress(Stop):
        return facts.RunFacts(run)
    return None


def _row(run: RunFolder, known: facts.RunFacts | None) -> dict[str, Any]:
    if known:
        done = [stage.summary for stage in known.trained if stage.summary]
    else:
        done = []
    gpus = [summary.training_seconds * summary.world_size / 3600 for summary in done if summary.gpu]
    gated = known.gated if known else ()
    return {
        **show.run_row(run),
        "loss": done[-1].best_validation_loss if done else None,
        "gpu hours": sum(gpus) if gpus else None,
        "gates": "" if not gated else "open" if all(stage.open for stage in gated) else "closed",
        "settings": flat(known.planned.settings) if known else {},
    }


def _cell(value: Any) -> str:
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
    given = Path(path)
    follows: tuple[str, ...] = ("doctor",)
    lines: Iterable[str]
    if (
        not given.is_dir()
        and path != "-"
        and (given.suffix in (".yaml", ".yml") or not given.is_file())
    ):
        lines, verb = _of_recipe(path, sets, stage)
        follows = (verb, path)
    elif sets or stage:
        raise Stop(
            "`--set` and `--stage` need a recipe.", "Leave them out, or name the recipe.", code=2
        )
    elif given.is_dir():
        is_run = (given / RUN).is_file()
        if is_run:
            lines = _of_run(find("", path))
            follows = ("report", path)
        else:
            lines = _of_folder(given)
    elif path == "-":
        lines = _of_text(sys.stdin.buffer.read().decode(errors="replace")[-MOST:])
    else:
        lines = _of_text(end_of(given, most=MOST))
    for line in lines:
        say(line)
    end(
        f"This is everything that recipe found about {'this text' if path == '-' else path}.",
        *follows,
    )


def _of_recipe(path: str, sets: tuple[str, ...], stage: str | None) -> tuple[Iterable[str], str]:
    """The problem of a recipe's job on the cluster, or else of its latest run here; and the command
    for more of it."""
    recipe, _ = open_recipe(path, sets, look=False)
    nowhere: Stop | None = None
    if recipe.settings.get("openshift"):
        try:
            return cast(Iterable[str], parts.hook("why_on_cluster")(recipe, path, stage)), "logs"
        except Stop as stop:
            nowhere = stop
    try:
        run = find(recipe.name, None)
    except Stop:
        none = f"`{recipe.name}` has no run on this machine."
        hint = "Try it with `recipe rehearse`, or list its problems with `recipe check`."
        raise (Stop(f"{none} {nowhere.text}") if nowhere else Stop(none, hint)) from None
    here = f"What follows is about the run on this machine: {run.path}"
    return chain(
        [f"{nowhere.text.splitlines()[0]} {here}"] if nowhere else [], _of_run(run)
    ), "report"


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
        raise Stop(*worded("report.no-log", folder=folder))
    yield from _explain(
        troubles.diagnose([end_of(log, most=MOST) for log in logs], troubles.LOG, troubles.SERVER)
    )


def _of_run(run: RunFolder) -> Iterator[str]:
    """Why a run of this machine or of plain machines ended; or, if it did not, its progress."""
    told = _known(run)
    if not told:
        yield from _of_folder(run.path)  # a run of an older version
        return
    yield from sentences.first(told)[:1]
    yield from sentences.reasons(told)
