"""The connection between an engine's process and the command that started it. The process ends when
the command is gone, so that two never work in one folder. Lines of its output report its
progress."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from runner.tools.problem import Stop, Unreachable

# The environment variable with the parent's process id; `run.launch`, `parts.jobs.stage`, the
# editor and `run_node.sh` set it.
PARENT = "RECIPE_RUNNER_PARENT"
SECONDS = 0.5


def watch_parent() -> None:
    """Ends this process when the parent that PARENT names is gone; does nothing without a
    parent."""
    parent = os.environ.get(PARENT, "")
    if parent.isdigit():
        end_with(int(parent))
        if sys.platform != "win32":
            # A fork has no threads of its parent, and a pool's manager would wait without end for
            # a parent that is gone.
            os.register_at_fork(after_in_child=lambda: end_with(int(parent)))


def end_with(parent: int) -> None:
    # Before the thread: a process that forks in the middle of an import leaves its child a lock
    # that is never opened.
    import psutil  # noqa: F401

    def watch() -> None:
        while alive(parent):
            time.sleep(SECONDS)
        # At once and without cleaning up, as a kill would: a resumed run trusts only complete
        # checkpoints.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# What psutil calls a process that has ended and was not yet collected by its parent.
ENDED = ("zombie", "dead")


def alive(process: int) -> bool:
    """Whether a process runs. A zombie does not."""
    import psutil  # late, because few commands need it

    try:
        return bool(psutil.Process(process).status() not in ENDED)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's
        return True


MARK = "[recipe] "
# Before the reason for which a process of ours ends itself: a reader of its log must tell it from
# all else that is there.
STOP_MARK = "Stopped by recipe-runner: "
# The exit status of a program of ours that would end in the same way if it ran again: no cluster
# has to try.
DECIDED = 3
Event = Mapping[str, Any]  # one event: `event` is its name, the rest are its figures
# The text beside a progress bar, for each phase.
TRAINING, MEASURING, SAVING, ASKING = "training", "measuring", "saving", "asking"
_DECODER = json.JSONDecoder()


def event_line(event: Event) -> str:
    return MARK + json.dumps(event)


def exit_status(stop: Stop) -> int:
    if isinstance(stop, Unreachable):
        return 1
    return DECIDED


def stop_line(reason: str) -> str:
    return f"{STOP_MARK}{reason}"


def tell(event: str, **facts: object) -> None:
    print(event_line({"event": event, **facts}), flush=True)


def events(text: str) -> Iterator[Event]:
    """Every complete event in a piece of a log. Processes share one output, so lines may be cut;
    these are skipped."""
    for part in text.split(MARK)[1:]:
        with suppress(ValueError):
            event, _ = _DECODER.raw_decode(part)
            if isinstance(event, dict):
                yield event
