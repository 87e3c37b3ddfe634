"""`recipe rehearse` as a process beside the page, and its output so far."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.commands.run import EVENTS
from runner.tools import child_process


class RehearsalProcess:
    """A rehearsal, one at a time. Its results stay in its run folder, and the next one continues
    from there.

    lines: the output of the command. losses, measured: (step, loss) of training and of validation
    in the latest stage; steps: its planned number. number: of rehearsals so far; bytes: of the
    output, as far as it is read; watching: tabs that show it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.losses: list[tuple[int, float]] = []
        self.measured: list[tuple[int, float]] = []
        self.steps = self.number = self.bytes = self.watching = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name, "output")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def state(self) -> str:
        if self.running:
            return f"Rehearsing: {f'step {self.losses[-1][0]} of {self.steps}' if self.losses else 'preparing'}."
        if self._process:
            code = self._process.poll()
        else:
            code = None
        if code == 130:  # after ^C
            return "The rehearsal was stopped. The next one reuses the parts that are finished."
        passed = "The rehearsal passed: the whole recipe works here, with a tiny model. Report shows what it learned."
        if code == 0:
            return passed
        return "The rehearsal failed. The last lines below explain why."

    def start(self, file: Path) -> None:
        """Rehearses the saved recipe; does nothing while another rehearsal runs."""
        if self.running:
            return
        self.number += 1
        self.lines = []
        self.losses = []
        self.measured = []
        self.steps = 0
        self.bytes = 0
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "runner", "rehearse", str(file)),
                env=os.environ
                | {EVENTS: "1", "PYTHONUNBUFFERED": "1", child_process.PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # ^C in the terminal goes to the page, which then stops this process.
                start_new_session=True,
                # A shell starts background processes so that they ignore ^C, which must stop this
                # one.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

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
                if event["event"] == "begin":
                    self.losses = []
                    self.measured = []
                    self.steps = event["steps"]
                elif event["event"] == "step":
                    self.losses.append((event["step"], event["loss"]))
                elif event["event"] == "evaluation" and event["validation_loss"] is not None:
                    self.measured.append((event["step"], event["validation_loss"]))

    def stop(self) -> None:
        """Stops it as ^C does."""
        if self._process and self.running:
            self._process.send_signal(signal.SIGINT)

    def leave(self) -> None:
        """Counts a closed tab. With the last one the rehearsal ends, because no page could stop it
        any more."""
        self.watching -= 1
        if not self.watching:
            self.stop()
