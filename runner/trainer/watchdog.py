"""Watchdog: stops a run that would end as a success without being one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import TrainerCallback

from runner.tools.run_files import STOPPED
from runner.trainer.settings import RunSettings

# A model that knows nothing starts at ln(vocabulary); half as much again means that its weights are broken.
CEILING = 1.5


class TrainingStopped(RuntimeError):
    """The run was stopped on purpose; the message is for the person."""


class Watchdog(TrainerCallback):
    """Compares the run with the plan when training begins, and looks at every loss that is logged.

    zero_loss_allowed: DPO's loss may truly reach 0; a language model's may not.
    """

    def __init__(self, settings: RunSettings, zero_loss_allowed: bool = False) -> None:
        self.settings = settings
        self.zero_loss_allowed = zero_loss_allowed
        self.vocabulary: int | None = None
        self.first_loss_seen = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        config = getattr(model, "config", None)
        self.vocabulary = getattr(config, "vocab_size", None)
        self._compare_processes()
        self._compare_share(args, train_dataloader)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        for name in ("loss", "eval_loss"):
            if name in (logs or {}):
                self._judge(name, float(logs[name]), state.global_step)

    def _compare_processes(self) -> None:
        """Two processes can exit 0 having each trained everything alone; the exit code tells nothing."""
        expected, here = self.settings.world_size, PartialState()
        if here.num_processes != expected:
            self.stop(
                f"The plan has {expected} processes training together, and {here.num_processes} found each other. "
                "Each would train all the data on its own. Start it through the launcher that the plan names."
            )
        if expected > 1:
            together = here.distributed_type not in (DistributedType.NO,) and torch.distributed.is_initialized()
            backend = torch.distributed.get_backend() if together else "none"
            if self.settings.backend not in backend:
                self.stop(f"The plan has the processes talk over {self.settings.backend}, and here it is {backend}.")

    def _compare_share(self, args: Any, dataloader: Any) -> None:
        """Each process must see its share of the rows and no more."""
        dataset = getattr(dataloader, "dataset", None)
        if dataset is None or not hasattr(dataset, "__len__") or getattr(args, "sample_packing", False):
            return
        rows, batches, processes = len(dataset), len(dataloader), self.settings.world_size
        share = rows / (args.per_device_train_batch_size * processes)
        if not math.floor(share) <= batches <= math.ceil(share):
            self.stop(
                f"Each process should see {math.ceil(share)} batches an epoch, a share of {rows} rows in {processes}, "
                f"and sees {batches}. The data is not divided as the plan says."
            )

    def _judge(self, name: str, loss: float, step: int) -> None:
        what = "validation loss" if name == "eval_loss" else "loss"
        if not math.isfinite(loss):
            self.stop(
                f"The {what} at step {step} is {loss}: training has broken. Lower `learning_rate`, or use `precision: bf16` (`fp32` on a GPU without bf16)."
            )
        if loss == 0 and not self.zero_loss_allowed:
            self.stop(
                f"The {what} at step {step} is exactly 0, which no real text gives: the model's weights or the data's "
                "labels are broken. Look at the prepared data, and at the model that this training began with."
            )
        if not self.first_loss_seen and self.vocabulary and loss > (ceiling := CEILING * math.log(self.vocabulary)):
            self.stop(
                f"The first {what} is {loss:.2f}, above {ceiling:.2f}; a model that knows nothing has "
                f"{math.log(self.vocabulary):.2f}. The weights that this training began with are broken or were not loaded."
            )
        self.first_loss_seen = True

    def stop(self, message: str) -> NoReturn:
        """Ends training on every process; the first one leaves the reason for whoever started the run."""
        if PartialState().is_main_process:
            folder = Path(self.settings.run_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STOPPED).write_text(json.dumps({"message": message}) + "\n", encoding="utf-8")
        raise TrainingStopped(message)
