"""Gates as a recipe writes them: `metric comparison number`, and which metrics a stage can produce at all."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable

from runner.plan import Gate

# What each kind of stage measures by itself; `N` stands for a number.
BY_TRAINING = {
    "pretrain": ("validation_loss", "perplexity", "loss_rise.N"),
    "sft": ("validation_loss", "perplexity", "loss_rise.N"),
    "dpo": ("validation_loss", "preference_accuracy", "preference_margin", "loss_rise.N"),
    "lora": ("validation_loss", "perplexity", "loss_rise.N"),
}
# What every evaluation measures on the same texts, whatever the stage; only these can be compared between stages.
BY_EVALUATION = ("text_loss", "text_perplexity")
GENERATED = "generated_tokens"

# How lm-eval's scores begin. Of these lm-eval says whether more is better; all others that are compared are losses.
SCORE = "lm_eval."

_GATE = re.compile(r"(\S+) (<|<=|>|>=) (\S+)\Z")
_RISE = re.compile(r"loss_rise\.([0-9]+)\Z")


def parse(text: str) -> Gate:
    """`perplexity < 15` as a Gate. Raises ValueError where it is none; the schema has refused such a text already."""
    match = _GATE.match(text)
    if not match or not math.isfinite(threshold := float(match[3])):
        raise ValueError(text)
    return Gate(match[1], match[2], threshold)


def rise_window(metric: str) -> int | None:
    """N of `loss_rise.N`, the number of last evaluations to look at; None where the metric is another one."""
    match = _RISE.match(metric)
    return int(match[1]) if match else None


def producible(kind: str, tasks: Iterable[str], before: Collection[str] = ()) -> list[str]:
    """The metrics of a stage, `N` and `METRIC` standing for what a person fills in.

    kind: pretrain, sft, dpo or lora. tasks: lm-eval's. before: what the evaluation before it measures, for regressions.
    """
    scores = [f"lm_eval.{task}.METRIC" for task in tasks]
    shared = [*BY_EVALUATION, *scores]
    return [*BY_TRAINING[kind], GENERATED, *shared, *(f"regression.{name}" for name in shared if name in before)]


def is_producible(metric: str, known: Iterable[str]) -> bool:
    """Whether `metric` is one of `known`, with `N` filled by a number of at least 2 and `METRIC` by a word."""
    window = rise_window(metric)
    if window is not None:
        return window >= 2 and "loss_rise.N" in known
    return any(re.fullmatch(re.escape(name).replace("METRIC", r"[A-Za-z0-9_,-]+"), metric) for name in known)
