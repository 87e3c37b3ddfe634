"""Ports of this machine, for itself alone."""

import errno
import socket

from runner.tools.problem import Stop

HOST = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket on that port, 0 for any that is free, before it listens. Raises Stop where the port cannot be had."""
    held = socket.socket()
    # A port that was closed a moment ago is free.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except OSError as error:
        held.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise Stop(
            f"Port {port} of this machine {why}.", "Name another with `--port`, or `--port 0` for any."
        ) from None
    return held


def free(port: int = 0) -> int:
    """The port, or with 0 one that is free. Raises Stop where it cannot be had."""
    with bound(port) as held:
        return int(held.getsockname()[1])
