"""The commands `recipe evaluate`, `gate`, `promote` and `compare`: an evaluation as text, Markdown
or JSON; and runs side by side, stage by stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from runner import parts
from runner.commands.options import command, end, open_recipe, say
from runner.parts.evaluate import gates
from runner.parts.evaluate.gates import GateVerdict, Measurement
from runner.parts.evaluate.metrics import METRICS, SCORE
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.pipeline import OUT_OF_TIME
from runner.run.progress import find_run
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools.files import read_json
from runner.tools.problem import Stop, listed
from runner.tools.run_files import ANSWERS
from runner.tools.text import filled, json_text, macros, printable


@command
def evaluate(
    path: str,
    stage: str | None,
    sets: tuple[str, ...],
    run_dir: str | None,
    checkpoint: str | None,
    url: str | None,
    hub: str | None,
    form: str,
) -> int:
    """Measure the trained model of a run and the original one. The exit code is 1 if a gate is
    closed.

    STAGE is a stage of a pipeline. Default: the last stage that has a model. With `--url`, the
    model of a server is measured on the same rows. With `--evalhub`, EvalHub measures the recipe's
    tasks on the server of `recipe serve --cluster`, or on that of `--url`. These results are
    printed, but not recorded.
    """
    recipe, _ = open_recipe(path, sets, look=False, aside=form != "text")
    if (url or hub) and checkpoint:
        option = "--url" if url else "--evalhub"
        raise Stop(
            f"`{option}` measures a server's model, but `--checkpoint` names one on this machine.",
            "Leave one out.",
            code=2,
        )
    next_command: tuple[str, ...]
    if hub:
        evaluated = _evaluate_at_evalhub(recipe, stage, hub, url)
        next_command = ("evaluate", path)
    elif url:
        evaluated = _evaluate_at_server(recipe, stage, run_dir, url)
        next_command = ("compare", path, "--url", url)
    else:
        folder = inference.folder_of(recipe, run_dir, stage)
        evaluated = _evaluate_here(folder, checkpoint)
        if evaluated.passes:
            next_command = ("compare", path)
        else:
            next_command = ("gate", path, folder.stage.name)
    say(shown(evaluated.folder, evaluated.measured, form, evaluated.verdicts))
    if form == "text":
        end(evaluated.sentence, *next_command)
    if evaluated.passes:
        return 0
    return 1


class Evaluated(NamedTuple):
    """An evaluation by `recipe evaluate`."""

    folder: StageFolder
    measured: Measurement
    verdicts: list[GateVerdict] | None  # without effect on a gate; None if they are recorded
    passes: bool
    sentence: str  # the result, for the end of the command


def _evaluate_at_evalhub(recipe: Recipe, stage: str | None, hub: str, url: str | None) -> Evaluated:
    parts.require("serve")
    from runner.parts.serve import evalhub

    folder, measured = evalhub.measured(hub, url, recipe, stage, lambda line: say(line, err=True))
    verdicts = []
    for gate in folder.stage.gates:
        if gate.metric.startswith(SCORE):
            verdicts.append(gates.verdict_on(gate, measured))
    return Evaluated(
        folder,
        measured,
        verdicts,
        passes=bool(measured.metrics) and all(verdict.holds for verdict in verdicts),
        sentence="EvalHub has measured. Nothing was recorded, so no gate opens or closes.",
    )


def _evaluate_at_server(
    recipe: Recipe, stage: str | None, run_dir: str | None, url: str
) -> Evaluated:
    folder = inference.folder_of(recipe, run_dir, stage)
    parts.require("serve")
    from runner.parts.serve import openai_api

    measured = openai_api.at(url, recipe, stage).measure(folder)
    sentence = f"The model at {url} was evaluated. Nothing was recorded."
    return Evaluated(folder, measured, [], passes=True, sentence=sentence)


def _evaluate_here(folder: StageFolder, checkpoint: str | None) -> Evaluated:
    if checkpoint and not Path(checkpoint).exists():
        raise Stop(
            f"There is no folder `{checkpoint}`.",
            "The checkpoints of a stage are in its folder `checkpoints/`.",
        )
    checkpoint_path = None
    if checkpoint:
        checkpoint_path = Path(checkpoint).resolve()
    with folder.run.lock():
        measured = gates.measure(folder, checkpoint_path)
    passes = True
    if not folder.stage.gates:
        verdict = "the stage has no gates"
    elif checkpoint:
        verdict = "a checkpoint opens no gate"
    elif gates.opened(folder)[0]:
        verdict = "all gates passed"
    else:
        verdict = "a gate is closed"
        passes = False
    sentence = f"The model of stage `{folder.stage.name}` was evaluated: {verdict}."
    return Evaluated(folder, measured, None, passes, sentence)


@command
def gate(path: str, stage: str | None, sets: tuple[str, ...], run_dir: str | None) -> int:
    """Show whether the gate after a stage is open (exit code 0) or closed (exit code 1), from the
    recorded evaluation.

    STAGE is a stage of a pipeline. Default: the last stage that has a model.
    """
    recipe, _ = open_recipe(path, sets, look=False)
    folder = inference.folder_of(recipe, run_dir, stage)
    if not folder.stage.gates:
        gated = [planned.name for planned in folder.plan.stages if planned.gates]
        if gated:
            say(f"Stages with a gate: {listed(gated)}.")
        end(
            f"Stage `{folder.stage.name}` has no gate. Write requirements under `gates`, such as `perplexity < 15`.",
            "explain",
            "gates",
        )
        return 1
    is_open, lines = gates.described(folder, look=True)
    say("\n".join(lines))
    if is_open:
        end(f"The gate after `{folder.stage.name}` is open.", "compare", path)
    elif any(f" {gates.NOTHING} " in line for line in lines):
        end(
            f"The gate after `{folder.stage.name}` is closed: a value is missing. Measure it, or overrule the gate.",
            "evaluate",
            path,
            folder.stage.name,
        )
    else:
        sentence = f"The gate after `{folder.stage.name}` is closed. Improve the stage's training, or overrule the gate."
        end(sentence, "promote", path, folder.stage.name, "--by", "NAME", "--reason", "TEXT")
    if is_open:
        return 0
    return 1


@command
def promote(
    path: str,
    stage: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    person: str,
    reason: str,
    on_cluster: bool,
) -> None:
    """Overrule the closed gate after a stage. Your name, the time, your reason and the missed
    values are recorded."""
    if not person.strip() or not reason.strip():
        raise Stop("A promotion needs a name and a reason.", "--by NAME --reason TEXT", code=2)
    if on_cluster and run_dir:
        raise Stop(
            "`--run` names a run folder of this machine, and `--cluster` the run on the cluster.",
            "Leave out one of the two.",
            code=2,
        )
    done = f"The gate after `{stage}` is overruled, and this is recorded."
    if on_cluster:
        parts.require("openshift")
        from runner.parts.openshift import commands as cluster_commands

        cluster_commands.promote_on_cluster(path, sets, stage, person.strip(), reason.strip(), say)
        end(done, "status", path)
        return
    recipe, _ = open_recipe(path, sets, look=False)
    run = find_run(recipe, run_dir)
    plan = inference.plan_of(recipe, run)
    folder = StageFolder(plan, plan.stage(stage))
    with run.lock():
        override = gates.promote(folder, person.strip(), reason.strip())
    say("\n".join(override.lines))
    verb = "run" if run.kind == "run" else "rehearse"
    end(done, verb, path)


@command
def compare(
    path: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    other_runs: tuple[str, ...],
    questions: tuple[str, ...],
    url: str | None,
) -> None:
    """Compare the answers of the model before and after training, side by side.

    A table before them shows losses, metrics, gates and promotions of each stage, also beside those
    of other runs.
    """
    recipe, _ = open_recipe(path, sets, look=False)
    if url:
        _compare_at_server(recipe, run_dir, questions, url)
        end("Both models have answered.", "evaluate", path, "--url", url)
        return
    runs = [find_run(recipe, folder) for folder in (run_dir, *other_runs)]
    names = [f"{run.kind} {number}" for number, run in enumerate(runs, 1)]
    for name, run in zip(names, runs, strict=True):
        say(f"{name}: {run.path}")
    # Several runs have each stage's answers side by side; a single run has them before and after.
    if other_runs:
        rows = compared(recipe, runs, questions)
        _show(names, rows)
    else:
        rows = compared(recipe, runs)
        _show(names, rows)
        _answers(recipe, runs[0], questions)
    losses = [texts for _, fact, texts in rows if fact == "validation loss"]
    done = f"The models of {listed(str(run.shown) for run in runs)} before and after training were compared."
    if losses:
        lower = f" Validation loss: {' · '.join(losses[-1])} (lower is better)."
    else:
        lower = ""
    end(f"{done}{lower}", "report", *(run.shown for run in runs))


def _compare_at_server(
    recipe: Recipe, run_dir: str | None, questions: Sequence[str], url: str
) -> None:
    """Prints the answers of both models of a server, to these questions or else the recipe's."""
    questions = questions or [question for _, question in recipe.demo_questions]
    if not questions:
        questions = inference.questions_of(recipe, inference.folder_of(recipe, run_dir, None))
    parts.require("serve")
    from runner.parts.serve import openai_api

    server = openai_api.at(url, recipe)
    before = server.chat(base=True)
    after = server.chat(base=False)
    say(f"before: {before.model} at {server.url}")
    say(f"after:  {after.model} at {server.url}")
    rows = _rows(questions, server.answers(before, questions), server.answers(after, questions))
    for line in inference.side_by_side(rows):
        say(line)


