"""What the pinned Axolotl knows."""

from __future__ import annotations

from functools import cache

from runner.catalog.tables import HERE

AXOLOTL_VERSION = "0.19.0"


@cache
def axolotl_settings() -> frozenset[str]:
    """The names of every setting that the pinned Axolotl knows (tests compare them with Axolotl itself)."""
    return frozenset((HERE / "axolotl-settings.txt").read_text(encoding="utf-8").split())


@cache
def fused_loss_models() -> frozenset[str]:
    """The model types whose last layer and cross-entropy Axolotl can compute as one, through liger-kernel 0.8.1, so
    that the logits never lie in memory (tests compare them with the package itself)."""
    return frozenset((HERE / "fused-loss-models.txt").read_text(encoding="utf-8").split())
