"""The commands `recipe evaluate`, `gate`, `promote` and `compare`: an evaluation as text, Markdown
or JSON; and runs side by side, stage by stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from runner import parts
from runner.commands.options import command, end, open_recipe, say
from runner.parts.evaluate import gates
from runner.parts.evaluate.gates import GateVerdict, Measurement
from runner.parts.evaluate.metrics import METRICS, SCORE
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.pipeline import OUT_OF_TIME
from runner.run.run_folder import RunFolder, StageFolder, find
from runner.tools.files import read_json
from runner.tools.problem import Stop, listed, worded
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
        raise Stop(
            *worded("evaluate.url-or-checkpoint", option="--url" if url else "--evalhub"), code=2
        )
    judged: list[GateVerdict] | None = None
    if hub:
        folder, found = parts.hook("judged_at")(
            hub, url, recipe, stage, lambda line: say(line, err=True)
        )
        judged = [
            gates.verdict_on(gate, found)
            for gate in folder.stage.gates
            if gate.metric.startswith(SCORE)
        ]
        holds = found.metrics and all(one.holds for one in judged)
        ended = [
            "EvalHub has measured. Nothing was recorded, so no gate opens or closes.",
            "evaluate",
            path,
        ]
    elif url:
        folder = inference.folder_of(recipe, run_dir, stage)
        judged = []
        holds = True
        found = parts.hook("models_at")(url, recipe, stage).measure(folder)
        ended = [
            f"The model at {url} was evaluated. Nothing was recorded.",
            "compare",
            path,
            "--url",
            url,
        ]
    else:
        folder = inference.folder_of(recipe, run_dir, stage)
        if checkpoint and not Path(checkpoint).exists():
            raise Stop(*worded("evaluate.no-checkpoint", checkpoint=checkpoint))
        with folder.run.lock():
            found = gates.measure(folder, Path(checkpoint).resolve() if checkpoint else None)
        gated = bool(folder.stage.gates)
        holds = checkpoint or not gated or gates.opened(folder)[0]
        if checkpoint:
            passed = "a checkpoint opens no gate"
        else:
            passed = "all gates passed"
        if not holds:
            said = "a gate is closed"
        elif gated:
            said = passed
        else:
            said = "the stage has no gates"
        ended = [f"The model of stage `{folder.stage.name}` was evaluated: {said}."]
        if holds:
            ended += ["compare", path]
        else:
            ended += ["gate", path, folder.stage.name]
    say(shown(folder, found, form, judged))
    if form == "text":
        end(*ended)
    if holds:
        return 0
    return 1


@command
def gate(path: str, stage: str | None, sets: tuple[str, ...], run_dir: str | None) -> int:
    """Show whether the gate after a stage is open (exit code 0) or closed (exit code 1), from the
    recorded evaluation.

    STAGE is a stage of a pipeline. Default: the last stage that has a model.
    """
    recipe, _ = open_recipe(path, sets, look=False)
    folder = inference.folder_of(recipe, run_dir, stage)
    if not folder.stage.gates:
        gated = [one.name for one in folder.plan.stages if one.gates]
        if gated:
            say(f"Stages with a gate: {listed(gated)}.")
        end(worded("evaluate.no-gate", stage=folder.stage)[0], "explain", "gates")
        return 1
    is_open, lines = gates.described(folder, look=True)
    say("\n".join(lines))
    if is_open:
        end(f"The gate after `{folder.stage.name}` is open.", "compare", path)
    elif any(f" {gates.NOTHING} " in line for line in lines):
        end(
            worded("evaluate.value-missing", stage=folder.stage)[0],
            "evaluate",
            path,
            folder.stage.name,
        )
    else:
        said = worded("evaluate.values-missed", stage=folder.stage)[0]
        end(said, "promote", path, folder.stage.name, "--by", "NAME", "--reason", "TEXT")
    if is_open:
        return 0
    return 1


@command
def promote(
    path: str,
    stage: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    by: str,
    reason: str,
    on_cluster: bool,
) -> None:
    """Overrule the closed gate after a stage. Your name, the time, your reason and the missed
    values are recorded."""
    if not by.strip() or not reason.strip():
        raise Stop("A promotion needs a name and a reason.", "--by NAME --reason TEXT", code=2)
    if on_cluster and run_dir:
        raise Stop(*worded("evaluate.run-or-cluster"), code=2)
    done = f"The gate after `{stage}` is overruled, and this is recorded."
    if on_cluster:
        parts.hook("promote_on_cluster")(path, sets, stage, by.strip(), reason.strip(), say)
        end(done, "status", path)
        return
    recipe, _ = open_recipe(path, sets, look=False)
    run = find(recipe.name, run_dir)
    plan = inference.plan_of(recipe, run)
    with run.lock():
        override = gates.promote(StageFolder(plan, plan.stage(stage)), by.strip(), reason.strip())
    say("\n".join(override.lines))
    end(done, "run" if run.kind == "run" else "rehearse", path)


@command
def compare(
    path: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    others: tuple[str, ...],
    questions: tuple[str, ...],
    url: str | None,
) -> None:
    """Compare the answers of the model before and after training, side by side.

    A table before them shows losses, metrics, gates and promotions of each stage, also beside those
    of other runs.
    """
    recipe, _ = open_recipe(path, sets, look=False)
    if url:
        asked = questions or [question for _, question in recipe.demo_questions]
        if not asked:
            asked = inference.questions_of(recipe, inference.folder_of(recipe, run_dir, None))
        server = parts.hook("models_at")(url, recipe)
        before = server.chat(base=True)
        after = server.chat(base=False)
        say(f"before: {before.model} at {server.url}")
        say(f"after:  {after.model} at {server.url}")
        for line in inference.side_by_side(
            _rows(asked, server.answers(before, asked), server.answers(after, asked))
        ):
            say(line)
        end("Both models have answered.", "evaluate", path, "--url", url)
        return
    runs = [find(recipe.name, folder) for folder in (run_dir, *others)]
    names = [f"{run.kind} {number}" for number, run in enumerate(runs, 1)]
    for name, run in zip(names, runs, strict=True):
        say(f"{name}: {run.path}")
    # Several runs have each stage's answers side by side; a single run has them before and after.
    rows = compared(recipe, runs, questions if others else ())
    _show(names, rows)
    if not others:
        _answers(recipe, runs[0], questions)
    losses = [texts for _, what, texts in rows if what == "validation loss"]
    done = f"The models of {listed(str(run.shown) for run in runs)} before and after training were compared."
    if losses:
        lower = f" Validation loss: {' · '.join(losses[-1])} (lower is better)."
    else:
        lower = ""
    end(f"{done}{lower}", "report", *(run.shown for run in runs))


def _answers(recipe: Recipe, run: RunFolder, questions: Sequence[str]) -> None:
    """Prints the answers of a run's model before and after training, to these questions or else the
    demo's."""
    try:
        folder = inference.newest(inference.plan_of(recipe, run))
    except Stop:
        if questions or recipe.demo_questions:
            raise
        return  # there is no question
    asked = questions or inference.questions_of(recipe, folder)
    if not asked:
        return
    before, after = inference.models(recipe, folder)
    say(f"before: {before.model}")
    say(f"after:  {after.model}")
    # The stage has answered these already.
    known = {row["question"]: row for row in read_json(folder.path / ANSWERS) or []}
    new = [question for question in asked if question not in known]
    if new:
        added = _rows(new, inference.answers_of(before, new), inference.answers_of(after, new))
        known |= {row["question"]: row for row in added}
    for line in inference.side_by_side(known[question] for question in asked):
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
        for number, (_, what, texts) in enumerate(lines):
            table.add_row(
                *(Text(printable(text)) for text in ("" if number else stage, what, *texts))
            )
    Console(width=None if Console().is_terminal else 120).print(table)


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
        for stage in (stage for stage in plan.stages if stage.trains):
            facts = _facts(recipe, StageFolder(plan, stage), questions)
            column |= {(stage.name, what): text for what, text in facts}
        columns.append(column)
    order = [stage.name for stage in plans[0].stages]
    places = dict.fromkeys(chain.from_iterable(columns))
    rows = [(*place, tuple(column.get(place, "") for column in columns)) for place in places]
    return sorted(rows, key=lambda row: order.index(row[0]))


