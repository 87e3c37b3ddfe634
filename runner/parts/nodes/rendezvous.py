"""Rendezvous: before plain machines train together, the main one compares their recipes, packages and GPUs.

They meet in a TCPStore of torch on the main machine, on the port of training. Each machine takes a number (`arrivals`),
writes `hello/NUMBER`, counts up `beat/NUMBER` while it waits, and finally writes `left/NUMBER`. When all have come, the
main one writes `met`, {"refused": [...]} or {"accepted": [NUMBER, ...]}, prepares the data, and writes `ready`. A store
that disappears before that, or does not answer for `wait_minutes`, means that the main machine has stopped.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from runner.tools.problem import Stop, worded

Tell = Callable[[str], None]
TELL_EVERY_S = 15.0
# The time between two reads of the store, and the least patience with a silent machine.
BEAT_S = 0.25
SILENT_S = 5.0


@dataclass(frozen=True)
class Hello:
    """A machine. rank: its number; gpus: how many it uses; total: TOTAL_GPUS of all machines; fingerprint: of its
    recipe; versions: of its packages."""

    rank: int
    gpus: int
    total: int
    fingerprint: str
    versions: Mapping[str, str]


def differences(main: Hello, other: Hello) -> list[str]:
    """Why a machine cannot train with the main one, a sentence for each difference."""
    machine, sentences = f"machine {other.rank} has", list[str]()
    if main.fingerprint != other.fingerprint:
        sentences.append(
            f"{machine} another recipe ({other.fingerprint}) than machine 0 ({main.fingerprint}); copy the folder of scripts to both again"
        )
    if main.total != other.total:
        sentences.append(
            f"{machine} TOTAL_GPUS {other.total}, but machine 0 has {main.total}; set the same on every machine"
        )
    for package in sorted({*main.versions, *other.versions}):
        here, there = (hello.versions.get(package, "none") for hello in (main, other))
        if here != there:
            sentences.append(f"{machine} {package} {there}, but machine 0 has {here}; install the same version")
    return sentences


@dataclass
class Arrival:
    """A machine that has connected. came, heard: when it came and when its last beat arrived, by this machine's
    clock."""

    hello: Hello
    came: float
    heard: float
    beat: int = 0


class Main:
    """The main machine's side: `gather`, then `ready`. An early exit tells the others that it stopped."""

    def __init__(self, hello: Hello, nodes: int, port: int, patience_s: float, tell: Tell) -> None:
        self.hello, self.nodes, self.patience_s, self.tell = hello, nodes, patience_s, tell
        self.arrivals: dict[int, Arrival] = {}
        try:
            with socket.socket() as probe:
                # Bound without listening, so that no other machine connects to it.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
            self.store = _store("127.0.0.1", port, main=True)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise Stop(*worded("nodes.port-in-use", port=port, reason=reason)) from None

    def __enter__(self) -> Main:
        return self

    def __exit__(self, *_: Any) -> None:
        """Closes the store after the others have left it, so that they read the last word and the port is free."""
        for word in ("met", "ready"):
            self._say(word, {})
        until = time.monotonic() + SILENT_S
        while time.monotonic() < until:
            arrived = self.store.add("arrivals", 0)
            if self.store.check([f"left/{number}" for number in range(1, arrived + 1)]):
                break
            time.sleep(BEAT_S)
        del self.store

    def gather(self) -> list[int]:
        """Waits for all machines; returns their GPU counts by rank. Raises Stop if one does not come, or differs; then
        every present machine gets the reason."""
        begin = told = time.monotonic()
        while True:
            waiting = self._waiting()
            if problems := self._problems(list(waiting.values())):
                self._say("met", {"refused": problems})
                raise _refused(problems)
            gpus = {hello.rank: hello.gpus for hello in (self.hello, *waiting.values())}
            missing = [rank for rank in range(self.nodes) if rank not in gpus]
            if not missing:
                self._say("met", {"accepted": list(waiting)})
                return [gpus[rank] for rank in range(self.nodes)]
            names, now = ", ".join(f"run_node{rank}.sh" for rank in missing), time.monotonic()
            if now - begin >= self.patience_s:
                raise Stop(*worded("nodes.missing-machines", names=names))
            if now - told >= TELL_EVERY_S:
                self.tell(f"Waiting for {names}")
                told = now
            time.sleep(BEAT_S)

    def _problems(self, hellos: list[Hello]) -> list[str]:
        ranks = [0, *(hello.rank for hello in hellos)]
        twice = [rank for rank in dict.fromkeys(ranks) if ranks.count(rank) > 1 or rank >= self.nodes]
        return [
            *(f"a second machine claims to be machine {rank}; start each script once" for rank in twice),
            *(sentence for hello in hellos for sentence in differences(self.hello, hello)),
        ]

    def refuse(self, reason: str) -> None:
        self._say("ready", {"refused": [reason]})

    def ready(self, files: Mapping[str, str] | None = None) -> None:
        """files: written for all machines, the hash of each by its name."""
        self._say("ready", {"ready": True, "files": files or {}})

    def _say(self, word: str, value: Mapping[str, Any]) -> None:
        """Writes a key unless it has a value."""
        if not self.store.check([word]):
            self.store.set(word, json.dumps(value))

    def _waiting(self) -> dict[int, Hello]:
        """The present machines, by number: those with a beat since the last one came. One whose script was stopped has
        none, and may come again."""
        now = time.monotonic()
        for number in range(1, self.store.add("arrivals", 0) + 1):
            if number not in self.arrivals and self.store.check([f"hello/{number}"]):
                hello = Hello(**json.loads(self.store.get(f"hello/{number}")))
                self.arrivals[number] = Arrival(hello, came=now, heard=now)
        for number, arrival in self.arrivals.items():
            if (beat := self.store.add(f"beat/{number}", 0)) != arrival.beat:
                arrival.beat, arrival.heard = beat, now
        last = max((arrival.came for arrival in self.arrivals.values()), default=now)
        return {number: arrival.hello for number, arrival in self.arrivals.items() if arrival.heard > last}


