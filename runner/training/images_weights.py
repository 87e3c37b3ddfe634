"""The files of weights that a run of images leaves: the latest, the best and the final ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.files import read_json
from runner.training import images_model

LATEST, BEST, FINAL = "checkpoint_latest.pth", "best_model.pth", "final_model.pth"


class Weights(TrainerCallback):
    """Writes `best_model.pth` whenever the validation accuracy is higher than ever, and `checkpoint_latest.pth` with
    every checkpoint; the latter also holds optimizer and schedule.

    facts: what goes into every file beside the weights.
    """

    def __init__(self, run_dir: Path, facts: dict[str, Any]) -> None:
        self.run_dir = run_dir
        self.facts = facts
        self.best_accuracy = -1.0
        self.accuracy: float | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step and (self.run_dir / BEST).is_file():
            self.best_accuracy = images_model.read(self.run_dir / BEST)["accuracy"]

    def on_evaluate(self, args, state, control, model=None, metrics=None, **kwargs):
        self.accuracy = (metrics or {}).get("eval_accuracy")
        # Before the first step there is nothing that training has made.
        if self.accuracy is None or not state.global_step or self.accuracy <= self.best_accuracy:
            return
        self.best_accuracy = self.accuracy
        if state.is_world_process_zero:
            images_model.save(self.run_dir / BEST, self.content(model, state))

    def on_save(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        if state.is_world_process_zero:
            more = {"optimizer": optimizer.state_dict(), "lr_scheduler": lr_scheduler.state_dict()}
            images_model.save(self.run_dir / LATEST, self.content(model, state) | more)

    def content(self, model, state) -> dict[str, Any]:
        """accuracy: share of the validation images, 0 to 1, at the last evaluation."""
        return self.facts | {
            "model": {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()},
            "accuracy": self.accuracy,
            "epoch": state.epoch,
            "step": state.global_step,
        }


def last_checkpoint(folder: Path) -> str | None:
    """The latest checkpoint that was written to its end, or None. Its state is written last."""
    found = [entry for entry in folder.glob("checkpoint-*") if entry.name.removeprefix("checkpoint-").isdigit()]
    whole = [entry for entry in found if read_json(entry / "trainer_state.json")]
    return str(max(whole, key=lambda entry: int(entry.name.removeprefix("checkpoint-")))) if whole else None
