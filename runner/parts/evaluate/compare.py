"""Comparing runs, stage by stage: what each measured, what its gates said, and who overruled them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runner.parts.evaluate import gates
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.pipeline import OUT_OF_TIME
from runner.run.run_folder import RunFolder
from runner.run.stage_folder import StageFolder
from runner.trainer.summary import Summary


@dataclass(frozen=True)
class Row:
    """One line of the table: a stage, what is compared, and the text of each run, empty where it has none."""

    stage: str
    what: str
    texts: tuple[str, ...]


def compare(recipe: Recipe, runs: Sequence[RunFolder], questions: Iterable[str] = ()) -> list[Row]:
    """Rows for every stage that trains something, in the order of the plan.

    questions: put to each stage of each run that has learned to answer.
    """
    questions = list(questions)
    columns = [dict(_column(recipe, inference.plan_of(recipe, run), questions)) for run in runs]
    places: dict[tuple[str, str], None] = {}
    for column in columns:
        places |= dict.fromkeys(column)
    order = [stage.name for stage in inference.plan_of(recipe, runs[0]).stages]
    rows = [Row(*place, tuple(column.get(place, "") for column in columns)) for place in places]
    return sorted(rows, key=lambda row: order.index(row.stage))


def _column(recipe: Recipe, plan: Plan, questions: Sequence[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """What one run says of each stage, by stage and name."""
    for stage in plan.stages:
        if not stage.trains:
            continue
        folder = StageFolder(plan, stage)
        status = folder.state.status
        yield (stage.name, "state"), status if status in ("not begun", "finished", OUT_OF_TIME) else "not finished"
        if folder.summary is not None:
            yield from (((stage.name, what), text) for what, text in _trained(folder.summary))
        yield from (((stage.name, what), text) for what, text in _measured(folder))
        if questions and folder.finished and stage.config["recipe_runner"].get("demo", {}).get("chat"):
            _, chat = inference.models(recipe, folder)
            for question, answer in zip(questions, inference.answers_of(chat, questions), strict=True):
                yield (stage.name, f"answer to “{question}”"), answer or "(nothing)"


def _trained(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "step", f"{summary.steps:,}"
    if summary.tokens:
        yield "tokens", f"{summary.tokens:,}"
    yield "training", f"{summary.training_seconds:.0f} s"
    for what, first, last in (
        ("validation loss", summary.first_validation_loss, summary.last_validation_loss),
        ("prefers the better answer", summary.first_preference_accuracy, summary.last_preference_accuracy),
    ):
        if first is not None and last is not None:
            yield what, f"{first:.4g} → {last:.4g}"
    if summary.best_accuracy is not None:
        yield "best validation accuracy", f"{summary.best_accuracy:.1%}"


def _measured(folder: StageFolder) -> Iterator[tuple[str, str]]:
    """Recorded metrics, the verdict of each gate, and a person's override of them."""
    known = gates.record(folder)
    old = "" if gates.current(folder) else "  (of something else than lies there now)"
    for name, value in sorted(known.metrics.items()) if isinstance(known, gates.Measurement) else ():
        yield name, f"{gates.shown(value)}{old}"
    for verdict in gates.verdicts(folder) if folder.stage.gates else ():
        said = "holds" if verdict.holds else f"MISSED: got {verdict.got}, {verdict.why}"
        yield f"gate {verdict.metric} {verdict.threshold}", said
    if override := gates.promotion(folder):
        yield "promotion", "\n".join(line.strip() for line in override.lines)
