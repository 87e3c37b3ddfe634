"""What a cluster's refusals and silences mean, and what to do about them: every error of the API becomes a sentence here."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from runner.tools.names import shortened
from runner.tools.problem import Stop

Answer = TypeVar("Answer")

# How long a cluster that does not answer is asked again: an API server that starts anew takes up to two minutes.
PATIENCE_SECONDS = 150.0
# Between two looks at anything.
PAUSE_SECONDS = 2.0
# Until what is being ended must be gone; its pods have their time to end.
ENDING_SECONDS = 300

# How authorization says no (Kubernetes' RBAC); quotas, webhooks and pod security answer 403 too, in words of their own.
_NO_RIGHT = re.compile(r'User "[^"]*" cannot ')
# What a server says of an address that it does not serve, and not of an object that is not there.
_NO_KIND = re.compile(r"page not found|could not find the requested resource")


class TryAgain(Stop):
    """The cluster does not answer now, and may in a moment: `patiently` asks it again, and what watches goes on."""


class Lost(TryAgain):
    """The cluster cannot be reached."""

    def __init__(self, server: str, reason: str) -> None:
        short = "its name is not known" if re.search("resolve|getaddrinfo", reason) else "nobody answers"
        super().__init__(
            f"The cluster at {server} cannot be reached: {short}.",
            "Check the network or VPN, and that you are logged in (`oc whoami`).",
        )


class Busy(TryAgain):
    """The cluster answers that it cannot do it now: too many requests, or an error of its own."""


class Refused(Exception):
    """The cluster said no. status: of HTTP; message: the cluster's own words."""

    def __init__(self, status: int, message: str, server: str) -> None:
        self.status, self.message, self.server = status, message, server
        super().__init__(message)

    @property
    def of_start(self) -> bool:
        """Whether a server that starts may say this of what it allows and has: it does not know its users, their rights and
        all kinds from the first moment on."""
        said = {401: True, 403: _NO_RIGHT.search(self.message), 404: _NO_KIND.search(self.message)}
        return bool(said.get(self.status))

    def stop(self, kind: str, namespace: str, name: str) -> Stop:
        """What the cluster would not do, why, and the remedy."""
        what = f"{kind} `{name}`" if name else f"{kind} objects"
        meaning, found = next((one, found) for one in _MEANINGS if (found := one.found(self, kind)))
        words = {"said": self.message} | found.groupdict()
        words = {key: shortened(text, 400) for key, text in words.items()}
        words |= {"what": what, "space": namespace, "server": self.server, "status": str(self.status)}
        ending = Busy if passes(self.status) and not meaning.final else Stop
        return ending(meaning.text.format(**words), meaning.remedy.format(**words))


def passes(status: int) -> bool:
    """Whether the same request may be answered in a moment: too many at a time, or the server's own trouble."""
    return status == 429 or status >= 500


