"""Metrics and gates in recipes: which metrics exist and which values are possible; rules for gates
and `evaluation:`; the gates and evaluation of each stage; and their substitutes in a rehearsal."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any

from runner import catalog, scenarios
from runner.parts.contract import Measurable
from runner.plan import Evaluation, Gate
from runner.recipe.document import Path_
from runner.recipe.overrides import substitute
from runner.recipe.recipe import Override, Recipe
from runner.tools import packaged
from runner.tools.problem import (
    ALIKE,
    Problem,
    Stop,
    did_you_mean,
    listed,
    nearest,
    setting,
)

# Which kinds of metrics there are, and which each stage makes.
METRICS: Mapping[str, Any] = packaged.toml(__file__, "metrics.toml")
PREFERRED = ("preference_accuracy", "preference_margin")
# the mean reward of answers to held-out prompts; after a dot, the mean score of one reward
REWARD = "reward"
ACCURACY = (
    "accuracy"  # the share of correct answers or images; after a dot, that of one kind or class
)
GENERATED = "generated_tokens"
GRADED = (
    "taught_answers",
    "new_answers",
)  # shares of right answers, to questions of training rows and of held-out rows
# The beginning of lm-eval's scores. lm-eval says whether more is better; all other compared metrics
# are losses.
SCORE = "lm_eval."

HOLDS: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_GATE = re.compile(r"(\S+) (<|<=|>|>=) (\S+)\Z")
_RISE = re.compile(r"loss_rise\.([0-9]+)\Z")


def parse(text: str) -> Gate:
    """`perplexity < 15` as a Gate. Raises ValueError for any other text, which the schema
    refuses."""
    match = _GATE.match(text)
    if not match:
        raise ValueError(text)
    return Gate(match[1], match[2], float(match[3]))


def bounds(metric: str, rewards: Mapping[str, Any] = MappingProxyType({})) -> tuple[float, float]:
    """The lowest and the highest value of a metric, infinite without a bound. rewards: of the
    recipe."""
    if metric == REWARD and "python" not in rewards:
        weights = [rule["weight"] for rule in rewards.values()]
    else:
        weights = []
    if any(weights):
        return -math.inf, sum(max(0.0, weight) for weight in weights)
    facts = _facts_of(metric)
    return facts.get("lowest", -math.inf), facts.get("highest", math.inf)


def _facts_of(metric: str) -> Mapping[str, Any]:
    """Its row in `metrics.toml`."""
    facts: Mapping[str, Any]
    for facts in METRICS["kinds"]:
        if re.fullmatch(facts["name"], metric):
            return facts
    return {}


def in_words(metric: str, rewards: Mapping[str, object] = MappingProxyType({})) -> str:
    """The possible values of a metric with bounds, for a sentence."""
    lowest, highest = bounds(metric, rewards)
    if math.isinf(highest):
        return f"at least {lowest:g}"
    if math.isinf(lowest):
        return f"at most {highest:g}"
    return f"from {lowest:g} to {highest:g}"


def is_senseless(gate: Gate, rewards: Mapping[str, object] = MappingProxyType({})) -> bool:
    """Whether the threshold is an impossible value of its metric, or no value can pass."""
    lowest, highest = bounds(gate.metric, rewards)
    if gate.metric == REWARD and gate.comparison in ("<", "<="):
        return False  # a rehearsal's own gate, which knows no weights
    if not lowest <= gate.threshold <= highest:
        return True
    holds = HOLDS[gate.comparison]
    return not holds(lowest, gate.threshold) and not holds(highest, gate.threshold)


def rise_window(metric: str) -> int | None:
    """N of `loss_rise.N`, the number of last evaluations; None for another metric."""
    match = _RISE.match(metric)
    if match:
        return int(match[1])
    return None


def producible(
    stage: Measurable, tasks: Iterable[str] = (), before: Collection[str] = ()
) -> list[str]:
    """Metrics of a stage, with placeholders (`N`, `METRIC`, `CLASS`). tasks: lm-eval's; before: of
    the stage before."""
    table = METRICS["made"]
    rows = table["rows"].get(stage.kind, table["rows"]["other"])
    if stage.kind == "images":
        return list(rows["metrics"])
    metrics: list[str] = []
    if stage.validates:
        metrics += rows["metrics"]
        if "parts" in rows:
            for name in stage.asked:
                metrics.append(f"{rows['parts']}.{name}")
    else:
        metrics += rows.get("of_training_rows", ())
    metrics += table["always"]
    shared = [f"lm_eval.{task}.METRIC" for task in tasks]
    if stage.blocks:
        shared = [*table["blocks"], *shared]
    metrics += shared
    for name in shared:
        if name in before:
            metrics.append(f"regression.{name}")
    return metrics


def is_producible(metric: str, producible_metrics: Iterable[str]) -> bool:
    """Whether `metric` is one of these, with a number of at least 2 for `N`, and a word for
    `METRIC` and `CLASS`."""
    window = rise_window(metric)
    if window is not None:
        return window >= 2 and "loss_rise.N" in producible_metrics
    return any(
        re.fullmatch(re.sub("METRIC|CLASS", r"[A-Za-z0-9_,-]+", re.escape(name)), metric)
        for name in producible_metrics
    )


SAMPLE_TASK = "sample"  # the substitute for lm-eval's tasks in a rehearsal
LM_EVAL: Mapping[str, Any] = catalog.table("lm-eval")  # the usual tasks and scores of lm-eval


def written_gates(recipe: Recipe) -> Iterator[tuple[Path_, str]]:
    """Every gate of the recipe, with its place."""
    for index, text in enumerate(recipe.settings.get("gates") or ()):
        yield ("gates", index), text


def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
    """Every gate names a metric that its stage can produce, and compares it in the right direction
    with a possible value."""
    metrics = _producible_metrics(recipe)
    for place, text in written_gates(recipe):
        if not isinstance(text, str) or metrics is None:
            continue  # refused by the schema already
        gate = parse(text)
        if not math.isfinite(gate.threshold):
            yield recipe.document.problem(
                place,
                f"`{text}` compares with an infinite number, so this gate has no meaning.",
                "Write a finite number.",
            )
            continue
        if not is_producible(gate.metric, metrics):
            yield from _no_metric(recipe, place, gate.metric, metrics)
        elif is_senseless(gate, recipe.settings.get("rewards") or {}):
            yield _without_effect(recipe, place, text, gate.metric)
        yield from _unusual_score(recipe, place, text, gate.metric)
        yield from _wrong_way(recipe, place, text, gate)


def _producible_metrics(recipe: Recipe) -> list[str] | None:
    """The metrics that gates may name; None if nothing is measured."""
    tasks = (recipe.settings.get("evaluation") or {}).get("tasks") or ()
    before: list[str] = []
    # Of the last stage of the recipes before this one that have gates.
    for earlier in recipe.earlier:
        measured_before = scenarios.measurable(earlier)
        if measured_before and any(written_gates(earlier)):
            before = producible(measured_before, tasks)
    measured_here = scenarios.measurable(recipe)
    if measured_here is None:
        return None
    return producible(measured_here, tasks, before)


def _no_metric(
    recipe: Recipe, place: Path_, metric: str, metrics: Sequence[str]
) -> Iterator[Problem]:
    task = _TASK.match(metric)
    if task and task[1] in misspelt_tasks(recipe).values():
        return  # the list of tasks has the problem
    owner = "This stage" if recipe.is_stage else "This recipe"
    message = (
        f"{owner} does not produce the metric `{metric}`, so this gate would never open.",
        f"{did_you_mean(metric, metrics)}It produces {listed(metrics)}.",
    )
    yield recipe.problem(place, *message)


def _without_effect(recipe: Recipe, place: Path_, text: str, metric: str) -> Problem:
    meaning = in_words(metric, recipe.settings.get("rewards") or {})
    message = (
        f"`{metric}` is {meaning}, so `{text}` holds for every model or for none.",
        "Write a value that some models reach and others miss. A share of 60 % is 0.6.",
    )
    return recipe.document.problem(place, *message)


def _unusual_score(recipe: Recipe, place: Path_, text: str, metric: str) -> Iterator[Problem]:
    usual_scores = LM_EVAL["scores"]
    score = metric.rpartition(".")[2].partition(",")[0]
    if ".lm_eval." not in f".{metric}" or score in usual_scores:
        return
    near = nearest(score, usual_scores, 0.8)
    if near:
        suggestion = text.replace(f".{score}", f".{near}", 1)
        message = (
            f"`{score}` is not a usual score of lm-eval, but `{near}` is. A score that no task has opens no gate.",
            f"Write `{suggestion}`, if you mean that one.",
        )
        yield recipe.note(place, *message)


def _wrong_way(recipe: Recipe, place: Path_, text: str, gate: Gate) -> Iterator[Problem]:
    better = _facts_of(gate.metric).get("better")
    worse = "less" if gate.comparison in (">", ">=") else "more"
    if better == worse:
        opposite = gate.comparison.translate(str.maketrans("<>", "><"))
        message = (
            f"For `{gate.metric}`, {better} is better, but `{text}` opens for worse models.",
            f"Write `{gate.metric} {opposite} {gate.threshold:g}`.",
        )
        yield recipe.note(place, *message)


_TASK = re.compile(r"(?:regression\.)?lm_eval\.([^.]+)\.")


def _tasks(recipe: Recipe) -> Sequence[str]:
    """The tasks of lm-eval that the recipe names."""
    evaluation = recipe.settings.get("evaluation") or {}
    return evaluation.get("tasks") or ()


def misspelt_tasks(recipe: Recipe) -> dict[str, str]:
    """Tasks of `evaluation.tasks` that no gate names, by the similar task that gates name: the list
    is wrong if several gates agree, or if the gates' name is a usual one. Stages share the tasks,
    so gates of earlier stages count."""
    tasks = _tasks(recipe)
    gated = []
    for of_recipe in (*recipe.earlier, recipe):
        for _, text in written_gates(of_recipe):
            match = isinstance(text, str) and _TASK.match(text)
            if match:
                gated.append(match[1])
    unusual = [task for task in tasks if task not in gated and task not in LM_EVAL["tasks"]]
    misspelt: dict[str, str] = {}
    for task in dict.fromkeys(gated):
        is_right = gated.count(task) > 1 or task in LM_EVAL["tasks"]
        near = nearest(task, unusual)
        if near and is_right and task not in tasks:
            misspelt[near] = task
    return misspelt


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The file that replaces lm-eval's tasks exists."""
    sample_task = (recipe.settings.get("evaluation") or {}).get("sample_task")
    if not sample_task:
        return
    file = recipe.folder / sample_task
    if not file.is_file():
        yield recipe.problem(
            "evaluation.sample_task",
            f"The file `{file}` does not exist.",
            "Check the path; it is relative to the recipe's folder.",
        )


