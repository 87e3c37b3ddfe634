"""Gates as a recipe writes them: `metric comparison number`, and which metrics a stage can produce at all."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from runner.plan import Evaluation, Gate, Kind
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.tools.names import listed, nearest
from runner.tools.problem import Problem

# What each kind of stage notes in training; `N` stands for a number.
RISE = "loss_rise.N"
PREFERRED = ("preference_accuracy", "preference_margin")
# What is measured on the held-out rows of the stage, before training and after it.
HELD_OUT = ("validation_loss", "perplexity", "improvement.perplexity")
# On the same general text for every model that reads: its loss, and by how much that rose since training began.
GENERAL = ("general_loss", "forgetting")
# On the same blocks for every stage of a pipeline; of what a stage measures, these and scores can be compared between stages.
BLOCKS = ("text_loss", "text_perplexity")
# The share of answers, or of images, that are right; behind a dot those of one kind or class, `CLASS` standing for its name.
ACCURACY = "accuracy"
GENERATED = "generated_tokens"
# So many tokens a model is asked to go on with at most.
NEW_TOKENS = 16

# How lm-eval's scores begin. Of these lm-eval says whether more is better; all others that are compared are losses.
SCORE = "lm_eval."

# The lowest and the highest that a metric can be; of those that are not here, any finite number. Of lm-eval's scores, where
# a task does not name them otherwise, those that say so by their names (lm-eval 0.4, api/metrics.py).
_BOUNDS: dict[str, tuple[float, float]] = {
    r"(?:\w+_)?perplexity": (1.0, math.inf),
    r"(?:validation|text|general)_loss": (0.0, math.inf),
    r"improvement\.perplexity": (-math.inf, 1.0),
    r"accuracy(?:\..+)?|preference_accuracy": (0.0, 1.0),
    r"generated_tokens": (0.0, NEW_TOKENS),
    r"lm_eval\..+\.(?:acc|acc_norm|exact_match)(?:,.+)?": (0.0, 1.0),
    r"lm_eval\..+\.(?:\w+_)?perplexity(?:,.+)?": (1.0, math.inf),
    r"lm_eval\..+\.bits_per_byte(?:,.+)?": (0.0, math.inf),
}
HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_GATE = re.compile(r"(\S+) (<|<=|>|>=) (\S+)\Z")
_RISE = re.compile(r"loss_rise\.([0-9]+)\Z")


def parse(text: str) -> Gate:
    """`perplexity < 15` as a Gate. Raises ValueError where it is none; the schema has refused such a text already."""
    match = _GATE.match(text)
    if not match or not math.isfinite(threshold := float(match[3])):
        raise ValueError(text)
    return Gate(match[1], match[2], threshold)


def bounds(metric: str) -> tuple[float, float]:
    """The lowest and the highest that a metric can be, infinite where nothing bounds it."""
    return next((ends for name, ends in _BOUNDS.items() if re.fullmatch(name, metric)), (-math.inf, math.inf))


def in_words(metric: str) -> str:
    """What a metric with bounds can be, for a sentence."""
    lowest, highest = bounds(metric)
    if math.isinf(highest):
        return f"at least {lowest:g}"
    return f"at most {highest:g}" if math.isinf(lowest) else f"from {lowest:g} to {highest:g}"


def is_senseless(gate: Gate) -> bool:
    """Whether a gate compares with what its metric can never be, or with an end that it cannot pass."""
    lowest, highest = bounds(gate.metric)
    if not lowest <= gate.threshold <= highest:
        return True
    return not any(HOLDS[gate.comparison](end, gate.threshold) for end in (lowest, highest))


def problems(recipe: Recipe, home: Path_, texts: Iterable[Any], known: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with the gates that stand at `home`: a metric that is not among those `known`, a number that it can never be
    or that is none."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            continue  # refused by the schema already
        place, metric = (*home, index), text.partition(" ")[0]
        try:
            gate = parse(text)
        except ValueError:
            yield recipe.document.problem(
                place,
                f"`{text}` compares with a number beyond all bounds, so this gate would say nothing.",
                "Write a finite number.",
            )
            continue
        if not is_producible(metric, known):
            if (asked := _TASK.match(metric)) and asked[1] in misspelt_tasks(recipe).values():
                continue
            near = nearest(metric, known)
            owner = f"`{home[0]}`" if len(home) > 1 else "This recipe"
            yield recipe.document.problem(
                place,
                f"{owner} cannot produce the metric `{metric}`, so this gate would never open.",
                (f"Did you mean `{near}`? " if near else "") + f"It can produce {listed(known)}.",
            )
        elif is_senseless(gate):
            yield recipe.document.problem(
                place,
                f"`{metric}` is {in_words(metric)}, so `{text}` says nothing about a model.",
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
    found = (_TASK.match(text) for _, text in all_of(recipe) if isinstance(text, str))
    asked = [match[1] for match in found if match]
    left = [task for task in tasks if task not in asked and task not in USUAL_TASKS]
    return {
        near: task
        for task in dict.fromkeys(asked)
        if task not in tasks and (asked.count(task) > 1 or task in USUAL_TASKS) and (near := nearest(task, left))
    }


def rule(known: Callable[[Recipe], Sequence[str]]) -> Callable[[Recipe], Iterator[Problem]]:
    """The rule for a recipe of one training, whose gates stand in a section of their own. known: the metrics that it can produce."""

    def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
        yield from problems(recipe, ("gates",), recipe.gates or (), known(recipe))

    return gate_metrics


def rise_window(metric: str) -> int | None:
    """N of `loss_rise.N`, the number of last evaluations to look at; None where the metric is another one."""
    match = _RISE.match(metric)
    return int(match[1]) if match else None


def producible(
    kind: Kind,
    tasks: Iterable[str] = (),
    before: Collection[str] = (),
    *,
    asked: Iterable[str] = (),
    validates: bool = True,
    blocks: bool = False,
) -> list[str]:
    """The metrics of a stage, `N`, `METRIC` and `CLASS` standing for what a person fills in.

    tasks: lm-eval's. before: what the evaluation before it measures, for regressions. asked: kinds of questions that are counted
    apart. validates: whether rows are held out. blocks: whether there are blocks of text that all stages are measured on.
    """
    if kind == "images":
        return ["validation_loss", ACCURACY, f"{ACCURACY}.CLASS"]
    own = ("validation_loss", *PREFERRED) if kind == "preferences" else HELD_OUT
    answers = [ACCURACY, *(f"{ACCURACY}.{name}" for name in asked)] if kind == "chat" else []
    held_out = [*own, RISE, *answers] if validates else []
    shared = [*(BLOCKS if blocks else ()), *(f"lm_eval.{task}.METRIC" for task in tasks)]
    return [*held_out, GENERATED, *GENERAL, *shared, *(f"regression.{name}" for name in shared if name in before)]


def is_producible(metric: str, known: Iterable[str]) -> bool:
    """Whether `metric` is one of `known`, with `N` filled by a number of at least 2, `METRIC` and `CLASS` by a
    word."""
    window = rise_window(metric)
    if window is not None:
        return window >= 2 and RISE in known
    return any(re.fullmatch(re.sub("METRIC|CLASS", r"[A-Za-z0-9_,-]+", re.escape(name)), metric) for name in known)


def of(texts: Iterable[str] | None) -> tuple[Gate, ...]:
    """The gates of a section, which a check has let through."""
    return tuple(map(parse, texts or ()))


# What stands in for lm-eval's tasks in a rehearsal.
SAMPLE_TASK = "sample"


def local_task(recipe: Recipe) -> str | None:
    """The file with the questions of the task that is measured, where that is the sample, as in a rehearsal; None where they are
    on the hub."""
    tasks, file = recipe.evaluation.tasks or (), recipe.evaluation.sample_task
    return str(recipe.folder / file) if list(tasks) == [SAMPLE_TASK] and file else None


def evaluation(recipe: Recipe, kind: Kind, conditions: Iterable[Gate], **more: Any) -> Evaluation:
    """How a language model of the recipe is measured. more: fields of the Evaluation that the scenario knows."""
    chosen = recipe.evaluation
    return Evaluation(
        kind=kind,
        metrics=tuple(gate.metric for gate in conditions),
        tasks=tuple(chosen.tasks or ()),
        sample_task=local_task(recipe),
        limit=chosen.limit,
        batch_size=chosen.batch_size,
        prompt=chosen.prompt,
        seed=recipe.data.seed,
        **more,
    )


def all_of(recipe: Recipe) -> Iterator[tuple[Path_, str]]:
    """Every gate of the recipe, with its place."""
    homes: list[tuple[Path_, Any]] = [(("gates",), recipe.settings.get("gates"))]
    homes += [
        ((name, "gates"), section.get("gates")) for name, section in recipe.sections.items() if section.knows("gates")
    ]
    for home, texts in homes:
        yield from (((*home, index), text) for index, text in enumerate(texts or ()))


# Beyond every loss, perplexity and margin of a tiny model.
ANYTHING = 10_000.0
LEARNED = 0.1


def rehearsed(gate: Gate) -> Gate:
    """The gate that a tiny model with random weights can meet: that its metric is measured, and of perplexity that it falls."""
    if gate.metric == GENERATED:
        return gate
    more = gate.comparison in (">", ">=")
    if gate.metric == "improvement.perplexity" and more:
        return replace(gate, threshold=min(gate.threshold, LEARNED))
    lowest, highest = bounds(gate.metric)
    threshold = max(lowest, -ANYTHING) if more else min(highest, ANYTHING)
    # A rehearsal may have no more evaluations than two.
    metric = "loss_rise.2" if rise_window(gate.metric) else gate.metric
    return Gate(metric, ">=" if more else "<=", threshold)
