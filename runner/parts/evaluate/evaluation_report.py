"""An evaluation as text, Markdown or JSON; and runs side by side, stage by stage."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from runner.parts.evaluate import gates
from runner.parts.evaluate.gates import GateVerdict, Measurement
from runner.parts.evaluate.metrics import METRICS
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.pipeline import OUT_OF_TIME
from runner.run.run_folder import RunFolder
from runner.run.stage_folder import StageFolder
from runner.tools.text import filled


@dataclass(frozen=True)
class ComparedLine:
    """One line of the table: a stage, a fact, and its text for each run, empty if it is missing."""

    stage: str
    what: str
    texts: tuple[str, ...]


def compare(recipe: Recipe, runs: Sequence[RunFolder], questions: Iterable[str] = ()) -> list[ComparedLine]:
    """The lines for every stage that trains, in the order of the plan. questions: for stages that answer questions."""
    plans, questions = [inference.plan_of(recipe, run) for run in runs], list(questions)
    columns = [dict(_column(recipe, plan, questions)) for plan in plans]
    order = [stage.name for stage in plans[0].stages]
    places = dict.fromkeys(chain.from_iterable(columns))
    rows = [ComparedLine(*place, tuple(column.get(place, "") for column in columns)) for place in places]
    return sorted(rows, key=lambda row: order.index(row.stage))


def _column(recipe: Recipe, plan: Plan, questions: Sequence[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """The facts of one run, by stage and name."""
    for stage in plan.stages:
        if not stage.trains:
            continue
        folder = StageFolder(plan, stage)
        status = folder.state.status
        yield (stage.name, "state"), status if status in ("not begun", "finished", OUT_OF_TIME) else "not finished"
        yield from (((stage.name, what), text) for what, text in _recorded(folder))
        if questions and folder.finished and stage.config["recipe_runner"].get("demo", {}).get("chat"):
            _, chat = inference.models(recipe, folder)
            for question, answer in zip(questions, inference.answers_of(chat, questions), strict=True):
                yield (stage.name, f"answer to “{question}”"), answer or "(nothing)"


def _recorded(folder: StageFolder) -> Iterator[tuple[str, str]]:
    """The results of training, recorded metrics, the verdict of each gate, and an override."""
    if (summary := folder.summary) is not None:
        words = vars(summary) | {"tokens": summary.tokens or None}
        yield from ((what, text) for what, form in METRICS["trained"].items() for text in filled([form], words))
    known = gates.record(folder)
    old = "" if gates.current(folder) else "  (of another model than the current one)"
    for name, value in sorted(known.metrics.items()) if isinstance(known, Measurement) else ():
        yield name, f"{gates.shown(value)}{old}"
    for verdict in gates.verdicts(folder) if folder.stage.gates else ():
        got = "" if verdict.got == gates.NOTHING else f"{verdict.got}, "
        said = "holds" if verdict.holds else f"MISSED: {got}{verdict.why}"
        yield f"gate {verdict.metric} {verdict.threshold}", said
    if override := gates.promotion(folder):
        yield "promotion", "\n".join(line.strip() for line in override.lines)


def shown(
    folder: StageFolder, measured: Measurement, form: str, judged: list[GateVerdict] | None = None
) -> Iterator[str]:
    """An evaluation with the verdicts on it. form: text, json or markdown; judged: the verdicts on an evaluation that
    opens and closes no gate; None for the recorded ones, which do."""
    recorded = judged is None
    verdicts = judged if judged is not None else gates.verdicts(folder) if folder.stage.gates else []
    is_open, override = gates.opened(folder) if verdicts and recorded else (True, [])
    if form == "json":
        facts = asdict(measured) | ({"gates": list(map(asdict, verdicts))} if verdicts or recorded else {})
        yield json.dumps(facts | ({"open": is_open} if recorded else {}), indent=2, ensure_ascii=False)
    elif form == "markdown":
        yield from (f"## {folder.plan.name}: `{folder.stage.name}`", "")
        if verdicts and recorded:
            yield from (f"The gate is **{'open' if is_open else 'closed'}**.", "")
        yield from _markdown(measured, verdicts, override)
    else:
        yield f"{folder.stage.name}: {measured.checkpoint}"
        rows = [("metric", "before", "after"), *_rows(measured)]
        wide, wide_before = (max(len(row[column]) for row in rows) for column in (0, 1))
        yield from (f"  {row[0]:<{wide}}  {row[1]:>{wide_before}}  {row[2]}".rstrip() for row in rows)
        yield "  Losses and forgetting are in nats a token: lower is better. Accuracies and improvements are shares, 0 to 1."
        yield from (f"  {name} not measured: {reason}" for name, reason in sorted(measured.missing.items()))
        yield from (f"  {line}" for line in (*_confused(measured), *_counted(measured)))
        if verdicts:
            yield from gates.described(folder)[1] if recorded else gates.table(verdicts)


def _rows(measured: Measurement) -> Iterator[tuple[str, str, str]]:
    for name in sorted({*measured.metrics, *measured.before}):
        sides = (measured.before, measured.metrics)
        before, after = (gates.shown(side[name]) if name in side else "" for side in sides)
        yield name, before, after


def _confused(measured: Measurement) -> Iterator[str]:
    """For each class of images, the wrong class that the model chose most often."""
    for name, seen in measured.confusion.items():
        if others := {other: count for other, count in seen.items() if other != name}:
            most = max(others, key=lambda other: seen[other])
            yield f"{name}: {seen.get(name, 0)} of {sum(seen.values())} correct, most often confused with {most} ({seen[most]})"


def _counted(measured: Measurement) -> Iterator[str]:
    counts = {name.replace("held_out", "held-out").replace("_", " "): count for name, count in measured.counts.items()}
    if counts:
        yield "measured on " + ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _markdown(measured: Measurement, verdicts: list[GateVerdict], override: list[str]) -> Iterator[str]:
    if verdicts:
        rows = [(f"`{one.metric} {one.threshold}`", one.got, one.said) for one in verdicts]
        yield from _grid(("gate", "measured", "verdict"), rows)
        yield from (*(line.strip() for line in override), *([""] if override else []))
    yield from _grid(("metric", "before", "after"), [(f"`{row[0]}`", *row[1:]) for row in _rows(measured)])
    if reasons := sorted(measured.missing.items()):
        yield from _grid(("not measured", "why"), [(f"`{name}`", why) for name, why in reasons])
    if classes := list(measured.confusion):
        seen = [(name, *(str(measured.confusion[name].get(other, "")) for other in classes)) for name in classes]
        yield from _grid(("true class, predicted class", *classes), seen)
    yield from _counted(measured)


def _grid(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""
