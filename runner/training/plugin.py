"""The runner's plugin for Axolotl: what has no setting there. Loaded in every training process."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from axolotl.integrations.base import BasePlugin
from axolotl.utils.dict import DictDefault

from runner.training import metrics, results
from runner.training.history import History
from runner.training.settings import RunSettings
from runner.training.watchdog import Watchdog


class RecipePlugin(BasePlugin):
    """Holds the run to its plan, writes its history, and leaves its results."""

    def __init__(self) -> None:
        super().__init__()
        self.history: History | None = None
        self.state: dict[str, Any] = {}

    def get_input_args(self) -> str:
        return "runner.training.settings.RecipeRunnerArgs"

    def load_datasets(self, cfg: DictDefault, preprocess: bool = False) -> None:
        # Without an accelerator Axolotl 0.19.0 still asks for device LOCAL_RANK when there are several processes
        # (`normalize_config`), and this is the last hook before the model is loaded that comes after it.
        if not torch.cuda.is_available():
            cfg.device_map = None

    def get_training_args(self, cfg: DictDefault) -> dict[str, Any]:
        return {
            # Axolotl 0.19.0 honours its own setting only when saving and evaluating by steps.
            "load_best_model_at_end": bool(cfg.load_best_model_at_end),
            # The filter would replace a broken loss by an average of good ones, and hide it from the watchdog.
            "logging_nan_inf_filter": False,
            # Logs are read in files and in pods, where a bar redrawn a thousand times hides every line.
            "disable_tqdm": True,
            "include_num_input_tokens_seen": "non_padding",
        }

    def post_trainer_create(self, cfg: DictDefault, trainer: Any) -> None:
        if int(os.environ.get("RANK", "0")) != 0:
            # It raises KeyError 'Active (gib)' on ranks other than 0 (Axolotl 0.19.0).
            trainer.create_model_card = lambda *args, **kwargs: None

    def add_callbacks_post_trainer(self, cfg: DictDefault, trainer: Any) -> list[Any]:
        settings = run_settings(cfg)
        self.history = History(settings)
        return [Watchdog(settings, zero_loss_allowed=bool(cfg.rl)), self.history, *metrics.from_environment()]

    def post_train(self, cfg: DictDefault, model: Any) -> None:
        # Called twice, right after training and again after saving; the first time the clock is right.
        self.state.setdefault("ended", time.monotonic())

    def post_train_unload(self, cfg: DictDefault) -> None:
        if int(os.environ.get("RANK", "0")) != 0:
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state = self.history.final | {"seconds": round(self.state["ended"] - self.history.started, 1)}
        results.finish(run_settings(cfg), self.history, state, cfg.to_dict())


def run_settings(cfg: DictDefault) -> RunSettings:
    return RunSettings.model_validate(
        cfg.recipe_runner.to_dict() if hasattr(cfg.recipe_runner, "to_dict") else cfg.recipe_runner
    )