def _answers(recipe: Recipe, run: RunFolder, questions: Sequence[str]) -> None:
    """Prints the answers of a run's model before and after training, to these questions or else the
    demo's."""
    try:
        folder = inference.newest(inference.plan_of(recipe, run))
    except Stop:
        if questions or recipe.demo_questions:
            raise
        return  # there is no question
    questions = questions or inference.questions_of(recipe, folder)
    if not questions:
        return
    before, after = inference.models(recipe, folder)
    say(f"before: {before.model}")
    say(f"after:  {after.model}")
    # The stage has answered these already.
    answered = {row["question"]: row for row in read_json(folder.path / ANSWERS) or []}
    new = [question for question in questions if question not in answered]
    if new:
        added = _rows(new, inference.answers_of(before, new), inference.answers_of(after, new))
        answered |= {row["question"]: row for row in added}
    for line in inference.side_by_side(answered[question] for question in questions):
        say(line)


def _rows(
    questions: Iterable[str], before: Iterable[str], after: Iterable[str]
) -> list[dict[str, str]]:
    rows = zip(questions, before, after, strict=True)
    return [{"question": question, "before": old, "after": new} for question, old, new in rows]


# One line of the table: a stage, a fact, and its text for each run, empty if it is missing.
ComparedLine = tuple[str, str, tuple[str, ...]]


