"""Fork server: one process imports what engines import, and forks itself for each stage of a
rehearsal, because importing Axolotl takes longer than training a tiny model.

`python -m runner.trainer.fork_server FD` listens on the socket FD. A request is a program:
`module`, the modules to import `before`, `arguments`, `env`, the `folder` and the process `group`;
and the file for its output. The answers are the number of its process and, at its end, its exit
status. A request for no `group` only imports, in idle time. Programs in forks use the same server
for programs of their own; with Python's `multiprocessing` they would start another one.
"""

import atexit
import gc
import importlib
import os
import runpy
import socket
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryDirectory
from typing import IO

from runner.tools import child_process, packaged

_TABLE = packaged.toml(__file__, "programs.toml")
_MODELS = _TABLE["models"]
PROGRAMS = {program: (*_MODELS, *modules) for program, modules in _TABLE["programs"].items()}
ADDRESS = (
    "RECIPE_RUNNER_FORKS"  # the environment variable with the server's address, for programs too
)


@contextmanager
def forking(env: Mapping[str, str]) -> Iterator[None]:
    """A context in which `fork` has a server with this environment, or that of the context around
    it; only on Linux: elsewhere forks break libraries."""
    if sys.platform != "linux" or ADDRESS in os.environ:
        yield
        return
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/forks")
        listener.listen()
        # Importing prints nothing of use.
        quiet = subprocess.DEVNULL
        fd = listener.fileno()
        command = [sys.executable, "-m", "runner.trainer.fork_server", str(fd)]
        server = subprocess.Popen(
            command,
            env=dict(env),
            pass_fds=[fd],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        listener.close()
        os.environ[ADDRESS] = f"{folder}/forks"
        try:
            yield
        finally:
            os.environ.pop(ADDRESS, None)
            # Killed, because it may be importing. Its programs watch their parent themselves.
            server.kill()
            server.wait()


class Forked:
    """A program in a fork: as much of `subprocess.Popen` as a launch needs."""

    def __init__(self, server: Connection, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.stdout: IO[str] | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Raises TimeoutExpired."""
        if not self._server.poll(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        try:
            return int(self._server.recv()[1])
        except (OSError, EOFError):
            return 1  # without the server, the exit status is unknown


def _fork(
    command: list[str], env: Mapping[str, str], group: int | None, output: int = 1
) -> Forked | None:
    """As `fork`; only known programs without a GPU, because CUDA does not survive a fork. group: of
    processes; 0 for one of its own, None to import alone. output: the file that the program writes
    into."""
    if command[:2] == [sys.executable, "-m"]:
        module = command[2]
    else:
        module = ""
    before = PROGRAMS.get(module, _MODELS if module.startswith("runner.") else None)
    several = "torchrun" in command and group is not None
    if (
        ADDRESS not in os.environ
        or before is None
        or several
        or env.get("CUDA_VISIBLE_DEVICES") != ""
    ):
        return None
    request = {
        "module": module,
        "before": before,
        "arguments": command[3:],
        "env": dict(env),
        "folder": os.getcwd(),
    }
    with suppress(OSError, EOFError):
        server = Client(os.environ[ADDRESS])
        server.send({**request, "group": group})
        if group is not None:
            send_handle(server, output, 0)
            begun, number = server.recv()
            if begun:
                return Forked(server, number)
            return None
    return None


def ahead(command: list[str], env: Mapping[str, str]) -> None:
    """Lets the server import what a command needs. Programs of several processes then find the
    files cached."""
    _fork(command, env, None)


def fork(command: list[str], env: Mapping[str, str]) -> Forked | None:
    """A command's program in a fork, with its output to read; None if it needs a process of its
    own."""
    reads, writes = os.pipe()
    forked = _fork(command, env, 0, writes)
    os.close(writes)
    if forked is None:
        os.close(reads)
        return None
    forked.stdout = os.fdopen(reads, encoding="utf-8", errors="replace")
    return forked


def run(command: list[str], env: Mapping[str, str]) -> None:
    """Runs a command to its end, in a fork where possible, with this process's output, and in its
    group, so that they end together. Raises CalledProcessError."""
    forked = _fork(command, env, os.getpgrp())
    if forked is None:
        subprocess.run(command, env=dict(env), check=True)
    elif code := forked.wait():
        raise subprocess.CalledProcessError(code, command)


def _import(name: str) -> None:
    """Imports a module, if it can be: where a package is missing, the program says so in its own
    log."""
    with suppress(Exception):
        importlib.import_module(name)


def _serve(listener: socket.socket) -> tuple[str, list[str]]:
    """Answers requests without end; in a fork, returns the module and the arguments to continue
    with."""
    begun_with = dict(os.environ)
    to_import = deque[str]()
    while True:
        if to_import and not wait([listener], 0):  # requests come first
            _import(to_import.popleft())
            continue
        asker = Connection(listener.accept()[0].detach())
        with suppress(OSError, EOFError):  # the client may be gone
            request = asker.recv()
            if request["group"] is None:
                to_import.extend(request["before"])
                continue
            output = recv_handle(asker)
            for name in request["before"]:
                _import(name)
            gc.freeze()  # forks need not search for garbage in imported modules
            pid = os.fork()
            if pid == 0:
                listener.close()
                os.setpgid(0, request["group"])
                os.chdir(request["folder"])
                for file in (1, 2):
                    os.dup2(output, file)
                os.close(output)
                # Variables that imports have set stay; the server's other variables do not.
                set_by_imports = {
                    name: value
                    for name, value in os.environ.items()
                    if begun_with.get(name) != value
                }
                os.environ.clear()
                os.environ.update(request["env"] | set_by_imports)
                _take_threads()
                asker.send((True, os.getpid()))
                asker.close()
                return request["module"], request["arguments"]
            os.close(output)
            threading.Thread(target=_tell_end, args=(pid, asker), daemon=True).start()


def _take_threads() -> None:
    """Gives torch the fork's own number of threads: its library has read that variable of the
    server at its import."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if "torch" in sys.modules and wanted.isdigit() and int(wanted) > 0:
        sys.modules["torch"].set_num_threads(int(wanted))


def _tell_end(pid: int, asker: Connection) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError), asker:
        asker.send((False, code))


def main(fd: int) -> None:
    status = 0

    def end() -> None:
        """Ends the process at once, because unloading its imports takes a fork longer than many
        programs run."""
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

    # Before anything is imported: what was registered first is called last.
    atexit.register(end)
    child_process.watch_parent()
    module, arguments = _serve(socket.socket(fileno=fd))
    # runpy warns that the module is imported already.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as ended:
        if isinstance(ended, SystemExit):
            code = ended.code
        else:
            code = 1
        if isinstance(code, int):
            status = code
        else:
            status = int(code is not None)
        raise


if __name__ == "__main__":
    main(int(sys.argv[1]))