def unreachable(server: str, error: Exception) -> Stop:
    """Why a request has got no answer. A certificate that is not trusted stays so; all else may pass."""
    said = str(error)
    if found := re.search(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.+?)(?: \(_ssl|$)", said):
        return Stop(
            f"The certificate of the cluster at {server} is not trusted: {found[1]}.",
            f"Log in with the authority that has signed it: `oc login {server} --certificate-authority=FILE`. The cluster's "
            "admin has that file.",
        )
    return Lost(server, said)


def no_api(server: str, body: bytes) -> Stop:
    """What answers is no API: most often a page to log in, of a proxy before the cluster."""
    title = re.search(rb"<title[^>]*>(.*?)</title>", body, re.DOTALL | re.IGNORECASE)
    named = f" (“{shortened(title[1].decode(errors='replace'), 80)}”)" if title else ""
    return Stop(
        f"What answers at {server} is not a cluster's API, but a page for a browser{named}.",
        "Look whether `oc whoami --show-server` names the API, and whether a proxy asks you to log in first (VPN, HTTPS_PROXY).",
    )


def pause() -> None:
    time.sleep(PAUSE_SECONDS)


def patient(seconds: float) -> None:
    """From now on this process lets so many seconds pass between two looks."""
    global PAUSE_SECONDS
    PAUSE_SECONDS = seconds


def recent(at: float) -> bool:
    """Whether what was so at that time of `time.monotonic` may be so again in a moment."""
    return time.monotonic() - at < PATIENCE_SECONDS


def patiently(ask: Callable[[], Answer]) -> Answer:
    """What the cluster answers, asked for a while. Raises the last TryAgain, and every other error at once."""
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except TryAgain:
            if not recent(begun):
                raise
            pause()


@dataclass(frozen=True)
class _Meaning:
    """What one kind of refusal means. statuses: of HTTP, any where empty; pattern: what the cluster's words hold, with groups
    for the sentence; text, remedy: with {what}, {space}, {server}, {status}, {said} and those; kind: of object, any where
    empty; final: whether it does not pass, whatever its status says."""

    statuses: tuple[int, ...]
    pattern: str
    text: str
    remedy: str
    kind: str = ""
    final: bool = False

    def found(self, refused: Refused, kind: str) -> re.Match[str] | None:
        fits = self.kind in ("", kind) and (not self.statuses or refused.status in self.statuses)
        return re.search(self.pattern, refused.message, re.DOTALL) if fits else None


# Kinds that not every cluster knows.
_KINDS = {
    "PyTorchJob": (
        "This cluster does not know PyTorchJob: OpenShift AI 3.6 has none any more, and before it the training operator brings it.",
        'Write `version: "3.6"` under `openshift` for a cluster with TrainJob, or ask for the training operator.',
    ),
    "TrainJob": (
        "This cluster does not know TrainJob: Kubeflow Trainer is not installed, or OpenShift AI is older than 3.2.",
        'Write `version: "3.5"` under `openshift` and submit again for a PyTorchJob, or ask for Kubeflow Trainer.',
    ),
    **{
        kind: (
            f"This cluster does not know {kind}: KServe, the single-model serving of OpenShift AI, is not installed.",
            "Ask for it, or serve on a machine of your own: `recipe serve RECIPE`.",
        )
        for kind in ("InferenceService", "ServingRuntime")
    },
}
# The first one that fits counts; the last one fits all.
_MEANINGS = (
    _Meaning((401,), "", "The cluster at {server} does not know you any more.", "Log in again: `oc login`."),
    _Meaning((403,), '"system:anonymous"', "You are not logged in to the cluster at {server}.", "Log in: `oc login`."),
    _Meaning(
        (403,),
        _NO_RIGHT.pattern,
        "You may not do this in the namespace `{space}`: {said}",
        "Ask its owner for the role `recipe-user`, which `recipe site RECIPE` writes and `oc adm policy add-role-to-user "
        "recipe-user YOU -n {space} --role-namespace {space}` gives; or write your own namespace under `openshift.namespace`.",
    ),
    _Meaning(
        (),
        r'admission webhook "[^"]+" denied the request: (?P<said>.*(?:queue-name|[Kk]ueue|LocalQueue).*)',
        "The namespace `{space}` takes jobs only through a queue of Kueue, and refuses {what}: {said}",
        "Name one under `openshift.queue`; `oc get localqueues -n {space}` shows them, and `recipe site RECIPE` then writes the "
        "one that you have named.",
    ),
    _Meaning(
        (),
        r'admission webhook "(?P<hook>[^"]+)" denied the request: (?P<said>.*)',
        "A rule of this cluster (webhook `{hook}`) refuses {what}: {said}",
        "It is no right of yours that is missing. `recipe render` shows what was sent; the cluster's admin knows the rule.",
    ),
    _Meaning(
        (),
        r'failed calling webhook "(?P<hook>[^"]+)"',
        "The operator that judges {what} before it is taken does not answer (webhook `{hook}`): {said}",
        "Try again in a moment. If it stays so, the operator is down: the cluster's admin can start it again.",
    ),
    *(
        _Meaning(
            (403,),
            pattern,
            f"The namespace `{{space}}` has no room for {{what}}: {text}.",
            "Ask for more, or ask the recipe for less: `machines.nodes`, `machines.gpus_per_node`, `openshift.requests`.",
        )
        for pattern, text in (
            (
                "exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>.+)$",
                "quota `{name}` allows {limit}, {used} is in use, and this asks for {asked}",
            ),
            ("exceeded quota", "{said}"),
        )
    ),
    _Meaning(
        (403,),
        "PodSecurity|security context constraint",
        "The namespace's rules for pods refuse {what}: {said}",
        "Its service account needs the security context constraint restricted-v2, which every namespace of OpenShift has by itself.",
    ),
    _Meaning(
        (403,),
        "being terminated",
        "The namespace `{space}` is being deleted, and takes nothing any more.",
        "Wait until it is gone and have it made again, or write another one under `openshift.namespace`.",
    ),
    _Meaning((403,), "", "The cluster does not allow {what} in `{space}`: {said}", "Ask the cluster's admin."),
    _Meaning(
        (404,),
        "namespaces.*not found",
        "There is no namespace `{space}` on {server}.",
        "`recipe site RECIPE` writes it with all that it needs, for `oc apply -k`; `oc new-project {space}` makes it bare. Or "
        "change `openshift.namespace`.",
    ),
    *(_Meaning((404,), "", text, remedy, kind=kind) for kind, (text, remedy) in _KINDS.items()),
    _Meaning((404,), "", "There is no {what} in `{space}`, or this cluster has no such kind.", "{said}"),
    _Meaning((409,), "", "{what} in `{space}` is being changed by someone else: {said}", "Try again in a moment."),
    # What servers of different versions say of a field that their schema does not have.
    _Meaning(
        (),
        "unknown field|field not declared in schema|Additional properties are not allowed",
        "This cluster writes a TrainJob another way: {said}",
        "`openshift.version` must be the version of OpenShift AI on it: up to 3.5 and from 3.6 on they differ.",
        kind="TrainJob",
        final=True,
    ),
    # With these words servers answer 500 to an object of the wrong shape, which is no error of theirs.
    *(
        _Meaning(
            statuses,
            pattern,
            "The cluster refuses {what}: {said}",
            "`recipe check` and `recipe render` show what was sent; if the recipe is right, this is a bug in recipe-runner.",
            final=True,
        )
        for statuses, pattern in (((400, 422), ""), ((500,), "failed to create typed patch object"))
    ),
    _Meaning(
        (),
        r":10250/|containerLogs",
        "The machine of {what} does not answer: {said}",
        "`oc get nodes` shows whether it is ready. Its pod goes on when it comes back, or is replaced.",
        kind="Pod",
    ),
    _Meaning((), "", "The cluster answered {status} to {what}: {said}", "Try again in a moment."),
)