def join(hello: Hello, address: str, port: int, patience_s: float, tell: Tell) -> dict[str, str]:
    """Another machine's side: waits for the main machine's port, says hello, and waits until all is ready; returns the
    hash of each file that the main machine wrote. Raises Stop if the main machine does not come, refuses, or stops."""
    _wait_for_port(address, port, patience_s, tell)
    heard: queue.Queue[str | Stop | dict[str, str]] = queue.Queue()
    # In a thread, because a store that does not answer blocks its caller.
    threading.Thread(target=_talk, args=(hello, address, port, heard), daemon=True).start()
    while True:
        try:
            said = heard.get(timeout=max(patience_s, SILENT_S))
        except queue.Empty:
            raise _stopped(hello) from None
        if isinstance(said, Stop):
            raise said
        if isinstance(said, dict):
            tell("Ready")
            return said
        if said:
            tell(said)


def _talk(hello: Hello, address: str, port: int, heard: queue.Queue[str | Stop | dict[str, str]]) -> None:
    """Puts the main machine's answers into `heard`, and "" while it only lives."""
    try:
        store = _store(address, port)
    except RuntimeError:
        heard.put(Stop(f"{address}:{port} answers, but it is not the main machine.", "Check `nodes.port`."))
        return
    try:
        number = store.add("arrivals", 1)
        store.set(f"hello/{number}", json.dumps(asdict(hello)))
        for word in ("met", "ready"):
            while not store.check([word]):
                store.add(f"beat/{number}", 1)
                heard.put("")
                time.sleep(BEAT_S)
            answer = json.loads(store.get(word))
            if problems := answer.get("refused"):
                heard.put(_refused(problems))
                break
            if not answer.get("ready") and number not in answer.get("accepted", ()):
                heard.put(_stopped(hello))
                break
            met = "Same recipe and packages as machine 0; it prepares the data"
            heard.put(met if word == "met" else answer["files"])
        store.set(f"left/{number}", "")
    except RuntimeError:
        heard.put(_stopped(hello))


def _refused(problems: list[str]) -> Stop:
    return Stop("The machines cannot train together:\n" + "\n".join(f"  {problem}" for problem in problems))


def _stopped(hello: Hello) -> Stop:
    return Stop(*worded("nodes.main-stopped", hello=hello))


def _store(address: str, port: int, main: bool = False) -> Any:
    """The store at this port, which the main machine creates. Raises RuntimeError."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, is_master=main, wait_for_workers=False, timeout=timedelta(seconds=10))


def _wait_for_port(address: str, port: int, patience_s: float, tell: Tell) -> None:
    """Until the main machine's port is open; a TCPStore would print a traceback meanwhile."""
    deadline, told = time.monotonic() + patience_s, 0.0
    while True:
        try:
            socket.create_connection((address, port), timeout=10).close()
            return
        except OSError as error:
            now = time.monotonic()
            if now >= deadline:
                problem = f"The main machine does not answer at {address}:{port}: {error.strerror or error}."
                hint = "Start run_node0.sh there. Check MAIN_NODE_IP, and that no firewall blocks the port."
                raise Stop(problem, hint) from None
            if now - told >= TELL_EVERY_S:
                tell(f"Waiting for the main machine at {address}:{port}")
                told = now
            time.sleep(1)
