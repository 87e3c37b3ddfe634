"""Comparing runs of a pipeline, stage by stage: what each measured, what its gates said, and who overruled them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.execute import opening, recorded, stage_asking
from runner.execute.asking import answer
from runner.execute.runs import RunFolder
from runner.execute.stages import StageFolder
from runner.files import read_json
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe


@dataclass(frozen=True)
class Row:
    """One line of the table: a stage, what is compared, and the text of each run, empty where it has none."""

    stage: str
    what: str
    texts: tuple[str, ...]


def compare(recipe: Recipe, runs: Sequence[RunFolder], questions: Iterable[str] = ()) -> list[Row]:
    """Rows for every stage that trains something, in the order of the pipeline.

    questions: put to each stage of each run that has learned to answer.
    """
    questions = list(questions)
    columns = [dict(_column(recipe, opening.plan_of(recipe, run), run, questions)) for run in runs]
    places: dict[tuple[str, str], None] = {}
    for column in columns:
        places |= dict.fromkeys(column)
    order = [stage.name for stage in opening.plan_of(recipe, runs[0]).stages]
    found = [Row(*place, tuple(column.get(place, "") for column in columns)) for place in places]
    return sorted(found, key=lambda row: order.index(row.stage))


def _column(
    recipe: Recipe, plan: Plan, run: RunFolder, questions: Sequence[str]
) -> Iterator[tuple[tuple[str, str], str]]:
    """What one run says of each stage, by stage and name."""
    for stage in plan.stages:
        if stage.engine == "runner":
            continue
        folder = StageFolder(plan, stage)
        yield (stage.name, "state"), folder.state.get("status", "not begun")
        summary = read_json(folder.path / "training_summary.json")
        if isinstance(summary, dict):
            yield from (((stage.name, what), text) for what, text in _trained(summary))
        yield from (((stage.name, what), text) for what, text in _measured(plan, run, stage))
        if folder.finished and stage_asking.converses(stage):
            for question in questions:
                _, chat = stage_asking.chats(recipe, plan, run, stage)
                yield (stage.name, f"answer to “{question}”"), answer(chat, question) or "(nothing)"


def _trained(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "step", f"{summary['steps']:,}"
    yield "tokens", f"{summary['tokens']:,}"
    yield "training", f"{summary['training_seconds']:.0f} s"
    for what, name in (("validation loss", "validation_loss"), ("prefers the better answer", "preference_accuracy")):
        first, last = summary.get(f"first_{name}"), summary.get(f"last_{name}")
        if first is not None and last is not None:
            yield what, f"{first:.4g} → {last:.4g}"


def _measured(plan: Plan, run: RunFolder, stage: Stage) -> Iterator[tuple[str, str]]:
    """Recorded metrics, the verdict of each gate, and a promotion against them."""
    if not stage.gates:
        return
    record = recorded.record(plan, stage)
    metrics = record.get("metrics") if isinstance(record, dict) else None
    old = "" if recorded.is_current(plan, run, stage) else "  (of something else than lies there now)"
    for name, value in sorted((metrics if isinstance(metrics, dict) else {}).items()):
        yield name, f"{value:.6g}{old}" if isinstance(value, int | float) else f"{value}{old}"
    for verdict in recorded.verdicts(plan, run, stage):
        said = "holds" if verdict.holds else f"MISSED: got {verdict.got}, {verdict.why}"
        yield f"gate {verdict.metric} {verdict.wanted}", said
    if promotion := recorded.promotion(plan, run, stage):
        yield "promotion", "\n".join(line.strip() for line in recorded.promotion_lines(promotion))
