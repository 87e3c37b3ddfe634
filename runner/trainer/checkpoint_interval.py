"""Cadence: how often a checkpoint is worth its writing, where the recipe does not say; asked by training and by the plan."""

from __future__ import annotations

import math

# The first checkpoint comes after so long, when nobody has yet seen how long one takes; and none comes sooner after another.
LEAST_SECONDS = 300.0
# Between two interruptions, by whatever cause; assumed. Of 16,384 GPUs one was lost every three hours (Llama 3, arXiv
# 2407.21783, section 3.3.4), of one machine that makes months; but shared clusters take machines back.
INTERRUPTED_SECONDS = 86400.0


def seconds_between(writing: float) -> float:
    """Seconds of training after which another checkpoint is due, where one takes `writing` seconds: what writing costs and what
    an interruption loses are least together at √(2 · writing · time between interruptions) (Young 1974,
    doi.org/10.1145/361147.361115)."""
    return max(LEAST_SECONDS, math.sqrt(2 * writing * INTERRUPTED_SECONDS))
