"""Meeting: before plain machines train together, each says who it is, and the main one compares.

One JSON object a line over TCP, on the port where training will meet afterwards. Every machine says hello; when all
are there, the main one answers each `{"refused": [...]}` or `{"accepted": true}`, prepares what all need, saying
`{"waiting": true}` now and then, and at last `{"ready": true}`. A connection that closes before that, or on which nothing
comes for `wait_minutes`, means that the main machine has stopped.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runner.problem import Stop

Tell = Callable[[str], None]
MOST_BYTES = 100_000
TELL_EVERY_S = 15.0


@dataclass(frozen=True)
class Hello:
    """Who a machine is. rank: its number; gpus: how many it uses; total: how many all are to use; fingerprint: of its
    recipe; versions: of its packages."""

    rank: int
    gpus: int
    total: int
    fingerprint: str
    versions: Mapping[str, str]

    @staticmethod
    def read(value: Any) -> Hello | None:
        try:
            counts = (int(value[name]) for name in ("rank", "gpus", "total"))
            return Hello(*counts, str(value["fingerprint"]), dict(value["versions"]))
        except (KeyError, TypeError, ValueError):
            return None


def differences(main: Hello, other: Hello) -> list[str]:
    """What keeps a machine from training with the main one, a sentence each."""
    found = []
    if main.fingerprint != other.fingerprint:
        found.append(
            f"machine {other.rank} has another recipe ({other.fingerprint}) than machine 0 ({main.fingerprint}); copy the folder of scripts anew to both"
        )
    if main.total != other.total:
        found.append(
            f"machine {other.rank} has TOTAL_GPUS {other.total}, and machine 0 has {main.total}; give every machine the same"
        )
    for package in sorted({*main.versions, *other.versions}):
        here, there = (hello.versions.get(package, "none") for hello in (main, other))
        if here != there:
            found.append(f"machine {other.rank} has {package} {there}, and machine 0 has {here}; install the same")
    return found


class Main:
    """The main machine's side: `gather`, then `ready`. Closing it early tells the others that it stopped."""

    def __init__(self, hello: Hello, nodes: int, port: int, patience_s: float, tell: Tell) -> None:
        self.hello, self.nodes, self.patience_s, self.tell = hello, nodes, patience_s, tell
        self.others: dict[int, tuple[Hello, socket.socket]] = {}
        try:
            # SO_REUSEADDR is set by this call, so that torchrun can open the port right afterwards.
            self.listener = socket.create_server(("", port), backlog=nodes)
        except OSError as error:
            raise Stop(
                f"Port {port} of this machine cannot be opened: {error.strerror}.",
                "End what uses it, or choose another `nodes.port`.",
            ) from None

    def __enter__(self) -> Main:
        return self

    def __exit__(self, *_: Any) -> None:
        for _, connection in self.others.values():
            connection.close()
        self.listener.close()

    def gather(self) -> list[int]:
        """Waits for all machines; returns their GPU counts by rank.

        Raises Stop where one does not come, or differs; then every machine that is there hears why.
        """
        deadline, problems = time.monotonic() + self.patience_s, []
        while not problems and (missing := self._missing()):
            if not (connection := self._next(deadline, missing)):
                continue
            other = Hello.read(_receive(connection))
            if other is None:
                # Whoever only looks whether the port is open.
                connection.close()
            elif other.rank not in self._missing():
                problems.append(f"a second machine says that it is machine {other.rank}; start each script once")
                self.others[-1] = (other, connection)
            else:
                self.others[other.rank] = (other, connection)
                problems += differences(self.hello, other)
        self._answer({"refused": problems} if problems else {"accepted": True})
        if problems:
            raise Stop("The machines cannot train together:\n" + "\n".join(f"  {problem}" for problem in problems))
        return [self.hello.gpus, *(self.others[rank][0].gpus for rank in range(1, self.nodes))]

    def _missing(self) -> list[int]:
        """The machines that are not there. One whose script was ended is not, and may come again."""
        for rank, (_, connection) in list(self.others.items()):
            if _hung_up(connection):
                connection.close()
                del self.others[rank]
        return [rank for rank in range(1, self.nodes) if rank not in self.others]

    def _next(self, deadline: float, missing: list[int]) -> socket.socket | None:
        """The next connection, or None after a while without one."""
        left = deadline - time.monotonic()
        names = ", ".join(f"run_node{rank}.sh" for rank in missing)
        if left <= 0:
            raise Stop(f"Not all machines came: {names} did not start in time.", "Start them, and this one again.")
        self.listener.settimeout(min(TELL_EVERY_S, left))
        try:
            return self.listener.accept()[0]
        except TimeoutError:
            self.tell(f"Waiting for {names}")
            return None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the main machine prepares, which may take longer than anybody waits for a silent one, it says so."""
        done = threading.Event()

        def tell() -> None:
            while not done.wait(min(TELL_EVERY_S, self.patience_s / 4)):
                self._answer({"waiting": True})

        thread = threading.Thread(target=tell, name="waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            # Before anything else is said, so that no two lines mix.
            done.set()
            thread.join()

    def refuse(self, reason: str) -> None:
        self._answer({"refused": [reason]})

    def ready(self) -> None:
        self._answer({"ready": True})
        # The others hang up first, so that the port is free here at once.
        for _, connection in self.others.values():
            connection.settimeout(5)
            _receive(connection)

    def _answer(self, value: Mapping[str, Any]) -> None:
        for _, connection in self.others.values():
            try:
                connection.sendall(json.dumps(value).encode() + b"\n")
            except OSError:
                continue


def join(hello: Hello, address: str, port: int, patience_s: float, tell: Tell) -> None:
    """Another machine's side: waits for the main machine's port, says hello, and waits until all is ready.

    Raises Stop where the main machine does not come, refuses, or stops.
    """
    connection = _connect(address, port, patience_s, tell)
    with connection:
        connection.sendall(json.dumps(hello.__dict__).encode() + b"\n")
        connection.settimeout(patience_s)
        for expected in ("accepted", "ready"):
            while isinstance(answer := _receive(connection), dict) and answer.get("waiting"):
                continue
            if not isinstance(answer, dict):
                raise Stop(
                    "The main machine has stopped, or goes on without this one.",
                    f"Its own output says why. It goes on where another machine has come as machine {hello.rank}.",
                )
            if problems := answer.get("refused"):
                raise Stop("The machines cannot train together:\n" + "\n".join(f"  {problem}" for problem in problems))
            if not answer.get(expected):
                raise Stop(f"Something else than the main machine answers at {address}:{port}.", "Check `nodes.port`.")
            tell("Same recipe and packages as machine 0; it prepares the data" if expected == "accepted" else "Ready")


def _connect(address: str, port: int, patience_s: float, tell: Tell) -> socket.socket:
    deadline, told = time.monotonic() + patience_s, 0.0
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError as error:
            now = time.monotonic()
            if now >= deadline:
                raise Stop(
                    f"The main machine does not answer at {address}:{port}: {error.strerror or error}.",
                    "Start run_node0.sh there; check MAIN_NODE_IP, and that no firewall closes the port.",
                ) from None
            if now - told >= TELL_EVERY_S:
                tell(f"Waiting for the main machine at {address}:{port}")
                told = now
            time.sleep(1)


def _hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection; takes nothing of what it has said."""
    patience = connection.gettimeout()
    # With a time limit Python would wait for something to read.
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(patience)


def _receive(connection: socket.socket) -> Any:
    """The next line's JSON; None where the other side has hung up, says nothing in time, or talks nonsense."""
    line = b""
    if connection.gettimeout() is None:
        connection.settimeout(10)
    try:
        # Byte by byte, so that nothing of the next line is taken.
        while not line.endswith(b"\n") and len(line) < MOST_BYTES:
            if not (byte := connection.recv(1)):
                return None
            line += byte
        return json.loads(line)
    except (OSError, ValueError):
        return None
