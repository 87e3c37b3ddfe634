"""Page: facts of one run, or of several side by side, as one HTML file; and where a run's recipe
comes from."""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from runner import __version__
from runner.parts.evaluate import gates
from runner.parts.report import charts, sentences
from runner.parts.report.facts import Curve, Point, RunFacts, StageFacts
from runner.plan import Plan
from runner.recipe.document import differing, flat
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools import packaged
from runner.tools.files import write_text
from runner.tools.problem import Stop, Tell
from runner.tools.run_files import PAGE

HERE = Path(__file__).parent


def render(runs: Sequence[RunFacts]) -> str:
    """The page of one run, or of several. Raises ModuleNotFoundError if the extra `report` is not
    installed."""
    from markupsafe import Markup

    script = (HERE / "hover.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    comparison = None
    if len(runs) > 1:
        comparison = together(runs)
    facts: dict[str, Any] = {
        "charts": charts,
        "say": sentences,
        "run": runs[0],
        "runs": runs,
        "together": comparison,
        "version": __version__,
        "style": Markup((HERE / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "digest": digest,
    }
    return sentences.in_template("page.html.jinja").render(facts)


def of_runs(*runs: RunFolder) -> str:
    return render(list(map(RunFacts, runs)))


def together(runs: Sequence[RunFacts]) -> Mapping[str, object]:
    """Several runs side by side, for the template: names, curves by stage, and rows of different
    settings, results and answers with a text for each run. Runs of one name are distinguished by
    their folders."""
    names = tuple(run.shown for run in runs)
    results: list[tuple[str, str, Sequence[str]]] = []
    questions: list[tuple[str, str, Sequence[str]]] = []
    curves: list[tuple[str, list[Curve]]] = []
    for name in dict.fromkeys(stage.name for run in runs for stage in run.trained):
        stages = [_stage_named(run, name) for run in runs]
        for figure, values in _different_results(stages):
            results.append((name, figure, values))
        for question, texts in _answers(stages):
            questions.append((name, question, texts))
        curves.append((name, list(_curves(runs, names, name))))
    return {
        "names": names,
        "curves": curves,
        "settings": differing([_settings(run) for run in runs], ""),
        "results": results,
        "questions": questions,
    }


def _settings(run: RunFacts) -> dict[str, str]:
    """The settings that a run used."""
    settings = flat(run.planned.settings)
    for name, _, after, _ in run.substitutions:
        settings[name] = after
    return settings


def _stage_named(run: RunFacts, name: str) -> StageFacts | None:
    for stage in run.trained:
        if stage.name == name:
            return stage
    return None


def _different_results(
    stages: Sequence[StageFacts | None],
) -> Sequence[tuple[str, Sequence[str]]]:
    """The figures of a stage that differ between runs, with the value of each run."""
    columns = list[dict[str, str]]()
    for stage in stages:
        columns.append(dict(_figures(stage)) if stage else {})
    return differing(columns)


def _answers(stages: Sequence[StageFacts | None]) -> Iterator[tuple[str, list[str]]]:
    """Each question that a stage was asked, with the answer of each run; empty for none."""
    columns: list[dict[str, str]] = []
    for stage in stages:
        answers = stage.answers if stage else ()
        columns.append({answer["question"]: answer["after"] for answer in answers})
    questions = chain.from_iterable(columns)
    for question in dict.fromkeys(questions):
        yield question, [column.get(question, "") for column in columns]


def _curves(runs: Sequence[RunFacts], names: Sequence[str], stage: str) -> Iterator[Curve]:
    by_title: dict[tuple[str, str], dict[str, tuple[Point, ...]]] = {}
    for run, name in zip(runs, names, strict=True):
        facts = _stage_named(run, stage)
        if not facts:
            continue
        for curve in facts.curves:
            lines = by_title.setdefault((curve.title, curve.unit), {})
            for line, points in curve.lines.items():
                if len(curve.lines) > 1:
                    lines[f"{name}, {line}"] = points
                else:
                    lines[name] = points
    for (title, unit), lines in by_title.items():
        yield Curve(title, unit, lines)


def _figures(stage: StageFacts) -> Iterator[tuple[str, str]]:
    if stage.summary:
        yield from sentences.results(stage)
    yield "state", stage.status
    if stage.peak_gib is not None:
        yield "GPU memory of tensors", f"{stage.peak_gib:.2f} GiB"
    for name, value in stage.measurement.metrics.items():
        yield name, gates.shown(value)


def leave(run: RunFolder, tell: Tell, plan: Plan | None = None) -> None:
    """Writes the page of a run into its folder, and reports its path or why there is none. It never
    makes a run fail. plan: as in RunFacts."""
    if not find_spec("pydantic"):
        tell(f"The run has no result page: {packaged.install('report')}")
        return
    try:
        facts = RunFacts(run, plan)
        if not any(stage.state for stage in facts.stages):
            return
        write_text(run.path / PAGE, render([facts]))
    except Exception as error:  # after hours of training, a page must not decide the exit code
        tell(
            f"The result page failed ({type(error).__name__}: {error}). `recipe report {run.shown}` tries again."
        )
        return
    tell(f"The result page is {run.shown / PAGE}")


def in_pod(folder: StageFolder, tell: Tell) -> None:
    """The same on the claim, where no plan is on record. What a recipe's file says besides is not
    there either; `fetch` makes the page again."""
    if find_spec("pydantic"):
        leave(folder.run, tell, folder.plan)


@contextmanager
def at_the_end(run: RunFolder, tell: Tell) -> Iterator[None]:
    """Writes the page of a run after the block, also after a failed run."""
    try:
        yield
    except Stop as stop:
        # A refusal before the run began is not about the run.
        if stop.text == run.state.fault:
            leave(run, tell)
        raise
    leave(run, tell)
