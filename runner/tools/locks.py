"""Locks on files, so that two commands never work in one folder. They end with their process, also
with one that is killed."""

import sys
from typing import IO, Any


class Busy(Exception):
    """Another process holds the lock."""


def take(file: IO[Any]) -> None:
    """Locks an open file until it is closed. Raises Busy."""
    # Slow to load, because portalocker has other kinds of locks too.
    import portalocker

    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except (OSError, portalocker.LockException):
        raise Busy from None


def wait(file: IO[Any]) -> None:
    """Locks an open file until it is closed, as soon as no other process holds the lock."""
    import portalocker

    portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE)


def is_taken(file: IO[Any]) -> bool:
    """Whether a process holds the lock of an open file. Asking keeps no other process out. On
    Windows it does, for a moment, because locks there are all exclusive."""
    import portalocker

    kind = portalocker.LockFlags.SHARED
    if sys.platform == "win32":
        kind = portalocker.LockFlags.EXCLUSIVE
    try:
        portalocker.lock(file, kind | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return True
    except (OSError, portalocker.LockException):
        return False
    return False
