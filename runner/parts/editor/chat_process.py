"""`recipe chat --page` as a process beside the page: its address, and why there is none."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from runner.parts.editor.run_process import RECIPE, end_recipe, start_recipe
from runner.run.run_folder import RunFolder
from runner.tools.problem import Stop
from runner.tools.run_files import RUN

NOTHING_YET = (
    "There is nothing to chat with yet: press Train here, and come back when training has finished."
)
STARTS_WITH = "The page: "  # the line with the address
SECONDS = 300  # in which both models are loaded
PATIENCE = 5  # seconds in which it ends


class ChatProcess:
    """The chat page of the latest training, one at a time. recipe_command: the words of the command
    `recipe`."""

    def __init__(self, recipe_command: Sequence[str] = RECIPE) -> None:
        self.recipe_command = recipe_command
        # Two tabs may ask at once.
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # The run that it chats with, and when that last changed.
        self._run: tuple[Path, int] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name, "output")

    def address(self, file: Path, run: RunFolder) -> str:
        """The address of the chat page for a recipe's run, which is started if it does not run yet,
        and again after another training. Raises Stop if the run has no trained model, or the chat
        does not start."""
        with self._lock:
            if run.state.status != "finished":
                raise Stop(NOTHING_YET)
            run_now = (run.path, (run.path / RUN).stat().st_mtime_ns)
            if self._process is None or self._process.poll() is not None or self._run != run_now:
                self._end()
                self._run = run_now
                words = ("chat", str(file), "--run", str(run.path), "--page", "--port", "0")
                self._process = start_recipe((*self.recipe_command, *words), self._output)
            return self._until_ready(self._process)

    def close(self) -> None:
        """Ends the chat page, also one that is starting."""
        self._end()

    def _end(self) -> None:
        if self._process and self._process.poll() is None:
            end_recipe(self._process, PATIENCE)

    def _until_ready(self, process: subprocess.Popen[bytes]) -> str:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            is_running = process.poll() is None
            lines = self._output.read_text("utf-8", "replace").splitlines()
            for line in lines:
                if line.startswith(STARTS_WITH):
                    return line.removeprefix(STARTS_WITH).split()[0]
            if not is_running:
                raise Stop("\n".join(lines[-10:]) or "The chat ended without a message.")
            time.sleep(0.1)
        raise Stop(f"The chat did not start within {SECONDS} seconds.")