def tasks(recipe: Recipe) -> Iterator[Problem]:
    """Tasks have lm-eval's names, the same as in the gates."""
    misspelt = misspelt_tasks(recipe)
    for index, task in enumerate(_tasks(recipe)):
        place = ("evaluation", "tasks", index)
        gates_task = misspelt.get(task)
        if gates_task:
            yield recipe.problem(
                place,
                f"`{task}` is measured, but the gates ask for `{gates_task}`, so they would never open.",
                f"Write `{gates_task}`.",
            )
        elif task not in LM_EVAL["tasks"]:
            near = nearest(task, LM_EVAL["tasks"], ALIKE)
            if near:
                yield recipe.note(
                    place,
                    f"`{task}` is not a usual task of lm-eval, but `{near}` is.",
                    f"Write `{near}`, if you mean that one. Otherwise leave the line as it is.",
                )


def measured(
    recipe: Recipe, evaluation: Evaluation, has_gates: bool
) -> tuple[tuple[Gate, ...], Evaluation]:
    """The gates of a stage, and its evaluation. has_gates: as in `common.measured`."""
    texts = recipe.settings.get("gates") if has_gates else None
    conditions = tuple(map(parse, texts or ()))
    chosen = recipe.settings.get("evaluation")
    evaluation = replace(evaluation, metrics=tuple(gate.metric for gate in conditions))
    if chosen is None:
        return conditions, evaluation
    tasks = tuple(chosen.tasks or ())
    sample_file = None
    # In a rehearsal the questions are in a file; otherwise they are on the hub.
    if tasks == (SAMPLE_TASK,) and chosen.sample_task:
        sample_file = str(recipe.folder / chosen.sample_task)
    return conditions, replace(
        evaluation,
        tasks=tasks,
        sample_task=sample_file,
        limit=chosen.limit,
        batch_size=chosen.batch_size,
        prompt=chosen.prompt,
        seed=recipe.data.seed,
    )