def _show(names: Sequence[str], rows: Sequence[ComparedLine]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("stage", "", *names, expand=True)
    for stage, lines in groupby(rows, key=itemgetter(0)):
        table.add_section()
        stage_name = stage
        for _, fact, texts in lines:
            cells = (stage_name, fact, *texts)
            table.add_row(*(Text(printable(cell)) for cell in cells))
            stage_name = ""  # only in the first line of a stage
    width = None if Console().is_terminal else 120
    Console(width=width).print(table)


def compared(
    recipe: Recipe, runs: Sequence[RunFolder], questions: Iterable[str] = ()
) -> list[ComparedLine]:
    """The lines for every stage that trains, in the order of the plan. questions: for stages that
    answer questions."""
    plans = [inference.plan_of(recipe, run) for run in runs]
    questions = list(questions)
    columns = list[dict[tuple[str, str], str]]()
    for plan in plans:
        column = dict[tuple[str, str], str]()
        for stage in plan.stages:
            if stage.trains:
                for fact, text in _facts(recipe, StageFolder(plan, stage), questions):
                    column[(stage.name, fact)] = text
        columns.append(column)
    order = [stage.name for stage in plans[0].stages]
    places = dict.fromkeys(chain.from_iterable(columns))
    rows = []
    for place in places:
        rows.append((*place, tuple(column.get(place, "") for column in columns)))
    return sorted(rows, key=lambda row: order.index(row[0]))


def _facts(
    recipe: Recipe, folder: StageFolder, questions: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """State and results of a stage in one run, recorded metrics, the verdict of each gate, an
    override, and answers."""
    stage = folder.stage
    status = folder.state.status
    if status not in ("not begun", "finished", OUT_OF_TIME):
        status = "not finished"
    yield "state", status
    yield from _training_results(folder)
    yield from _recorded_metrics(folder)
    if stage.gates:
        for verdict in gates.verdicts(folder):
            yield f"gate {verdict.metric} {verdict.threshold}", _in_words(verdict)
    override = gates.promotion(folder)
    if override:
        yield "promotion", "\n".join(line.strip() for line in override.lines)
    demo = stage.config["recipe_runner"].get("demo", {})
    if questions and folder.finished and demo.get("chat"):
        _, chat = inference.models(recipe, folder)
        answers = inference.answers_of(chat, questions)
        for question, answer in zip(questions, answers, strict=True):
            yield f"answer to “{question}”", answer or "(nothing)"


def _training_results(folder: StageFolder) -> Iterator[tuple[str, str]]:
    summary = folder.summary
    if summary is None:
        return
    values = vars(summary) | {"tokens": summary.tokens or None}
    if summary.answers:
        values |= summary.answers.counts
    for fact, form in METRICS["trained"].items():
        for text in filled([form], values):
            yield fact, text


def _recorded_metrics(folder: StageFolder) -> Iterator[tuple[str, str]]:
    measured = gates.record(folder)
    if not isinstance(measured, Measurement):
        return
    remark = "" if gates.current(folder) else "  (of another model than the current one)"
    for name, value in sorted(measured.metrics.items()):
        yield name, f"{gates.shown(value)}{remark}"


def _in_words(verdict: GateVerdict) -> str:
    if verdict.holds:
        return "holds"
    if verdict.got == gates.NOTHING:
        return f"MISSED: {verdict.why}"
    return f"MISSED: {verdict.got}, {verdict.why}"


def shown(
    folder: StageFolder, measured: Measurement, form: str, judged: list[GateVerdict] | None = None
) -> str:
    """An evaluation with the verdicts on it. form: text, json or markdown; judged: the verdicts on
    an evaluation that opens and closes no gate; None for the recorded ones, which do."""
    recorded = judged is None
    verdicts = _recorded_verdicts(folder) if judged is None else judged
    is_open = True
    override: list[str] = []
    if verdicts and recorded:
        is_open, override = gates.opened(folder)
    if form == "json":
        facts: dict[str, Any] = asdict(measured)
        if verdicts or recorded:
            facts["gates"] = [asdict(verdict) for verdict in verdicts]
        if recorded:
            facts["open"] = is_open
        return json_text(facts)
    template = macros(Path(__file__).with_name("evaluation.jinja"))
    plan = folder.plan.name
    stage = folder.stage.name
    rows = _before_and_after(measured)
    if form == "markdown":
        opens = is_open if recorded else None
        text = template.markdown(plan, stage, measured, rows, verdicts, override, opens)
    else:
        lines: list[str] = []
        if verdicts and recorded:
            lines = gates.described(folder)[1]
        elif verdicts:
            lines = gates.table(verdicts)
        text = template.text(stage, measured, rows, lines)
    return str(text).removesuffix("\n")


def _recorded_verdicts(folder: StageFolder) -> list[GateVerdict]:
    if folder.stage.gates:
        return gates.verdicts(folder)
    return []


def _before_and_after(measured: Measurement) -> list[tuple[str, str, str]]:
    """Each metric with its value before and after training; empty if it was not measured."""
    rows: list[tuple[str, str, str]] = []
    for name in sorted({*measured.metrics, *measured.before}):
        before = after = ""
        if name in measured.before:
            before = gates.shown(measured.before[name])
        if name in measured.metrics:
            after = gates.shown(measured.metrics[name])
        rows.append((name, before, after))
    return rows
