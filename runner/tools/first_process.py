"""The first process of a container. The kernel gives it only the signals that it handles, and drops
all others."""

import os
import signal
import sys
from types import FrameType


def end_on_sigterm() -> None:
    """Lets SIGTERM end the first process of a container from now on; does nothing in other
    processes."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    # The exit status by which a shell reports a signal.
    sys.exit(128 + number)
