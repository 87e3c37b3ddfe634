"""Resuming: from the last complete checkpoint of a stage, or at its beginning from where the stage before ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.training import checkpoints
from runner.training.settings import RunSettings
from runner.training.watchdog import Watchdog


def choose(cfg: Any, settings: RunSettings) -> None:
    """Sets `cfg.resume_from_checkpoint`; leaves it where the recipe names one, or wants none.

    Stops the run where a context length cannot go on from the one before with weights, optimizer and schedule.
    """
    if cfg.resume_from_checkpoint or not cfg.auto_resume_from_checkpoints:
        return
    own = Path(cfg.output_dir)
    checkpoints.drop_broken(own)
    found = checkpoints.last_good(own)
    if found is None and settings.blocks and settings.blocks.continue_from:
        found = _end_of_the_one_before(settings)
    if found is not None:
        cfg.resume_from_checkpoint = str(found)


def _end_of_the_one_before(settings: RunSettings) -> Path:
    blocks, stop = settings.blocks, Watchdog(settings).stop
    found = checkpoints.last_good(Path(blocks.continue_from))
    step = checkpoints.step_of(found) if found else None
    if step != blocks.first_step:
        stop(
            f"This context length goes on at step {blocks.first_step:,}, and `{blocks.continue_from}` "
            f"{f'ends at step {step:,}' if step else 'holds no complete checkpoint'}. Run the context length before it first."
        )
    if not checkpoints.has_optimizer(found):
        stop(
            f"`{found}` holds no state of the optimizer, so the curriculum would forget its momentum here. "
            "Save it with `distribution: fsdp` and full state, or with zero2."
        )
    return found


def reached(cfg: Any) -> int:
    """The step that training resumes at; 0 at the very beginning."""
    chosen = cfg.resume_from_checkpoint
    return (checkpoints.step_of(Path(chosen)) or 0) if chosen else 0
