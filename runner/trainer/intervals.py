"""How often a training writes a checkpoint."""

import math

# The least seconds between two checkpoints, and those before the first, whose cost is unknown.
LEAST_SECONDS = 300.0
# Seconds between two interruptions, by any cause; assumed. Of 16,384 GPUs one failed every three
# hours (Llama 3, arXiv 2407.21783, section 3.3.4), which is months for one machine; but shared
# clusters take machines back.
INTERRUPTED_SECONDS = 86400.0


def seconds_between(writing: float) -> float:
    """Seconds of training between two checkpoints that take `writing` seconds each: √(2 · writing ·
    time between interruptions) loses the least time to both (Young 1974,
    doi.org/10.1145/361147.361115)."""
    return max(LEAST_SECONDS, math.sqrt(2 * writing * INTERRUPTED_SECONDS))
