"""Fork server: one process imports what engines import, and forks itself for each stage of a rehearsal, because
importing Axolotl takes longer than training a tiny model.

`python -m runner.trainer.fork_server FD` serves the socket FD. A request is a program as JSON (`module`, the modules to
import `before`, `arguments`, `env`, the process `group`) with the file for its output. The answers are the number of
its process and, at its end, its exit status. A request without arguments only imports, in idle time. Each program has
such a socket, too.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from runner.tools import child_process

_MODELS = ("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
# Programs to fork, and the modules to import before; the runner's other programs need `_MODELS`.
_AXOLOTL = ("axolotl.cli.main", "axolotl.cli.train", "axolotl.core.builders", "runner.trainer.plugin")
PROGRAMS = {
    "axolotl.cli.main": (*_MODELS, *_AXOLOTL),
    "runner.parts.evaluate.evaluate": (*_MODELS, "peft"),
    "runner.trainer.merging": (*_MODELS, "peft"),
}
# Bytes of a request.
LONGEST = 2**17


class Forked:
    """A program in a fork: as much of `subprocess.Popen` as a launch needs."""

    def __init__(self, server: socket.socket, pid: int, stdout: IO[str] | None = None) -> None:
        self._server, self.pid, self.stdout = server, pid, stdout

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Raises TimeoutExpired."""
        self._server.settimeout(timeout)
        try:
            # Without the server, the end of the program is unknown.
            return int(self._server.recv(LONGEST) or b"1")
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None


class ForkServer:
    """The connection to a server. group: the process group of its programs; 0 for a group of their own. other_end: of
    `asked`, until a process has it."""

    def __init__(self, asked: socket.socket, group: int, other_end: socket.socket | None = None) -> None:
        self.asked, self.group, self.other_end = asked, group, other_end
        self.process: subprocess.Popen[bytes] | None = None

    def send(self, message: Mapping[str, Any], env: Mapping[str, str], *files: int) -> None:
        """Sends a request; the first one starts the process, in its environment. Raises OSError if the process is
        gone."""
        if self.other_end is not None:
            # Importing prints nothing of use.
            quiet, fd = subprocess.DEVNULL, self.other_end.fileno()
            here = [sys.executable, "-m", "runner.trainer.fork_server", str(fd)]
            self.process = subprocess.Popen(
                here, env=dict(env), pass_fds=[fd], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
            )
            self.other_end.close()
            self.other_end = None
        self.asked.settimeout(None)
        socket.send_fds(self.asked, [json.dumps(message).encode()], files)


# The last one is used; in a fork, the server that forked it.
_servers: list[ForkServer] = []


@contextmanager
def forking() -> Iterator[None]:
    """Gives `fork` a server for as long as this lasts. Only on Linux: elsewhere libraries break in a fork."""
    if sys.platform != "linux":
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = ForkServer(ours, 0, theirs)
    _servers.append(server)
    try:
        yield
    finally:
        _servers.remove(server)
        ours.close()
        theirs.close()
        if server.process is not None:
            # It may be importing. Its programs watch their parent themselves.
            server.process.kill()
            server.process.wait()


def _request(command: list[str], env: Mapping[str, str]) -> dict[str, Any] | None:
    """The request for a command that a server can fork: a known program, no GPU, because CUDA does not survive a fork.
    None for any other command."""
    module = command[2] if command[:2] == [sys.executable, "-m"] else ""
    before = PROGRAMS.get(module, _MODELS if module.startswith("runner.") else None)
    if not _servers or before is None or env.get("CUDA_VISIBLE_DEVICES") != "":
        return None
    return {"module": module, "before": before, "arguments": command[3:], "env": dict(env)}


def ahead(command: list[str], env: Mapping[str, str]) -> None:
    """Lets a server import what a command will need, while something else continues; also for a program in several
    processes: they are not forks, but find the files in the disk cache."""
    if request := _request(command, env):
        # Without a server, `fork` leaves the program to a process of its own.
        with suppress(OSError):
            _servers[-1].send({"before": request["before"]}, env)


def _fork(command: list[str], env: Mapping[str, str], output: int) -> Forked | None:
    """As `fork`. output: the file that the program writes into."""
    if "torchrun" in command or not (request := _request(command, env)):
        return None
    server = _servers[-1]
    with suppress(OSError):
        server.send(request | {"group": server.group}, env, output)
        if pid := int(server.asked.recv(LONGEST) or b"0"):
            return Forked(server.asked, pid)
    return None


