"""Checkpoints: which ones are complete, which one a run resumes from; and how processes agree."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from runner.tools.files import read_json, read_record
from runner.tools.problem import worded
from runner.tools.run_files import COMPLETE
from runner.trainer.settings import RunSettings


def any_of(here: bool, device: torch.device) -> bool:
    """Whether `here` is true on any process; the result is the same on all of them. Every process must call it."""
    if not torch.distributed.is_initialized():
        return here
    flag = torch.tensor([float(here)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def wait() -> None:
    """Waits until every process has called it."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def step_of(checkpoint: Path) -> int | None:
    """The step of a complete checkpoint; None for anything else."""
    mark = read_json(checkpoint / COMPLETE)
    whole = isinstance(mark, dict) and isinstance(read_json(checkpoint / "trainer_state.json"), dict)
    return mark.get("step") if whole else None


def last_good(folder: Path, resumed_from: str | None = None) -> Path | None:
    """The latest complete checkpoint in `folder`; resumed_from: only of those after a resume from this one."""
    whole = [
        (step, path)
        for path in folder.glob("checkpoint-*")
        if (step := step_of(path)) is not None
        and resumed_from in (None, read_record(path / COMPLETE).get("resumed_from"))
    ]
    return max(whole)[1] if whole else None


def drop_broken(folder: Path) -> None:
    """Deletes incomplete checkpoints; only the first process does."""
    if int(os.environ.get("RANK", "0")) != 0:
        return
    for path in folder.glob("checkpoint-*"):
        if step_of(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def saved_anyway(args: Any, state: Any, control: Any) -> bool:
    """Whether this step ends an epoch that is evaluated and saved a moment later. A second checkpoint, written over the
    first, would look complete in between."""
    by_epoch = "epoch" in (args.eval_strategy, args.save_strategy)
    return bool(by_epoch and (control.should_training_stop or float(state.epoch).is_integer()))


def choose(cfg: Any, settings: RunSettings, stop: Callable[[str, str], NoReturn]) -> str:
    """Sets `cfg.resume_from_checkpoint` if there is a checkpoint to resume from. Returns the checkpoint that the recipe
    names, which marks the checkpoints that follow it; empty for none. stop: ends the run with a reason, if a context
    length cannot continue the one before."""
    own = Path(cfg.output_dir)
    if cfg.resume_from_checkpoint:
        named = Path(cfg.resume_from_checkpoint)
        name = named.name if named.parent == own else str(named)  # so that the run folder can move
        cfg.resume_from_checkpoint = str(last_good(own, name) or named)  # after a kill, the latest since then
        return name
    if not cfg.auto_resume_from_checkpoints:
        return ""
    drop_broken(own)
    checkpoint = last_good(own)
    if checkpoint is None and (blocks := settings.blocks) and (before := blocks.continue_from):
        checkpoint = last_good(Path(before))
        step = step_of(checkpoint) if checkpoint else None
        if checkpoint is None or step != blocks.first_step:
            its_end = f"ends at step {step:,}" if step else "has no complete checkpoint"
            stop(*worded("trainer.length-before-not-ended", blocks=blocks, before=before, its_end=its_end))
        # As the Trainer, FSDP or DeepSpeed write it.
        if not any(
            any(checkpoint.glob(name)) for name in ("optimizer.pt", "optimizer.bin", "optimizer_0", "global_step*")
        ):
            stop(*worded("trainer.no-optimizer-state", checkpoint=checkpoint))
    if checkpoint is not None:
        cfg.resume_from_checkpoint = str(checkpoint)
    return ""
