"""Leash: an engine ends when the command that started it is gone, so that two never work in one folder."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

# The process that must live; `runner.execute.launch` sets it, a cluster does not.
NAME = "RECIPE_RUNNER_LEASH"
SECONDS = 0.5


def hold() -> None:
    """Watches from a thread of its own; does nothing where nobody holds the leash."""
    holder = os.environ.get(NAME, "")
    if holder.isdigit():
        _start(int(holder))
        # A fork takes no threads along, and a pool's manager would wait for ever for a parent that is gone.
        os.register_at_fork(after_in_child=lambda: _start(int(holder)))


def _start(holder: int) -> None:
    threading.Thread(target=_watch, args=(holder,), daemon=True).start()


def _watch(holder: int) -> None:
    while alive(holder):
        time.sleep(SECONDS)
    # At once and without cleaning up, as a kill would: whoever goes on trusts complete checkpoints alone.
    os._exit(1)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        return True
    return not state or state[0] not in ("Z", "X")
