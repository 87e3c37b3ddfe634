"""Resuming: from the last complete checkpoint of a stage, or at its beginning from where the stage before ended, or from
the one that the recipe names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from runner.trainer import checkpoints
from runner.trainer.settings import BlocksSettings, RunSettings
from runner.trainer.watchdog import Watchdog


def choose(cfg: Any, settings: RunSettings) -> str:
    """Sets `cfg.resume_from_checkpoint`; leaves it where the recipe wants none. Gives the checkpoint that the recipe names to
    go back to, as its own checkpoints are marked with it; empty where it names none.

    Stops the run where a context length cannot go on from the one before with weights, optimizer and schedule.
    """
    own = Path(cfg.output_dir)
    if cfg.resume_from_checkpoint:
        named = Path(cfg.resume_from_checkpoint)
        # Wherever the run folder lies.
        name = named.name if named.parent == own else str(named)
        # After a kill the latest one since, so that it costs no more than elsewhere.
        cfg.resume_from_checkpoint = str(checkpoints.last_good(own, name) or named)
        return name
    if not cfg.auto_resume_from_checkpoints:
        return ""
    checkpoints.drop_broken(own)
    checkpoint = checkpoints.last_good(own)
    if checkpoint is None and (blocks := settings.blocks) and blocks.continue_from:
        checkpoint = _end_of_the_one_before(blocks, blocks.continue_from, Watchdog(settings).stop)
    if checkpoint is not None:
        cfg.resume_from_checkpoint = str(checkpoint)
    return ""


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


def goes_on(cfg: Any) -> bool:
    """Whether training goes on within its own run, and does not begin where another one ended."""
    chosen = cfg.resume_from_checkpoint
    return bool(chosen) and Path(chosen).parent == Path(cfg.output_dir)
