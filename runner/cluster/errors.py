"""What a cluster's refusals mean, and what to do about them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from runner.problem import Stop

Answer = TypeVar("Answer")

_OPERATORS = {
    "PyTorchJob": "This cluster does not know PyTorchJob: OpenShift AI 3.6 has none any more, and before it the training operator brings it.",
    "TrainJob": "This cluster does not know TrainJob: Kubeflow Trainer is not installed, or OpenShift AI is older than 3.2.",
}
# What servers of different versions say of a field that their schema does not have.
_UNKNOWN_FIELD = re.compile(r"unknown field|field not declared in schema|Additional properties are not allowed")
# With these words servers answer 500 to an object of the wrong shape, which is no error of theirs and does not pass.
_WRONG_SHAPE = re.compile(r"failed to create typed patch object")
_REMEDIES = {
    "PyTorchJob": 'Write `version: "3.6"` under `openshift` for a cluster with TrainJob, or ask for the training operator.',
    "TrainJob": 'Write `version: "3.5"` under `openshift` and submit again for a PyTorchJob, or ask for Kubeflow Trainer.',
}


class TryAgain(Stop):
    """The cluster does not answer now, and may in a moment: `patiently` asks it again, and what watches goes on."""


class Lost(TryAgain):
    """The cluster cannot be reached."""

    def __init__(self, server: str, reason: str) -> None:
        short = "a certificate is not trusted" if "CERTIFICATE" in reason.upper() else "nobody answers"
        super().__init__(
            f"The cluster at {server} cannot be reached: {short}.",
            "Check the network or VPN, and that you are logged in (`oc whoami`).",
        )


class Busy(TryAgain):
    """The cluster answers that it cannot do it now: too many requests, or an error of its own."""


def passes(status: int) -> bool:
    """Whether the same request may be answered in a moment: too many at a time, or the server's own trouble."""
    return status == 429 or status >= 500


def patiently(ask: Callable[[], Answer], tries: int, pause_seconds: float) -> Answer:
    """What the cluster answers, asked up to `tries` times. Raises the last TryAgain, and every other error at once."""
    for _ in range(tries - 1):
        try:
            return ask()
        except TryAgain:
            time.sleep(pause_seconds)
    return ask()


def explain(status: int, message: str, kind: str, namespace: str, name: str, server: str) -> Stop:
    """A refusal as a Stop: what the cluster would not do, why, and the remedy."""
    what = f"{kind} `{name}`" if name else f"{kind} objects"
    if status == 401:
        return Stop(f"The cluster at {server} does not know you any more.", "Log in again: `oc login`.")
    if status == 403 and "exceeded quota" in message:
        return Stop(f"The namespace `{namespace}` has no room for {what}: {_quota(message)}.", _QUOTA_REMEDY)
    if status == 403:
        return Stop(
            f"You may not do this in the namespace `{namespace}`: {_short(message)}",
            f"Ask its owner for the role `edit` (`oc adm policy add-role-to-user edit YOU -n {namespace}`), or write your own namespace under `openshift.namespace`.",
        )
    if status == 404 and "namespaces" in message and "not found" in message:
        return Stop(
            f"There is no namespace `{namespace}` on {server}.",
            f"`recipe site RECIPE` writes it with all that it needs, for `oc apply -k`; `oc new-project {namespace}` makes it "
            "bare. Or change `openshift.namespace`.",
        )
    if status == 404 and kind in _OPERATORS:
        return Stop(_OPERATORS[kind], _REMEDIES[kind])
    if status == 404:
        return Stop(f"There is no {what} in `{namespace}`, or this cluster has no such kind.", _short(message))
    if status == 409:
        return Stop(
            f"{what} in `{namespace}` is being changed by someone else: {_short(message)}", "Try again in a moment."
        )
    if kind == "TrainJob" and _UNKNOWN_FIELD.search(message):
        return Stop(
            f"This cluster writes a TrainJob another way: {_short(message)}",
            "`openshift.version` must be the version of OpenShift AI on it: up to 3.5 and from 3.6 on they differ.",
        )
    if status in (400, 422) or (status == 500 and _WRONG_SHAPE.search(message)):
        return Stop(
            f"The cluster refuses {what}: {_short(message)}",
            "`recipe check` and `recipe render` show what was sent; if the recipe is right, this is a bug in recipe-runner.",
        )
    ending = Busy if passes(status) else Stop
    return ending(f"The cluster answered {status} to {what}: {_short(message)}", "Try again in a moment.")


_QUOTA_REMEDY = (
    "Ask for more, or ask the recipe for less: `machines.nodes`, `machines.gpus_per_node`, `openshift.requests`."
)


def _quota(message: str) -> str:
    """`exceeded quota: Q, requested: a=1, used: a=2, limited: a=2` in words."""
    parts = re.search(r"exceeded quota: ([^,]+), requested: (.+?), used: (.+?), limited: (.+)$", message)
    if parts is None:
        return _short(message)
    name, asked, used, limit = parts.groups()
    return f"quota `{name}` allows {limit}, {used} is in use, and this asks for {asked}"


def _short(message: str, width: int = 400) -> str:
    flat = " ".join(message.split())
    return flat if len(flat) <= width else f"{flat[: width - 3]}..."
