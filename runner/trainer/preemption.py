"""Preemption: whoever takes the machine back says so with SIGTERM, and training ends with a checkpoint of the step it is at."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.tools.files import write_json
from runner.tools.run_files import STOPPED
from runner.trainer import collectives
from runner.trainer.saving import saved_anyway
from runner.trainer.settings import RunSettings

# As a shell says that SIGTERM ended a process.
ENDED = 128 + signal.SIGTERM


class Preemption(TrainerCallback):
    """Ends all processes after the same step, once one of them got SIGTERM and the checkpoint of that step is whole.

    The signal comes to each at a moment of its own, or, where one machine of several goes away, to some alone. So they ask each
    other at places that all of them pass: at the end of a step, of an evaluation, and of a checkpoint. What this step would have
    been followed by anyway, an evaluation, comes first, because a resumed run would not make up for it.

    The last of the callbacks: when it hears of a checkpoint, `MarkComplete` has marked it.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.run_dir = Path(settings.run_dir)
        self.asked = self.leaving = False
        self.process = 0
        # Whether there is a step to save.
        self.waits = False
        self.before: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.process = os.getpid()
        self.before = signal.signal(signal.SIGTERM, self._ask)
        os.register_at_fork(after_in_child=self._stand_apart)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What follows is made again from the last checkpoint, and need not wait."""
        signal.signal(signal.SIGTERM, self.before)
        self.waits, self.process = False, 0

    def _stand_apart(self) -> None:
        """torchrun sends a signal to the whole group (torch 2.13), and data workers, which are forks, are needed until the step
        is done. They end when they miss their parent."""
        if self.process:
            os.setpgid(0, 0)

    def _ask(self, number: int, frame: Any) -> None:
        if not self.waits or os.getpid() != self.process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = True

    def _decide(self, args: Any) -> bool:
        self.leaving = self.leaving or collectives.any_of(self.asked, args.device)
        return self.leaving

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.waits = True
        if self._decide(args):
            control.should_log = True
            # What is evaluated a moment later would not be after a resume.
            control.should_save |= not saved_anyway(args, state, control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_save |= self.leaving
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.waits and self._decide(args):
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.waits and self._decide(args):
            if state.is_world_process_zero:
                self._tell(state.global_step)
            # A launcher that sees one process end ends the others, which may still write.
            collectives.wait()
            raise SystemExit(ENDED)

    def _tell(self, step: int) -> None:
        said = (
            f"It was asked to end (SIGTERM), as a cluster does that takes a machine back. Step {step:,} is saved, and the same "
            "command goes on from there."
        )
        print(said, flush=True)
        write_json(self.run_dir / STOPPED, {"message": said})
