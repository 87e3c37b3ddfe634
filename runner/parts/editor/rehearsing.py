"""`recipe rehearse` as a process beside the page, and its output so far."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.commands.run import EVENTS
from runner.tools import child_process

# The most bytes of a line.
LONGEST = 2**22
# The command's exit code after ^C.
INTERRUPTED = 130


class RehearsalProcess:
    """A rehearsal, one at a time. Its results stay in its run folder, and the next one continues from there.

    lines: the output of the command. losses, measured: (step, loss) of training and of validation in the latest stage;
    steps: its planned number. code: the exit code, None before the end. number: of rehearsals so far. news: a counter
    of all changes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.losses: list[tuple[int, float]] = []
        self.measured: list[tuple[int, float]] = []
        self.steps = self.number = self.news = 0
        self.code: int | None = None
        self.running = False
        self._watching = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def state(self) -> str:
        if self.running:
            return f"Rehearsing: {f'step {self.losses[-1][0]} of {self.steps}' if self.losses else 'preparing'}."
        if self.code == INTERRUPTED:
            return "The rehearsal was stopped. The next one reuses the parts that are finished."
        passed = "The rehearsal passed: the whole recipe works here, with a tiny model. Report shows what it learned."
        return passed if self.code == 0 else "The rehearsal failed. The last lines below explain why."

    async def run(self, file: Path) -> None:
        """Rehearses the saved recipe to the end; does nothing while another rehearsal runs."""
        if self.running:
            return
        self.lines, self.losses, self.measured, self.steps, self.code = [], [], [], 0, None
        self.running = True
        self.number += 1
        self.news += 1
        try:
            self.code = await self._follow(file)
        finally:
            self.running = False
            self.news += 1

    async def _follow(self, file: Path) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runner", "rehearse", str(file)),
            env=os.environ | {EVENTS: "1", "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST,
            # ^C in the terminal goes to the page, which then stops this process.
            start_new_session=True,
            # A shell starts background processes so that they ignore ^C, which must stop this one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            if events := list(child_process.events(text)):
                for event in events:
                    self._heard(event)
            else:
                self.lines.append(text)
            self.news += 1
        return await process.wait()

    def _heard(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "begin":
            self.losses, self.measured, self.steps = [], [], event["steps"]
        elif event["event"] == "step":
            self.losses.append((event["step"], event["loss"]))
        elif event["event"] == "evaluation" and event["validation_loss"] is not None:
            self.measured.append((event["step"], event["validation_loss"]))

    def stop(self) -> None:
        """Stops it as ^C does."""
        if self.running and self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    def watch(self) -> None:
        """Counts a tab that shows it."""
        self._watching += 1

    def leave(self) -> None:
        """Counts a closed tab. With the last one the rehearsal ends, because no page could stop it any more."""
        self._watching -= 1
        if not self._watching:
            self.stop()
