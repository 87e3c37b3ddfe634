"""Fork server: one process imports what engines import, and the stages of a rehearsal are forks of it, because a tiny model is
trained in less time than Axolotl is imported.

`python -m runner.runs.fork_server FD`: FD is a socket. It gets a program as JSON (`module`, what is imported `before`,
`arguments`, `env`) with the pipe that its output goes to, answers with the number of the process that it has become, and with its
exit status when it has ended. Without arguments, it only imports.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from runner.training import parent_watch

# Programs that are forked, and what is imported before.
PROGRAMS = {
    "axolotl.cli.main": ("axolotl.cli.main", "axolotl.cli.train", "runner.training.plugin"),
    "runner.runs.evaluate": ("peft",),
}
# Bytes of a program with its environment.
LONGEST = 2**17


class Forked:
    """A program in a fork: as much of `subprocess.Popen` as a launch needs."""

    def __init__(self, server: socket.socket, pid: int, stdout: IO[str]) -> None:
        self._server, self.pid, self.stdout = server, pid, stdout

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Raises TimeoutExpired."""
        self._server.settimeout(timeout)
        try:
            # A server that is gone has told nobody how its program ended.
            return int(self._server.recv(LONGEST) or b"1")
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None


class Server:
    """The process is begun with the first program, in its environment."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self, env: Mapping[str, str]) -> None:
        if self._process is None:
            # What importing says is in the log of every engine with a process of its own, and nowhere of use.
            quiet, fd = subprocess.DEVNULL, self._theirs.fileno()
            here = [sys.executable, "-m", "runner.runs.fork_server", str(fd)]
            self._process = subprocess.Popen(
                here, env=dict(env), pass_fds=[fd], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
            )
            self._theirs.close()

    def ahead(self, command: list[str], env: Mapping[str, str]) -> None:
        """Has the command's program imported meanwhile."""
        if module := _forkable(command, env):
            self._begin(env)
            # A server that is gone already is no fault: `fork` leaves the program to a process of its own.
            with suppress(OSError):
                self._ours.send(json.dumps({"before": PROGRAMS[module]}).encode())

    def fork(self, command: list[str], env: Mapping[str, str]) -> Forked | None:
        """None where the command can be no fork, or is one of several processes, or nobody is there to fork it."""
        if not (module := _forkable(command, env)) or "torchrun" in command:
            return None
        self._begin(env)
        reads, writes = os.pipe()
        program = {"module": module, "before": PROGRAMS[module], "arguments": command[3:], "env": dict(env)}
        try:
            self._ours.settimeout(None)
            socket.send_fds(self._ours, [json.dumps(program).encode()], [writes])
            pid = int(self._ours.recv(LONGEST) or b"0")
        except OSError:
            pid = 0
        os.close(writes)
        if not pid:
            os.close(reads)
            return None
        return Forked(self._ours, pid, os.fdopen(reads, encoding="utf-8", errors="replace"))

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            # It may be importing; a program of it that nobody has ended watches for itself who has begun it.
            self._process.kill()
            self._process.wait()


def _forkable(command: list[str], env: Mapping[str, str]) -> str:
    """The module of a command; empty where it is none of the programs, or runs on GPUs: what CUDA has begun goes on in no fork."""
    module = command[2] if command[:2] == [sys.executable, "-m"] else ""
    return module if module in PROGRAMS and env.get("CUDA_VISIBLE_DEVICES") == "" else ""


_servers: list[Server] = []


@contextmanager
def forking() -> Iterator[None]:
    """As long as this lasts, `fork` has a server. On Linux alone: elsewhere libraries do not go on in a fork."""
    if sys.platform == "linux":
        _servers.append(Server())
    try:
        yield
    finally:
        if _servers:
            _servers.pop().close()


def ahead(command: list[str], env: Mapping[str, str]) -> None:
    """Lets a server import what a command will need, while something else goes on."""
    if _servers:
        _servers[-1].ahead(command, env)


def fork(command: list[str], env: Mapping[str, str]) -> Forked | None:
    """A command's program in a fork; None where it is to be a process from its beginning."""
    return _servers[-1].fork(command, env) if _servers else None


def _serve(asked: socket.socket) -> tuple[str, list[str]] | None:
    """The module and the arguments that this process is to go on with: it is a fork then. None when nobody asks any more."""
    begun_with = dict(os.environ)
    while True:
        message, pipes, *_ = socket.recv_fds(asked, LONGEST, 1)
        if not message:
            return None
        program = json.loads(message)
        for name in program["before"]:
            importlib.import_module(name)
        if "arguments" not in program:
            continue
        if (pid := os.fork()) == 0:
            asked.close()
            os.setpgid(0, 0)
            for output in (1, 2):
                os.dup2(pipes[0], output)
            # What imports have set stays, and nothing of the program before.
            own = {name: value for name, value in os.environ.items() if begun_with.get(name) != value}
            os.environ.clear()
            os.environ.update(program["env"] | own)
            return program["module"], program["arguments"]
        # Whoever ends it by its group may be faster than it is.
        with suppress(OSError):
            os.setpgid(pid, pid)
        os.close(pipes[0])
        asked.send(str(pid).encode())
        asked.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main(fd: int) -> None:
    parent_watch.start()
    if (program := _serve(socket.socket(fileno=fd))) is not None:
        module, arguments = program
        # That it was imported before is what is wanted.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
