"""`recipe rehearse` or `recipe run` as a process beside the page, and its output so far."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.commands.run import EVENTS
from runner.recipe import units
from runner.tools import child_process
from runner.tools.child_process import Event
from runner.tools.problem import Stop

RECIPE = (sys.executable, "-m", "runner")  # the command `recipe`
AFTER_INTERRUPT = 130  # the exit status of a command that ^C has ended
# Seconds in which a process that was stopped saves a checkpoint, before it is killed.
PATIENCE = 30


@dataclass(frozen=True)
class Work:
    """A command that the page runs, and what the page says of it. words: of the command, before the
    recipe; needs_tab: whether it ends with the last tab."""

    words: tuple[str, ...]
    noun: str
    doing: str
    passed: str
    stopped: str
    needs_tab: bool


REHEARSAL = Work(
    words=("rehearse",),
    noun="rehearsal",
    doing="Rehearsing",
    passed="The rehearsal passed: the whole recipe works here, with a tiny model. Report shows what it learned.",
    stopped="The rehearsal was stopped. The next one reuses the parts that are finished.",
    needs_tab=True,
)
TRAINING = Work(
    words=("run", "--yes"),
    noun="training",
    doing="Training",
    passed="The training is finished. Chat asks the trained model, and Report shows what it learned.",
    stopped="The training was stopped. The next one continues from the last checkpoint.",
    needs_tab=False,
)


def start_recipe(
    command: Sequence[str], output: Path, **environment: str
) -> subprocess.Popen[bytes]:
    """Starts a command that writes into a file, and that ends with this process."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            env=os.environ
            | {"PYTHONUNBUFFERED": "1", child_process.PARENT: str(os.getpid())}
            | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            **_apart(),
        )


def _apart() -> dict[str, Any]:
    """How a process is started that gets no ^C of the terminal: that goes to the page, which then
    stops the process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {
        "start_new_session": True,
        # A shell starts background processes so that they ignore ^C, which must stop this one.
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    }


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Stops a process as ^C does; on Windows as Ctrl-Break, which alone reaches another group."""
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        process.send_signal(signal.SIGINT)


def end_recipe(process: subprocess.Popen[bytes], patience: float) -> None:
    """Ends a command as ^C does, and kills it if it takes longer than `patience` seconds."""
    _interrupt(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
        return
    process.kill()
    process.wait()


class RunProcess:
    """A rehearsal or a training, one at a time. Its results stay in its run folder, and the next
    one continues from there.

    lines: the output of the command. losses, measured: (step, loss) of training and of validation
    in the latest stage; steps: its planned number. number: of commands so far; bytes: of the
    output, as far as it is read; watching: tabs that show it. recipe_command: the words of the
    command `recipe`."""

    def __init__(self, recipe_command: Sequence[str] = RECIPE) -> None:
        self.recipe_command = recipe_command
        self.work = REHEARSAL
        self.lines: list[str] = []
        self.losses: list[tuple[int, float]] = []
        self.measured: list[tuple[int, float]] = []
        self.steps = self.number = self.bytes = self.watching = 0
        # The first and the last step that was read, each with its time.
        self._first_step: tuple[int, float] | None = None
        self._last_step: tuple[int, float] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name, "output")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def state(self) -> str:
        """What the command does, or how it ended, in a sentence or two."""
        if self.running:
            return f"{self.work.doing}: {self._progress}."
        code = self._process.poll() if self._process else None
        if code == AFTER_INTERRUPT:
            return self.work.stopped
        if code == 0:
            return self.work.passed
        return f"The {self.work.noun} failed. The last lines below explain why."

    @property
    def _progress(self) -> str:
        if not self.losses:
            return "preparing"
        step, loss = self.losses[-1]
        progress = f"step {step} of {self.steps}, loss {loss:.3f}"
        seconds_left = self._seconds_left
        if seconds_left is None:
            return progress
        return f"{progress}, about {units.duration(seconds_left)} left"

    @property
    def _seconds_left(self) -> float | None:
        """The time of the remaining steps at the pace so far; None if that is unknown."""
        if self._first_step is None or self._last_step is None:
            return None
        first_step, began = self._first_step
        last_step, now = self._last_step
        if last_step <= first_step:
            return None
        return (now - began) / (last_step - first_step) * (self.steps - last_step)

    def require_idle(self) -> None:
        """Raises Stop while a command runs."""
        if self.running:
            raise Stop(
                f"A {self.work.noun} is running already.", "Wait until it ends, or press Stop."
            )

    def start(self, work: Work, file: Path) -> None:
        """Rehearses or trains the saved recipe. Raises Stop while another command runs."""
        self.require_idle()
        self.work = work
        self.number += 1
        self.lines = []
        self._begin_stage(0)
        self.bytes = 0
        command = (*self.recipe_command, *work.words, str(file))
        self._process = start_recipe(command, self._output, **{EVENTS: "1"})

    def read(self) -> None:
        """Reads the new lines of the output."""
        if not self.number:
            return
        running = self.running
        with self._output.open("rb") as output:
            output.seek(self.bytes)
            new = output.read()
        if running:
            new = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
        self.bytes += len(new)
        for line in new.decode("utf-8", "replace").removesuffix("\n").split("\n") if new else ():
            events = list(child_process.events(line))
            if not events:
                self.lines.append(line.rstrip())
            for event in events:
                self._take(event)
        if self.losses:
            self._last_step = (self.losses[-1][0], time.monotonic())
            self._first_step = self._first_step or self._last_step

    def _take(self, event: Event) -> None:
        if event["event"] == "begin":
            self._begin_stage(event["steps"])
        elif event["event"] == "step":
            self.losses.append((event["step"], event["loss"]))
        elif event["event"] == "evaluation" and event["validation_loss"] is not None:
            self.measured.append((event["step"], event["validation_loss"]))

    def _begin_stage(self, steps: int) -> None:
        self.steps = steps
        self.losses = []
        self.measured = []
        self._first_step = None
        self._last_step = None

    def stop(self) -> None:
        """Stops it as ^C does."""
        if self._process and self.running:
            _interrupt(self._process)

    def close(self) -> None:
        """Stops it, and waits until it has ended."""
        if self._process and self.running:
            end_recipe(self._process, PATIENCE)

    def leave(self) -> None:
        """Counts a closed tab. With the last one a rehearsal ends, because no page could stop it
        any more; a training takes longer, and continues."""
        self.watching -= 1
        if not self.watching and self.work.needs_tab:
            self.stop()
