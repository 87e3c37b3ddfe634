"""The meanings and remedies of a cluster's refusals and timeouts, as sentences."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from runner.catalog.tables import Facts
from runner.tools import packaged
from runner.tools.problem import Stop, shortened

Answer = TypeVar("Answer")

# How long requests are repeated: an API server that restarts takes up to two minutes.
PATIENCE_SECONDS = 150.0
PROMPT_SECONDS = 30.0  # the same for a command that has changed nothing on the cluster yet
SILENT_SECONDS = 5.0  # after how long a wait is reported
PAUSE_SECONDS = 2.0  # between two checks; a pod's program sets another number
ENDING_SECONDS = 300  # how long a deleted object and its pods may take to disappear


class TryAgain(Stop):
    """The cluster does not answer now, but may in a moment: `patiently` repeats the request, and
    watchers continue."""


class Lost(TryAgain):
    """The cluster cannot be reached. own: the server closed the connection; the rest as in
    Refused."""

    status = 0
    after = 0.0
    doubtful = False
    repeated = False

    def __init__(self, server: str, reason: str, closed_by_server: bool = False) -> None:
        self.own = closed_by_server
        if re.search("resolve|getaddrinfo", reason):
            short = "its name cannot be resolved"
        else:
            short = "it does not answer"
        super().__init__(
            f"The cluster at {server} cannot be reached: {short}.",
            "Check the network or VPN, and your login (`oc whoami`).",
        )
        self.said = self.text.splitlines()[0]


class Refused(Exception):
    """A refused request. status: of HTTP; message: the cluster's own words; after: seconds to wait,
    by the server; doubtful: it allowed the same a moment ago, and may be ready again; repeated: an
    earlier attempt may have succeeded without an answer."""

    def __init__(self, status: int, message: str, server: str, after: float = 0.0) -> None:
        self.status = status
        self.message = message
        self.server = server
        self.after = after
        self.doubtful = self.repeated = False
        self.said = f"The cluster answered {status}: {message.rstrip('.')}."
        super().__init__(message)

    @property
    def busy(self) -> bool:
        """Whether the same request may be answered in a moment: also after another change in
        between, for example to a quota that two new pods need."""
        overtaken = "please apply your changes to the latest version" in self.message
        return is_temporary(self.status) or (self.status == 409 and overtaken)

    @property
    def own(self) -> bool:
        """Whether the server itself is busy, not a machine behind it."""
        return self.busy and not any(
            row.get("final") or row.get("behind") for row, _ in self._meanings()
        )

    @property
    def of_start(self) -> bool:
        """Whether a starting server may answer this: at first it knows neither users, nor rights,
        nor all kinds."""
        return self.no_kind or any(row.get("at_start") for row, _ in self._meanings())

    @property
    def no_kind(self) -> bool:
        """Whether the server lacks the whole address; the answer for a missing object differs."""
        unknown = ("page not found", "could not find the requested resource")
        return self.status == 404 and any(phrase in self.message for phrase in unknown)

    def stop(self, object_kind: str, namespace: str, name: str) -> Stop:
        """The refused action, the reason and the remedy, by the table of refusals."""
        meaning, match = next(self._meanings(object_kind))
        fields = {"said": self.message} | match.groupdict()
        fields = {key: shortened(text, 400) for key, text in fields.items()}
        fields["what"] = f"{object_kind} `{name}`" if name else f"{object_kind} objects"
        fields["kind"] = object_kind
        fields["space"] = namespace
        fields["server"] = self.server
        fields["status"] = str(self.status)
        ending: type[Stop]
        if self.busy and not meaning.get("final"):
            ending = TryAgain
        else:
            ending = Stop
        return ending(meaning["text"].format(**fields), meaning["remedy"].format(**fields))

    def _meanings(self, object_kind: str | None = None) -> Iterator[tuple[Facts, re.Match[str]]]:
        """The entries of the table that fit, with the match of their pattern. object_kind: None for
        any."""
        for row in packaged.toml(__file__, "refusals.toml").values():
            if self.status not in row.get("status", [self.status]):
                continue
            if object_kind is not None and object_kind not in row.get("kind", [object_kind]):
                continue
            match = re.search(row.get("pattern", ""), self.message, re.DOTALL)
            if match:
                yield row, match


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed in a moment: after too many requests, or the server's
    own errors."""
    return status == 429 or status >= 500


def unreachable(server: str, error: Exception) -> Stop:
    """Why a request has no answer. Everything but an untrusted certificate may pass."""
    reason = str(error)
    match = re.search(
        r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.+?)(?: \(_ssl|$)", reason
    )
    if match:
        return Stop(
            f"The certificate of the cluster at {server} is not trusted: {match[1]}.",
            f"Log in with the authority that signed it: `oc login {server} --certificate-authority=FILE`. The cluster's admin has that file.",
        )
    from urllib3.exceptions import ProtocolError

    return Lost(server, reason, isinstance(error, ProtocolError))


def no_api(server: str, body: bytes) -> Stop:
    """The answer is not from the API, but usually from a proxy's login page."""
    title = re.search(rb"<title[^>]*>(.*?)</title>", body, re.DOTALL | re.IGNORECASE)
    if title:
        page_title = f" (“{shortened(title[1].decode(errors='replace'), 80)}”)"
    else:
        page_title = ""
    return Stop(
        f"{server} answered with a web page{page_title}, not with a cluster's API.",
        "Check that `oc whoami --show-server` names the API, and whether a proxy asks you to log in first (VPN, HTTPS_PROXY).",
    )


def pause() -> None:
    time.sleep(PAUSE_SECONDS)


def is_recent(moment: float) -> bool:
    """Whether that time of `time.monotonic` is within the cluster's patience."""
    return time.monotonic() - moment < PATIENCE_SECONDS


def in_time(done: Callable[[], bool]) -> bool:
    """Whether something that is being deleted is gone in time."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        if done():
            return True
        pause()
    return False


def patiently(ask: Callable[[], Answer]) -> Answer:
    """The cluster's answer, with retries for a while. Raises the last TryAgain, and every other
    error at once."""
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except TryAgain:
            if not is_recent(begun):
                raise
            pause()


@contextmanager
def accounted(describe_state: Callable[[Stop], str]) -> Iterator[None]:
    """Adds the text of `describe_state`, if any, to a Stop in the block: what is done, and what is
    still on the cluster."""
    try:
        yield
    except Stop as stop:
        stop.text = "\n".join(filter(None, [stop.text, describe_state(stop)]))
        raise
