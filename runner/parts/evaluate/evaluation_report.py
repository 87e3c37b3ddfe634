"""An evaluation as text, Markdown or JSON; and runs side by side, stage by stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from runner.parts.evaluate import gates
from runner.parts.evaluate.gates import GateVerdict, Measurement
from runner.parts.evaluate.metrics import METRICS
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.pipeline import OUT_OF_TIME
from runner.run.run_folder import RunFolder
from runner.run.stage_folder import StageFolder
from runner.tools.text import filled, json_text, macros


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


def shown(folder: StageFolder, measured: Measurement, form: str, judged: list[GateVerdict] | None = None) -> list[str]:
    """An evaluation with the verdicts on it, by lines. form: text, json or markdown; judged: the verdicts on an
    evaluation that opens and closes no gate; None for the recorded ones, which do."""
    recorded = judged is None
    verdicts = judged if judged is not None else gates.verdicts(folder) if folder.stage.gates else []
    is_open, override = gates.opened(folder) if verdicts and recorded else (True, [])
    if form == "json":
        facts = asdict(measured) | ({"gates": list(map(asdict, verdicts))} if verdicts or recorded else {})
        return json_text(facts | ({"open": is_open} if recorded else {})).split("\n")
    sides = (measured.before, measured.metrics)
    names = sorted({*measured.metrics, *measured.before})
    rows = [(name, *(gates.shown(side[name]) if name in side else "" for side in sides)) for name in names]
    words = macros(Path(__file__).with_name("evaluation.jinja"), cell=_cell)
    if form == "markdown":
        opens = is_open if recorded else None
        said = words.markdown(folder.plan.name, folder.stage.name, measured, rows, verdicts, override, opens)
    else:
        told = gates.described(folder)[1] if recorded else gates.table(verdicts)
        said = words.text(folder.stage.name, measured, rows, told if verdicts else ())
    return str(said).removesuffix("\n").split("\n")


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
