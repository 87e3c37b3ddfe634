"""Checkpoints that can be trusted: one that a kill left half written is never resumed from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.tools.files import read_json, read_record, write_json
from runner.tools.run_files import COMPLETE
from runner.trainer import collectives

COMPLETE_FILE = COMPLETE


class MarkComplete(TrainerCallback):
    """Marks each checkpoint once all of it is on disk; without the mark it counts as broken. resumed_from: the checkpoint that
    the recipe names to go back to, empty where it names none."""

    def __init__(self, resumed_from: str = "") -> None:
        self.resumed_from = resumed_from

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Each process writes a part of its own, its random state at least.
        collectives.wait()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            facts = {"step": state.global_step, "tokens": int(state.num_input_tokens_seen)}
            write_json(folder / COMPLETE_FILE, facts | {"resumed_from": self.resumed_from})


def step_of(checkpoint: Path) -> int | None:
    """The step of a complete checkpoint; None for anything else."""
    mark = read_json(checkpoint / COMPLETE_FILE)
    whole = isinstance(mark, dict) and isinstance(read_json(checkpoint / "trainer_state.json"), dict)
    return mark.get("step") if whole else None


def last_good(folder: Path, resumed_from: str | None = None) -> Path | None:
    """The latest complete checkpoint in `folder`; resumed_from: of those that go back to this one."""
    whole = [
        (step, path)
        for path in folder.glob("checkpoint-*")
        if (step := step_of(path)) is not None
        and resumed_from in (None, read_record(path / COMPLETE_FILE).get("resumed_from"))
    ]
    return max(whole)[1] if whole else None


def drop_broken(folder: Path) -> None:
    """Takes away what a kill left half written, on the first process alone."""
    if int(os.environ.get("RANK", "0")) != 0:
        return
    for path in folder.glob("checkpoint-*"):
        if step_of(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def has_optimizer(checkpoint: Path) -> bool:
    """Whether the optimizer's state is in a checkpoint, as the Trainer (optimizer.pt), FSDP (optimizer.bin, optimizer_0)
    or DeepSpeed (global_step…) leave it."""
    names = ("optimizer.pt", "optimizer.bin", "optimizer_0")
    return any((checkpoint / name).exists() for name in names) or any(checkpoint.glob("global_step*"))
