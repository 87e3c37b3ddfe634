"""A plug-in of Axolotl's that counts, at every step of the optimizer, the weights with a gradient
and those of them that moved."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from axolotl.integrations.base import BasePlugin
from transformers import TrainerCallback

from runner.parts.proof.prove import Prover

# The file that the counts go to.
COUNTS = "RECIPE_TEST_MOVED"


class Counting(BasePlugin):
    def __init__(self) -> None:
        super().__init__()
        # It computes without autocast, because without a GPU a run is in fp32 otherwise.
        Prover._model = lambda self: None

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        return {"use_cpu": True}  # else transformers refuses bf16 without a GPU

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        return [Counter()]


class Counter(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **others) -> None:
        with_gradient = [one for one in model.parameters() if one.grad is not None]
        self.before = [(one, one.detach().clone(), one.grad != 0) for one in with_gradient]

    def on_optimizer_step(self, args, state, control, optimizer=None, model=None, **others) -> None:
        counts = {"with_gradient": 0, "moved": 0, "rate": optimizer.param_groups[0]["lr"]}
        for one, before, there in self.before:
            counts["with_gradient"] += int(there.sum())
            counts["moved"] += int(((one != before) & there).sum())
        formats = {str(one.dtype) for one in model.parameters() if one.requires_grad}
        frozen = {str(one.dtype) for one in model.parameters() if not one.requires_grad}
        self.steps.append({**counts, "trained": sorted(formats), "frozen": sorted(frozen)})
        Path(os.environ[COUNTS]).write_text(json.dumps(self.steps), encoding="utf-8")
