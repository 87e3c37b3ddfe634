"""Why the hub gave nothing, in plain words: from the errors of huggingface_hub 1.17.0 and of
datasets 4.8.4."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class HubFailure:
    """reason: the end of a sentence about the repository, without a full stop. remedy: what to do.
    temporary: whether the repository may well exist, and another attempt succeed without a
    change."""

    reason: str
    remedy: str
    temporary: bool = False


LOGIN = "run `hf auth login`, or set HF_TOKEN; on the cluster, name the token's Secret under `openshift.hub_token_secret`."
NOT_FOUND = HubFailure(
    "the hub has none of that name that you can read",
    f"Check the name. For a private one, {LOGIN}",
)
GATED = HubFailure(
    "it is gated, and the hub does not know who you are",
    f"Accept its terms on its page on the hub. Then {LOGIN}",
)
NO_ACCESS = HubFailure(
    "it is gated, and your account on the hub has no access",
    f"Ask for access on its page on the hub. To use the token of an account that has it, {LOGIN}",
)
NO_REVISION = HubFailure(
    "it has no such revision",
    "Check `revision`: a branch, a tag, or a whole commit.",
)
NO_FILE = HubFailure("one of its files is missing", "Look at its files on its page on the hub.")
WRONG_TOKEN = HubFailure("the hub does not accept your token", f"To renew it, {LOGIN}")
FORBIDDEN = HubFailure("your account on the hub has no access", "Use a token that may read it.")
TOO_MANY_REQUESTS = HubFailure(
    "the hub refuses requests from here for now, because there were too many (429)",
    "Wait some minutes, then repeat the command. With a token of your own, the hub answers more requests.",
    temporary=True,
)
FAULT = HubFailure("the hub has a fault of its own", "Repeat the command later.", temporary=True)
OFFLINE = HubFailure(
    "HF_HUB_OFFLINE is set, and this machine has no copy of it",
    "Unset HF_HUB_OFFLINE.",
    temporary=True,
)
UNREACHABLE = HubFailure(
    "this machine cannot reach the hub",
    "Check the network, and HF_ENDPOINT if you set it.",
    temporary=True,
)

# By the header X-Error-Code of an answer.
BY_CODE = {
    "RepoNotFound": NOT_FOUND,
    "RevisionNotFound": NO_REVISION,
    "EntryNotFound": NO_FILE,
}
BY_STATUS = {401: WRONG_TOKEN, 403: FORBIDDEN, 404: NOT_FOUND, 429: TOO_MANY_REQUESTS}
# What `datasets` writes instead of the error that it met, which it does not keep.
BY_TEXT = {
    r"is a gated dataset on the Hub\. You must be authenticated": GATED,
    r"is a gated dataset on the Hub\.": NO_ACCESS,
    r"^Revision '.*' doesn't exist for dataset": NO_REVISION,
    r"^Dataset '.*' doesn't exist on the Hub or cannot be accessed": NOT_FOUND,
}
NOT_CONNECTED = ("Connect", "Timeout", "NetworkError", "ProtocolError", "gaierror")
NOT_CONNECTED_TEXTS = (
    "client has been closed",
    "connection refused",
    "name or service",
    "network is unreachable",
    "timed out",
)


def hub_failure(error: BaseException) -> HubFailure | None:
    """Why the hub gave nothing; None for an error of another kind."""
    errors = list(chain(error))
    for cause in errors:
        failure = _by_answer(cause)
        if failure:
            return failure
    for cause in errors:
        failure = _by_text(cause)
        if failure:
            return failure
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised from or after."""
    visited: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in visited:
        visited.append(following)
        yield following
        following = following.__cause__ or following.__context__


def _by_answer(error: BaseException) -> HubFailure | None:
    """By the hub's answer, which an error of its client has with it."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if response is None or not isinstance(status, int):
        return None
    code = response.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        if status == 401:
            return GATED
        return NO_ACCESS
    if code in BY_CODE:
        return BY_CODE[code]
    if status >= 500:
        return FAULT
    return BY_STATUS.get(status)


def _by_text(error: BaseException) -> HubFailure | None:
    """By what an error without an answer says."""
    error_type = type(error).__name__
    text = str(error)
    for pattern, failure in BY_TEXT.items():
        if re.search(pattern, text):
            return failure
    if "OfflineModeIsEnabled" in f"{error_type} {text}":
        return OFFLINE
    if any(sign in error_type for sign in NOT_CONNECTED):
        return UNREACHABLE
    if any(sign in text.lower() for sign in NOT_CONNECTED_TEXTS):
        return UNREACHABLE
    return None
