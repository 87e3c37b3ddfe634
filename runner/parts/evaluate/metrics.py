"""Metrics: what can be measured of a stage, what each can be, and gates as a recipe writes them: `metric comparison number`."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable

from runner.plan import Gate
from runner.scenarios.contract import Measurable

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


def rise_window(metric: str) -> int | None:
    """N of `loss_rise.N`, the number of last evaluations to look at; None where the metric is another one."""
    match = _RISE.match(metric)
    return int(match[1]) if match else None


def producible(what: Measurable, tasks: Iterable[str] = (), before: Collection[str] = ()) -> list[str]:
    """The metrics of a stage, `N`, `METRIC` and `CLASS` standing for what a person fills in.

    tasks: lm-eval's. before: what the evaluation before it measures, for regressions.
    """
    if what.kind == "images":
        return ["validation_loss", ACCURACY, f"{ACCURACY}.CLASS"]
    own = ("validation_loss", *PREFERRED) if what.kind == "preferences" else HELD_OUT
    answers = [ACCURACY, *(f"{ACCURACY}.{name}" for name in what.asked)] if what.kind == "chat" else []
    held_out = [*own, RISE, *answers] if what.validates else []
    shared = [*(BLOCKS if what.blocks else ()), *(f"lm_eval.{task}.METRIC" for task in tasks)]
    return [*held_out, GENERATED, *GENERAL, *shared, *(f"regression.{name}" for name in shared if name in before)]


def is_producible(metric: str, known: Iterable[str]) -> bool:
    """Whether `metric` is one of `known`, with `N` filled by a number of at least 2, `METRIC` and `CLASS` by a
    word."""
    window = rise_window(metric)
    if window is not None:
        return window >= 2 and RISE in known
    return any(re.fullmatch(re.sub("METRIC|CLASS", r"[A-Za-z0-9_,-]+", re.escape(name)), metric) for name in known)
