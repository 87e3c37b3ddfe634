"""The runner's plugin for Axolotl: what has no setting there. Loaded in every training process."""

from __future__ import annotations

import os
from typing import Any

import torch
from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin
from axolotl.utils import trainer
from axolotl.utils.dict import DictDefault

from runner.training import blocks, metrics, parent_watch, results, resume
from runner.training.blocks import EndOfLength
from runner.training.checkpoints import MarkComplete
from runner.training.history import History
from runner.training.settings import RunSettings
from runner.training.time_limit import time_limits
from runner.training.watchdog import Watchdog


class RecipePlugin(BasePlugin):
    """Holds the run to its plan, writes its history, and leaves its results."""

    def __init__(self) -> None:
        super().__init__()
        parent_watch.start()
        self.history: History  # there once the trainer is
        self.resumed_from = ""

    def register(self, cfg: dict[str, Any]) -> None:
        # With several processes Axolotl 0.19.0 asks the driver how its GPUs reach each other, and the CUDA build of torch, which is
        # what pip brings on Linux, raises where there is none.
        if not torch.cuda.is_available():
            trainer.check_cuda_p2p_ib_support = lambda: True

    def get_input_args(self) -> str:
        return "runner.training.settings.RecipeRunnerArgs"

    def load_datasets(self, cfg: DictDefault, preprocess: bool = False) -> TrainDatasetMeta | None:
        # Without an accelerator Axolotl 0.19.0 still asks for device LOCAL_RANK when there are several processes
        # (`normalize_config`), and this is the last hook before the model is loaded that comes after it.
        if not torch.cuda.is_available():
            cfg.device_map = None
        settings = run_settings(cfg)
        # Axolotl 0.19.0 keeps weights in what they are multiplied in, and bf16 rounds small steps away. It has read this
        # setting when it calls `pre_model_load`. DeepSpeed puts all weights into bf16 and keeps fp32 ones of its own.
        if settings.master_weights == "fp32" and not cfg.deepspeed:
            cfg.torch_dtype = torch.float32
        if not preprocess:
            self.resumed_from = resume.choose(cfg, settings)
        if settings.blocks is None:
            return None
        reached = resume.reached(cfg)
        train, validation, cfg.max_steps = blocks.load(settings.blocks, settings.effective_batch_size, reached)
        return TrainDatasetMeta(train, validation, cfg.max_steps)

    def get_training_args(self, cfg: DictDefault) -> dict[str, Any]:
        return {
            # Axolotl 0.19.0 honours its own setting only when saving and evaluating by steps.
            "load_best_model_at_end": bool(cfg.load_best_model_at_end),
            # The filter would replace a broken loss by an average of good ones, and hide it from the watchdog.
            "logging_nan_inf_filter": False,
            # Logs are read in files and in pods, where a bar redrawn a thousand times hides every line.
            "disable_tqdm": True,
            "include_num_input_tokens_seen": "non_padding",
            # Axolotl has no setting for it.
            "dataloader_persistent_workers": run_settings(cfg).persistent_workers,
        }

    def post_trainer_create(self, cfg: DictDefault, trainer: Any) -> None:
        if int(os.environ.get("RANK", "0")) != 0:
            # It raises KeyError 'Active (gib)' on ranks other than 0 (Axolotl 0.19.0).
            trainer.create_model_card = lambda *args, **kwargs: None

    def add_callbacks_post_trainer(self, cfg: DictDefault, trainer: Any) -> list[Any]:
        settings = run_settings(cfg)
        self.history = History(settings)
        ends = [EndOfLength(settings.blocks)] if settings.blocks else []
        watchdog = Watchdog(settings, zero_loss_allowed=bool(cfg.rl))
        watching = [watchdog, self.history, *metrics.from_environment()]
        return [*watching, *ends, *time_limits(settings), MarkComplete(self.resumed_from)]

    def post_train_unload(self, cfg: DictDefault) -> None:
        if int(os.environ.get("RANK", "0")) != 0:
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        results.finish(run_settings(cfg), self.history, cfg.to_dict())


def run_settings(cfg: DictDefault) -> RunSettings:
    settings: RunSettings = RunSettings.model_validate(
        cfg.recipe_runner.to_dict() if hasattr(cfg.recipe_runner, "to_dict") else cfg.recipe_runner
    )
    return settings