def fork(command: list[str], env: Mapping[str, str]) -> Forked | None:
    """A command's program in a fork, with its output to read; None if it needs a process of its own."""
    reads, writes = os.pipe()
    forked = _fork(command, env, writes)
    os.close(writes)
    if forked is None:
        os.close(reads)
        return None
    forked.stdout = os.fdopen(reads, encoding="utf-8", errors="replace")
    return forked


def run(command: list[str], env: Mapping[str, str]) -> None:
    """Runs a command to its end, in a fork where possible, with this process's output. Raises CalledProcessError."""
    forked = _fork(command, env, 1)
    if forked is None:
        subprocess.run(command, env=dict(env), check=True)
    elif code := forked.wait():
        raise subprocess.CalledProcessError(code, command)


class _Serving:
    """The server's side: answers requests until this process is a fork."""

    def __init__(self, first: socket.socket) -> None:
        self._first, self._begun_with = first, dict(os.environ)
        self._to_import: deque[str] = deque()
        # Sockets of clients; and of each program a file that reports its end, with its number and the client.
        self._watched = selectors.PollSelector()
        self._watched.register(first, selectors.EVENT_READ)

    def program(self) -> tuple[str, list[str]] | None:
        """In a fork, the module and the arguments to continue with; None when the first socket is closed."""
        while self._first.fileno() >= 0:
            # Requests come before imports.
            ready = self._watched.select(0 if self._to_import else None)
            if not ready:
                importlib.import_module(self._to_import.popleft())
            for key, _ in ready:
                if isinstance(key.fileobj, socket.socket):
                    if program := self._answer(key.fileobj):
                        return program
                else:
                    self._tell_end(key)
        return None

    def _answer(self, asker: socket.socket) -> tuple[str, list[str]] | None:
        message, files = b"", list[int]()
        # A client that is gone without having read an answer leaves an error.
        with suppress(OSError):
            message, files, *_ = socket.recv_fds(asker, LONGEST, 1)
        if not message:
            self._watched.unregister(asker)
            asker.close()
            return None
        asked = json.loads(message)
        if "arguments" not in asked:
            self._to_import.extend(asked["before"])
            return None
        for name in asked["before"]:
            importlib.import_module(name)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Forks need not search for garbage in imported modules.
        gc.freeze()
        if (pid := os.fork()) == 0:
            ours.close()
            self._become(asked, files[0], theirs)
            return asked["module"], asked["arguments"]
        # Before a client ends its group.
        with suppress(OSError):
            os.setpgid(pid, asked["group"])
        theirs.close()
        os.close(files[0])
        self._watched.register(ours, selectors.EVENT_READ)
        self._watched.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asker))
        with suppress(OSError):
            asker.send(str(pid).encode())
        return None

    def _become(self, asked: Mapping[str, Any], output: int, asks: socket.socket) -> None:
        from runner.trainer import fork_server

        for key in self._watched.get_map().values():
            key.fileobj.close() if isinstance(key.fileobj, socket.socket) else os.close(key.fd)
        os.setpgid(0, asked["group"])
        for file in (1, 2):
            os.dup2(output, file)
        os.close(output)
        # What imports have set stays; the environment of the program before goes.
        own = {name: value for name, value in os.environ.items() if self._begun_with.get(name) != value}
        os.environ.clear()
        os.environ.update(asked["env"] | own)
        # The same server forks its own programs, in its group, so that they end with it.
        fork_server._servers[:] = [fork_server.ForkServer(asks, os.getpgrp())]

    def _tell_end(self, key: selectors.SelectorKey) -> None:
        pid, asker = key.data
        self._watched.unregister(key.fileobj)
        os.close(key.fd)
        with suppress(OSError):
            asker.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main(fd: int) -> None:
    status = 0

    def end() -> None:
        """Ends the process after everything else, because a fork needs longer to unload its imports than many programs
        run."""
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

    # Before anything is imported: what was registered first is called last.
    atexit.register(end)
    child_process.watch_parent()
    if (program := _Serving(socket.socket(fileno=fd)).program()) is not None:
        module, arguments = program
        # runpy warns that the module is imported already.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except BaseException as ended:
            code = ended.code if isinstance(ended, SystemExit) else 1
            status = code if isinstance(code, int) else int(code is not None)
            raise


if __name__ == "__main__":
    main(int(sys.argv[1]))