def _facts(
    recipe: Recipe, folder: StageFolder, questions: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """State and results of a stage in one run, recorded metrics, the verdict of each gate, an
    override, and answers."""
    stage = folder.stage
    status = folder.state.status
    yield "state", status if status in ("not begun", "finished", OUT_OF_TIME) else "not finished"
    summary = folder.summary
    if summary is not None:
        words = vars(summary) | {"tokens": summary.tokens or None}
        if summary.answers:
            words |= summary.answers.counts
        yield from (
            (what, text)
            for what, form in METRICS["trained"].items()
            for text in filled([form], words)
        )
    known = gates.record(folder)
    if gates.current(folder):
        old = ""
    else:
        old = "  (of another model than the current one)"
    for name, value in sorted(known.metrics.items()) if isinstance(known, Measurement) else ():
        yield name, f"{gates.shown(value)}{old}"
    for verdict in gates.verdicts(folder) if stage.gates else ():
        if verdict.got == gates.NOTHING:
            got = ""
        else:
            got = f"{verdict.got}, "
        if verdict.holds:
            said = "holds"
        else:
            said = f"MISSED: {got}{verdict.why}"
        yield f"gate {verdict.metric} {verdict.threshold}", said
    override = gates.promotion(folder)
    if override:
        yield "promotion", "\n".join(line.strip() for line in override.lines)
    if questions and folder.finished and stage.config["recipe_runner"].get("demo", {}).get("chat"):
        _, chat = inference.models(recipe, folder)
        for question, answer in zip(questions, inference.answers_of(chat, questions), strict=True):
            yield f"answer to “{question}”", answer or "(nothing)"


def shown(
    folder: StageFolder, measured: Measurement, form: str, judged: list[GateVerdict] | None = None
) -> str:
    """An evaluation with the verdicts on it. form: text, json or markdown; judged: the verdicts on
    an evaluation that opens and closes no gate; None for the recorded ones, which do."""
    recorded = judged is None
    if judged is not None:
        verdicts = judged
    elif folder.stage.gates:
        verdicts = gates.verdicts(folder)
    else:
        verdicts = []
    if verdicts and recorded:
        is_open, override = gates.opened(folder)
    else:
        is_open = True
        override = []
    if form == "json":
        facts = asdict(measured) | (
            {"gates": list(map(asdict, verdicts))} if verdicts or recorded else {}
        )
        return json_text(facts | ({"open": is_open} if recorded else {}))
    sides = (measured.before, measured.metrics)
    names = sorted({*measured.metrics, *measured.before})
    rows = [
        (name, *(gates.shown(side[name]) if name in side else "" for side in sides))
        for name in names
    ]
    words = macros(Path(__file__).with_name("evaluation.jinja"))
    if form == "markdown":
        opens = is_open if recorded else None
        said = words.markdown(
            folder.plan.name, folder.stage.name, measured, rows, verdicts, override, opens
        )
    else:
        if recorded:
            told = gates.described(folder)[1]
        else:
            told = gates.table(verdicts)
        said = words.text(folder.stage.name, measured, rows, told if verdicts else ())
    return str(said).removesuffix("\n")
