"""Resuming: from the last complete checkpoint of a stage, or at its beginning from where the stage before ended, or from
the one that the recipe names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from runner.files import read_json, write_json
from runner.training import checkpoints
from runner.training.run_files import RESUMED_FROM
from runner.training.settings import BlocksSettings, RunSettings
from runner.training.watchdog import Watchdog

# In the run folder: the checkpoint that the recipe names, written when training first went back to it.


def choose(cfg: Any, settings: RunSettings) -> None:
    """Sets `cfg.resume_from_checkpoint`; leaves it where the recipe wants none.

    Stops the run where a context length cannot go on from the one before with weights, optimizer and schedule.
    """
    if cfg.resume_from_checkpoint:
        cfg.resume_from_checkpoint = str(_named(Path(cfg.resume_from_checkpoint), Path(cfg.output_dir), settings))
        return
    if not cfg.auto_resume_from_checkpoints:
        return
    own = Path(cfg.output_dir)
    checkpoints.drop_broken(own)
    checkpoint = checkpoints.last_good(own)
    if checkpoint is None and (blocks := settings.blocks) and blocks.continue_from:
        checkpoint = _end_of_the_one_before(blocks, blocks.continue_from, Watchdog(settings).stop)
    if checkpoint is not None:
        cfg.resume_from_checkpoint = str(checkpoint)


def _named(named: Path, own: Path, settings: RunSettings) -> Path:
    """The checkpoint that the recipe names, the first time; at later starts the latest one since, so that a kill costs no
    more than elsewhere.

    All processes decide alike, whether or not the first has written its note: before training nothing is newer than it.
    """
    note = Path(settings.run_dir) / RESUMED_FROM
    if read_json(note) == {"checkpoint": str(named)}:
        if (checkpoint := checkpoints.last_good(own, since=note.stat().st_mtime_ns)) is not None:
            return checkpoint
        # Rotation may have taken the named one.
        return named if named.is_dir() else checkpoints.last_good(own) or named
    if int(os.environ.get("RANK", "0")) == 0 and named.is_dir():
        write_json(note, {"checkpoint": str(named)})
    return named


def _end_of_the_one_before(blocks: BlocksSettings, before: str, stop: Callable[[str], NoReturn]) -> Path:
    """The checkpoint that the context length before, whose checkpoints lie in `before`, has ended with."""
    checkpoint = checkpoints.last_good(Path(before))
    step = checkpoints.step_of(checkpoint) if checkpoint else None
    if checkpoint is None or step != blocks.first_step:
        stop(
            f"This context length goes on at step {blocks.first_step:,}, and `{before}` "
            f"{f'ends at step {step:,}' if step else 'holds no complete checkpoint'}. Run the context length before it first."
        )
    if not checkpoints.has_optimizer(checkpoint):
        stop(
            f"`{checkpoint}` holds no state of the optimizer, so the curriculum would forget its momentum here. "
            "Save it with `distribution: fsdp` and full state, or with zero2."
        )
    return checkpoint


def reached(cfg: Any) -> int:
    """The step that training resumes at; 0 at the very beginning."""
    chosen = cfg.resume_from_checkpoint
    return (checkpoints.step_of(Path(chosen)) or 0) if chosen else 0
