"""Gates and `evaluation:` in a recipe: what is wrong with them, what stages get of them, and what stands in for them in a
rehearsal."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner import scenarios
from runner.parts.evaluate import metrics
from runner.plan import Evaluation, Gate
from runner.recipe.document import Path_
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.rehearsal import substitute
from runner.tools.names import ALIKE, did_you_mean, listed, nearest, setting
from runner.tools.problem import Problem, Stop

# What stands in for lm-eval's tasks in a rehearsal.
SAMPLE_TASK = "sample"
# Metrics of which less is better, and more.
_LESS = re.compile(r"(\w+_)?(perplexity|loss)|loss_rise\.\d+|forgetting")
_MORE = re.compile(
    r"accuracy(\..+)?|generated_tokens|preference_\w+|improvement\..+|lm_eval\..+\.(acc|acc_norm|exact_match)(,.+)?"
)
# What lm-eval's tasks score by (lm-eval 0.4, api/metrics.py and the tasks that name their own).
SCORES = (
    *("acc", "acc_norm", "acc_mutual_info", "exact_match", "f1", "mcc", "bleu", "chrf", "ter", "brier_score"),
    *("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "mc1", "mc2", "pass@1"),
    "prompt_level_strict_acc",
)
_OTHER_WAY = str.maketrans("<>", "><")


def written_gates(recipe: Recipe) -> Iterator[tuple[Path_, str]]:
    """Every gate of the recipe, with its place."""
    homes: list[tuple[Path_, Any]] = [(("gates",), recipe.settings.get("gates"))]
    homes += [
        ((name, "gates"), section.get("gates")) for name, section in recipe.sections.items() if section.knows("gates")
    ]
    for home, texts in homes:
        yield from (((*home, index), text) for index, text in enumerate(texts or ()))


def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
    """Every gate names a metric that its stage can produce, and a number that the metric can be."""
    tasks, producible = (recipe.settings.get("evaluation") or {}).get("tasks") or (), dict[str, list[str]]()
    before: list[str] = []
    for section, what in scenarios.measurable(recipe).items():
        before = producible[section] = metrics.producible(what, tasks, before)
    for place, text in written_gates(recipe):
        section = str(place[0]) if len(place) > 2 else ""
        if not isinstance(text, str) or section not in producible:
            continue  # refused by the schema already
        known, metric = producible[section], text.partition(" ")[0]
        try:
            gate = metrics.parse(text)
        except ValueError:
            yield recipe.document.problem(
                place,
                f"`{text}` compares with a number beyond all bounds, so this gate would say nothing.",
                "Write a finite number.",
            )
            continue
        if not metrics.is_producible(metric, known):
            if (asked := _TASK.match(metric)) and asked[1] in misspelt_tasks(recipe).values():
                continue
            owner = f"`{section}`" if section else "This recipe"
            yield recipe.document.problem(
                place,
                f"{owner} cannot produce the metric `{metric}`, so this gate would never open.",
                f"{did_you_mean(metric, known)}It can produce {listed(known)}.",
            )
        elif metrics.is_senseless(gate):
            yield recipe.document.problem(
                place,
                f"`{metric}` is {metrics.in_words(metric)}, so `{text}` says nothing about a model.",
                "Write a number that some models reach and others miss; a share of 60 % is 0.6.",
            )


# Tasks of lm-eval that most people measure by.
USUAL_TASKS = (
    *("hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "boolq", "openbookqa", "mmlu", "gsm8k", "sciq"),
    *("lambada_openai", "truthfulqa_mc1", "truthfulqa_mc2", "commonsense_qa", "ifeval", "wikitext"),
)
_TASK = re.compile(r"(?:regression\.)?lm_eval\.([^.]+)\.")


def misspelt_tasks(recipe: Recipe) -> dict[str, str]:
    """Of `evaluation.tasks` those that no gate asks for, each with the like task that gates ask for and that is not there: where
    several gates agree on a name, or it is a usual one, the list has it wrong."""
    tasks = (recipe.settings.get("evaluation") or {}).get("tasks") or ()
    found = (_TASK.match(text) for _, text in written_gates(recipe) if isinstance(text, str))
    asked = [match[1] for match in found if match]
    left = [task for task in tasks if task not in asked and task not in USUAL_TASKS]
    return {
        near: task
        for task in dict.fromkeys(asked)
        if task not in tasks and (asked.count(task) > 1 or task in USUAL_TASKS) and (near := nearest(task, left))
    }


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The stand-in for lm-eval's tasks is there."""
    section = recipe.settings.get("evaluation")
    named = section and section.get("sample_task")
    if named and not (recipe.folder / named).is_file():
        message = f"There is no file `{recipe.folder / named}`."
        hint = "Paths start from the recipe's own folder."
        yield recipe.problem("evaluation.sample_task", message, hint)


