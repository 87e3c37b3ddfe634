"""Locks on files, so that two commands never work in one folder. They end with their process, also
with one that is killed. Unix has them in the standard library, which is all that a stock image has;
for Windows, whose locks are all exclusive, portalocker has them."""

import sys
from typing import IO, Any

if sys.platform != "win32":
    import fcntl


class Busy(Exception):
    """Another process holds the lock."""


def take(file: IO[Any]) -> None:
    """Locks an open file until it is closed. Raises Busy."""
    if sys.platform == "win32":
        _take_on_windows(file)
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Busy from None


def wait(file: IO[Any]) -> None:
    """Locks an open file until it is closed, as soon as no other process holds the lock."""
    if sys.platform == "win32":
        import portalocker

        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE)
    else:
        fcntl.flock(file, fcntl.LOCK_EX)


def is_taken(file: IO[Any]) -> bool:
    """Whether a process holds the lock of an open file. Asking keeps no other process out; on
    Windows it does, for a moment."""
    try:
        if sys.platform == "win32":
            _take_on_windows(file)
        else:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, Busy):
        return True
    except OSError:
        return False
    return False


def _take_on_windows(file: IO[Any]) -> None:
    import portalocker

    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except (OSError, portalocker.LockException):
        raise Busy from None