def in_rehearsal(recipe: Recipe) -> Iterator[Override]:
    """Gates with thresholds for a tiny model, and a sample task for tasks of the hub. Raises Stop
    if it has no file."""
    section = recipe.settings.get("evaluation") or {}
    tasks = section.get("tasks") or ()
    if tasks and not section.get("sample_task"):
        raise Stop(
            recipe.problem(
                "evaluation.tasks",
                "A rehearsal downloads nothing, and it has no replacement for these tasks.",
                "Name a file with questions and choices under `evaluation.sample_task`.",
            )
        )
    if tasks:
        yield substitute(
            "evaluation.tasks", [SAMPLE_TASK], "a task of the same kind in a local file"
        )
    for home, text in written_gates(recipe):
        gate = rehearsed(parse(text))
        for task in tasks:
            gate = replace(
                gate, metric=gate.metric.replace(f"lm_eval.{task}.", f"lm_eval.{SAMPLE_TASK}.")
            )
        if str(gate) != str(parse(text)):
            yield substitute(
                setting(home),
                str(gate),
                "it is measured as in the real run, and a tiny model need not be good",
            )


ANYTHING = 10_000.0  # more than every loss, perplexity and margin of a tiny model


def rehearsed(gate: Gate) -> Gate:
    """A gate that passes for a tiny model with random weights if its metric is measured and the
    perplexity falls."""
    if gate.metric == GENERATED:
        return gate
    more = gate.comparison in (">", ">=")
    if gate.metric == "improvement.perplexity" and more:
        return replace(gate, threshold=min(gate.threshold, 0.1))
    lowest, highest = bounds(gate.metric)
    metric = gate.metric
    if rise_window(metric):
        metric = "loss_rise.2"  # a rehearsal may have no more evaluations than two
    if more:
        return Gate(metric, ">=", max(lowest, -ANYTHING))
    return Gate(metric, "<=", min(highest, ANYTHING))


RULES = (tasks, gate_metrics)
FILE_RULES = (sample_task,)