def tasks(recipe: Recipe) -> Iterator[Problem]:
    """Tasks are called as lm-eval calls them, and as the gates do."""
    named = (recipe.settings.get("evaluation") or {}).get("tasks") or ()
    misspelt = misspelt_tasks(recipe)
    for index, task in enumerate(named):
        place = ("evaluation", "tasks", index)
        if meant := misspelt.get(task):
            message = f"`{task}` is measured, and the gates ask for `{meant}`, so that they would never open."
            yield recipe.problem(place, message, f"Write `{meant}`.")
        elif task not in USUAL_TASKS and (near := nearest(task, USUAL_TASKS, ALIKE)):
            message = f"`{task}` is no usual task of lm-eval, and `{near}` is one."
            yield recipe.note(place, message, f"Write `{near}`, if it was meant; nothing to do otherwise.")


def gate_directions(recipe: Recipe) -> Iterator[Problem]:
    for place, text in written_gates(recipe):
        try:
            gate = metrics.parse(text)
        except (TypeError, ValueError):
            continue
        score = gate.metric.rpartition(".")[2].partition(",")[0]
        if ".lm_eval." in f".{gate.metric}" and score not in SCORES and (near := nearest(score, SCORES, 0.8)):
            message = (
                f"`{score}` is no usual score of lm-eval, and `{near}` is one; a score that no task has opens no gate."
            )
            meant = text.replace(f".{score}", f".{near}", 1)
            yield recipe.note(place, message, f"Write `{meant}`, if it was meant.")
        less, more = _LESS.fullmatch(gate.metric), _MORE.fullmatch(gate.metric)
        if (less and gate.comparison in (">", ">=")) or (more and gate.comparison in ("<", "<=")):
            better, other = "less" if less else "more", gate.comparison.translate(_OTHER_WAY)
            message = f"Of `{gate.metric}` {better} is better, and `{text}` opens for the worse models."
            yield recipe.note(place, message, f"Write `{gate.metric} {other} {gate.threshold:g}`.")


def measured(recipe: Recipe, evaluation: Evaluation, section: str | None) -> tuple[tuple[Gate, ...], Evaluation]:
    """The gates of a stage, and how it is measured. evaluation: what the scenario knows of it; section: that has the
    gates, "" for the recipe itself, None for none."""
    home = recipe.settings if section == "" else recipe.settings[section] if section else {}
    conditions = tuple(map(metrics.parse, home.get("gates") or ()))
    evaluation = replace(evaluation, metrics=tuple(gate.metric for gate in conditions))
    chosen = recipe.settings.get("evaluation")
    if chosen is None:
        return conditions, evaluation
    tasks, file = tuple(chosen.tasks or ()), chosen.sample_task
    return conditions, replace(
        evaluation,
        tasks=tasks,
        # In a rehearsal the questions are in a file; otherwise they are on the hub.
        sample_task=str(recipe.folder / file) if tasks == (SAMPLE_TASK,) and file else None,
        limit=chosen.limit,
        batch_size=chosen.batch_size,
        prompt=chosen.prompt,
        seed=recipe.data.seed,
    )


def in_rehearsal(recipe: Recipe) -> Iterator[Override]:
    """Every gate with a threshold that a tiny model can meet, on a sample task where the recipe names tasks of the hub.

    Raises Stop where it names some and no file that stands in for them.
    """
    section = recipe.settings.get("evaluation") or {}
    tasks = section.get("tasks") or ()
    if tasks and not section.get("sample_task"):
        raise Stop(
            recipe.document.problem(
                ("evaluation", "tasks"),
                "A rehearsal downloads nothing, and nothing stands in for these tasks.",
                "Name a file with questions and choices under `evaluation.sample_task`.",
            )
        )
    if tasks:
        yield substitute("evaluation.tasks", [SAMPLE_TASK], "a task of the same kind on a local file")
    for home, text in written_gates(recipe):
        gate = rehearsed(metrics.parse(text))
        for task in tasks:
            gate = replace(gate, metric=gate.metric.replace(f"lm_eval.{task}.", f"lm_eval.{SAMPLE_TASK}."))
        if str(gate) != str(metrics.parse(text)):
            why = "it is measured as it will be, and a tiny model need not be good"
            yield substitute(setting(home), str(gate), why)


# Beyond every loss, perplexity and margin of a tiny model.
ANYTHING = 10_000.0
LEARNED = 0.1


def rehearsed(gate: Gate) -> Gate:
    """The gate that a tiny model with random weights can meet: that its metric is measured, and of perplexity that it falls."""
    if gate.metric == metrics.GENERATED:
        return gate
    more = gate.comparison in (">", ">=")
    if gate.metric == "improvement.perplexity" and more:
        return replace(gate, threshold=min(gate.threshold, LEARNED))
    lowest, highest = metrics.bounds(gate.metric)
    threshold = max(lowest, -ANYTHING) if more else min(highest, ANYTHING)
    # A rehearsal may have no more evaluations than two.
    metric = "loss_rise.2" if metrics.rise_window(gate.metric) else gate.metric
    return Gate(metric, ">=" if more else "<=", threshold)


RULES = (tasks, gate_metrics, gate_directions)
FILE_RULES = (sample_task,)
