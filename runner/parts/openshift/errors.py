"""The meanings and remedies of a cluster's refusals and timeouts, as sentences."""

import re
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from runner.catalog.tables import Facts
from runner.tools.names import shortened
from runner.tools.problem import Stop

Answer = TypeVar("Answer")

# How long a cluster that does not answer is asked again: an API server that restarts takes up to two minutes.
PATIENCE_SECONDS = 150.0
# The same for a command that has changed nothing on the cluster yet, and after how long such a wait is reported.
PROMPT_SECONDS, SILENT_SECONDS = 30.0, 5.0
# The seconds between two checks.
PAUSE_SECONDS = 2.0
# The time for a stopped object to disappear; its pods have their time to end.
ENDING_SECONDS = 300

# Refusals of authorization (Kubernetes' RBAC); quotas, webhooks and pod security also answer 403, in other words.
_NO_RIGHT = re.compile(r'User "[^"]*" cannot ')
# A server's answer for an address that it does not serve, unlike that for a missing object.
_NO_KIND = re.compile(r"page not found|could not find the requested resource")
# A server's refusal of a change because another one came first, for example to a quota that two new pods need.
_OVERTAKEN = re.compile(r"please apply your changes to the latest version")


class TryAgain(Stop):
    """The cluster does not answer now, and may in a moment: `patiently` asks it again, and what watches continues."""


class Lost(TryAgain):
    """The cluster cannot be reached. own: whether the server was reached, and has then closed the connection; the rest as
    in Refused."""

    status, after, doubtful, repeated = 0, 0.0, False, False

    def __init__(self, server: str, reason: str, own: bool = False) -> None:
        self.own = own
        short = "its name cannot be resolved" if re.search("resolve|getaddrinfo", reason) else "nobody answers"
        super().__init__(
            f"The cluster at {server} cannot be reached: {short}.",
            "Check the network or VPN, and your login (`oc whoami`).",
        )
        self.said = self.text.splitlines()[0]


class Busy(TryAgain):
    """The cluster answers that it cannot do it now: too many requests, or an error of its own."""


class Refused(Exception):
    """The cluster refused a request. status: of HTTP; message: the cluster's own words; after: seconds that it asks us
    to wait.

    doubtful: whether it allowed the same a moment ago, and may have become ready since; repeated: whether an earlier try
    of the request may have succeeded without an answer.
    """

    def __init__(self, status: int, message: str, server: str, after: float = 0.0) -> None:
        self.status, self.message, self.server, self.after = status, message, server, after
        self.doubtful = self.repeated = False
        self.said = f"The cluster answered {status}: {message.rstrip('.')}."
        super().__init__(message)

    @property
    def busy(self) -> bool:
        """Whether the same request may be answered in a moment."""
        return passes(self.status) or (self.status == 409 and bool(_OVERTAKEN.search(self.message)))

    @property
    def own(self) -> bool:
        """Whether the server itself is busy, and not a machine behind it."""
        table = (row for row in _meanings() if row.get("final") or row.get("behind"))
        return self.busy and not any(self._found(row, None) for row in table)

    @property
    def of_start(self) -> bool:
        """Whether a starting server may refuse so what it allows and has: at first it knows neither its users, nor
        their rights, nor all kinds."""
        said = {401: True, 403: _NO_RIGHT.search(self.message), 404: self.no_kind}
        return bool(said.get(self.status))

    @property
    def no_kind(self) -> bool:
        """Whether the server does not know the kind of object."""
        return self.status == 404 and bool(_NO_KIND.search(self.message))

    def stop(self, kind: str, namespace: str, name: str) -> Stop:
        """The refused action, the reason, and the remedy."""
        meaning, found = next((row, found) for row in _meanings() if (found := self._found(row, kind)))
        words = {"said": self.message} | found.groupdict()
        words = {key: shortened(text, 400) for key, text in words.items()}
        words |= {"what": f"{kind} `{name}`" if name else f"{kind} objects", "kind": kind, "space": namespace}
        words |= {"server": self.server, "status": str(self.status)}
        ending = Busy if self.busy and not meaning.get("final") else Stop
        return ending(meaning["text"].format(**words), meaning["remedy"].format(**words))

    def _found(self, meaning: Facts, kind: str | None) -> re.Match[str] | None:
        of_kind = kind is None or kind in meaning.get("kind", [kind])
        fits = of_kind and self.status in meaning.get("status", [self.status])
        return re.search(meaning.get("pattern", ""), self.message, re.DOTALL) if fits else None


@cache
def _meanings() -> tuple[Facts, ...]:
    """The table of refusals, in the order in which it counts."""
    return tuple(tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")).values())


def passes(status: int) -> bool:
    """Whether the same request may be answered in a moment: too many at a time, or the server's own trouble."""
    return status == 429 or status >= 500


def unreachable(server: str, error: Exception) -> Stop:
    """Why a request has no answer. An untrusted certificate stays untrusted; everything else may pass."""
    said = str(error)
    if found := re.search(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.+?)(?: \(_ssl|$)", said):
        return Stop(
            f"The certificate of the cluster at {server} is not trusted: {found[1]}.",
            f"Log in with the authority that signed it: `oc login {server} --certificate-authority=FILE`. The cluster's admin has that file.",
        )
    from urllib3.exceptions import ProtocolError

    return Lost(server, said, isinstance(error, ProtocolError))


def no_api(server: str, body: bytes) -> Stop:
    """The answer is not from the API: usually a login page of a proxy in front of the cluster."""
    title = re.search(rb"<title[^>]*>(.*?)</title>", body, re.DOTALL | re.IGNORECASE)
    named = f" (“{shortened(title[1].decode(errors='replace'), 80)}”)" if title else ""
    return Stop(
        f"{server} answered with a web page{named}, not with a cluster's API.",
        "Check that `oc whoami --show-server` names the API, and whether a proxy asks you to log in first (VPN, HTTPS_PROXY).",
    )


def pause() -> None:
    time.sleep(PAUSE_SECONDS)


def patient(seconds: float) -> None:
    """From now on this process lets this many seconds pass between two checks."""
    global PAUSE_SECONDS
    PAUSE_SECONDS = seconds


def recent(at: float) -> bool:
    """Whether what was so at that time of `time.monotonic` may be so again in a moment."""
    return time.monotonic() - at < PATIENCE_SECONDS


def in_time(done: Callable[[], bool]) -> bool:
    """Whether something that is being ended is done within the time that its pods have for that."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        if done():
            return True
        pause()
    return False


def patiently(ask: Callable[[], Answer]) -> Answer:
    """The cluster's answer, with repeated attempts for a while. Raises the last TryAgain, and every other error at
    once."""
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except TryAgain:
            if not recent(begun):
                raise
            pause()


@contextmanager
def accounted(left: Callable[[Stop], str]) -> Iterator[None]:
    """A Stop in the block gets a last line about the remaining state: from `left`, or none."""
    try:
        yield
    except Stop as stop:
        stop.text = "\n".join(filter(None, [stop.text, left(stop)]))
        raise
