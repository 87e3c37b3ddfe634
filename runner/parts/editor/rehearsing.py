"""Rehearsing: `recipe rehearse` as a process beside the page, and what it has said so far."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.commands.run import EVENTS
from runner.trainer import child_process

# Bytes of a line at most.
LONGEST = 2**22
# What the command ends with after ^C.
INTERRUPTED = 130


class RehearsalProcess:
    """One at a time. What it trains stays in its run folder, and the next one goes on from there.

    lines: what the command has printed. losses, measured: of the stage that trains, or has trained last, (step, loss)
    of training and of validation. steps: it will make so many, a count. code: how it ended, None before that. number:
    of the rehearsals so far. news: grows with all of these."""

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
        """How far it is, as a sentence."""
        if self.running:
            return f"Rehearsing: {f'step {self.losses[-1][0]} of {self.steps}' if self.losses else 'preparing'}."
        if self.code == INTERRUPTED:
            return "The rehearsal was stopped. The next one goes on from what is finished."
        return "The rehearsal is done." if self.code == 0 else "The rehearsal has failed; the last lines say why."

    async def run(self, file: Path) -> None:
        """Rehearses the recipe in a file, as it is saved, to the end; where one runs already, nothing."""
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
            # ^C in the terminal is for the page, which then stops this process.
            start_new_session=True,
            preexec_fn=_heeds,
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
        """As ^C does."""
        if self.running and self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    def watch(self) -> None:
        """A tab shows it from now on."""
        self._watching += 1

    def leave(self) -> None:
        """A tab is closed; with the last one the rehearsal ends, because nobody could stop it any more."""
        self._watching -= 1
        if not self._watching:
            self.stop()


def _heeds() -> None:
    """What a shell starts in the background ignores ^C, and so would this process, which is stopped by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
