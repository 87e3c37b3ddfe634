"""Why a server does not start: read from its InferenceService, pods, events and vLLM's own log, said in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from runner.catalog import troubles
from runner.parts.openshift.jobs import annotation, queue_of
from runner.parts.openshift.pod_trouble import (
    LogOf,
    again,
    ends,
    entry_of,
    limit_of,
    placing,
    queued,
    refusal,
    refused,
    unfetched,
    unmade,
)
from runner.parts.serve import kserve

QUEUED, NO_POD, UNPLACED, GETTING, LOADING, ENDED = (
    "queued",
    "no pod yet",
    "waiting for a machine",
    "getting the image",
    "loading the model",
    "started again and again",
)
LESS = "`serve.gpus` or `serve.concurrency`"
# After so many ends it is not a disk or a network that was slow.
TRIES = 3
# What KServe says of a runtime that it does not find, or may not use.
_NO_RUNTIME = ("RuntimeNotRecognized", "NoSupportingRuntime", "RuntimeDisabled")


@dataclass(frozen=True)
class Server:
    """A server on the cluster. service: its InferenceService; pods: its own, without those of an earlier one; events: warnings
    about any of them; workloads: Kueue's of the namespace; log_of: the end of a pod's log, of the time before where it has been
    started again."""

    service: dict[str, Any]
    pods: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(default_factory=list)
    workloads: list[dict[str, Any]] = field(default_factory=list)
    log_of: LogOf = lambda _pod: ""

    @property
    def name(self) -> str:
        return str(self.service["metadata"]["name"])

    @property
    def ready(self) -> str | None:
        """The pod that answers."""
        return ready(self.pods)

    @property
    def restarts(self) -> int:
        return max((entry.get("restartCount", 0) for entry in self._containers), default=0)

    @property
    def hopeless(self) -> bool:
        """Whether waiting changes nothing: KServe refuses what the object says, or vLLM ends again and again."""
        return bool(_failure(self.service).get("reason") in _NO_RUNTIME or self._invalid or self.restarts >= TRIES)

    @property
    def _invalid(self) -> bool:
        return (self.service.get("status", {}).get("modelStatus") or {}).get("transitionStatus") == "InvalidSpec"

    @property
    def _containers(self) -> list[dict[str, Any]]:
        return [
            entry
            for pod in self.pods
            for entry in pod.get("status", {}).get("containerStatuses") or []
            if entry["name"] == kserve.CONTAINER
        ]

    @property
    def phase(self) -> str:
        if not self.pods:
            return NO_POD
        if any(_gated(pod) for pod in self.pods):
            return QUEUED
        if any(_unplaced(pod) for pod in self.pods):
            return UNPLACED
        if not any("running" in entry.get("state", {}) for entry in self._containers):
            return ENDED if self.restarts else GETTING
        return LOADING


def ready(pods: list[dict[str, Any]]) -> str | None:
    """The first of these pods that answers, by its name."""
    for pod in pods:
        conditions = pod.get("status", {}).get("conditions") or []
        if any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
            return str(pod["metadata"]["name"])
    return None


def reasons(server: Server) -> list[str]:
    """What stands in the way, most telling first; empty while all is well."""
    said = [*_refused(server), *_no_pods(server)]
    for pod in server.pods:
        said += _pod(server, pod)
    return list(dict.fromkeys(said))


def _failure(service: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (service.get("status", {}).get("modelStatus") or {}).get("lastFailureInfo") or {}
    return found


def _refused(server: Server) -> Iterator[str]:
    failure = _failure(server.service)
    reason, said = failure.get("reason", ""), str(failure.get("message", "")).rstrip(".")
    runtime = server.service["spec"]["predictor"]["model"]["runtime"]
    if reason in _NO_RUNTIME:
        space = server.service["metadata"]["namespace"]
        yield (
            f"The platform does not give it the serving runtime `{runtime}`: {said or reason}. Where `{space}` has none of that "
            f"name: `oc process -n redhat-ods-applications {runtime}-template | oc apply -n {space} -f -`; or write another "
            "`serve.runtime`, or a `serve.image`."
        )
    elif reason and not server.pods:
        yield f"KServe does not start it: {said or reason}."


def _no_pods(server: Server) -> Iterator[str]:
    """The Deployment could not make a pod, which its ReplicaSet alone says."""
    if server.pods:
        return
    if event := refused(server.events):
        why = refusal(event["message"], LESS, "`recipe site RECIPE` writes what the namespace needs.")
        yield f"No pod is made: {why}"
        return
    for event in [event for event in server.events if event["reason"] == "InternalError"][-1:]:
        yield f"KServe does not start it: {event['message']}"


def _gated(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _unplaced(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(entry["type"] == "PodScheduled" and entry["status"] == "False" for entry in conditions)


def _pod(server: Server, pod: dict[str, Any]) -> Iterator[str]:
    status, where = pod.get("status", {}), f"`{pod['metadata']['name']}`"
    if _gated(pod):
        yield from _queue(server, pod)
        return
    yield from placing(pod, server.events, where, LESS)
    for entry in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        yield from _container(server, pod, entry, where)


def _queue(server: Server, pod: dict[str, Any]) -> Iterator[str]:
    queue = queue_of(server.service)
    said = list(queued(queue, entry_of(server.workloads, pod)))
    yield from said or [
        f"It waits to be admitted by the queue `{queue}`." if queue else "It waits to be admitted by a queue."
    ]


def _container(server: Server, pod: dict[str, Any], entry: dict[str, Any], where: str) -> Iterator[str]:
    serves = entry["name"] == kserve.CONTAINER
    remedy = (
        "It is the serving runtime's: correct `serve.image`, or ask the cluster's admin for the platform's."
        if serves
        else "Where it holds the model, correct `serve.model`; else ask the cluster's admin."
    )
    yield from unfetched(pod, entry, where, remedy)
    yield from unmade(pod, entry, server.events, where, "`recipe site RECIPE` writes what it needs.")
    for ended in ends(entry):
        if not serves:
            yield f"{where}: `{entry['name']}` ended with exit code {ended['exitCode']}{again(entry)}. {ended.get('message', '')}".strip()
        elif ended.get("reason") == "OOMKilled":
            limit = limit_of(pod, (kserve.CONTAINER,))
            yield f"{where} used up its main memory{again(entry)}. Its limit was {limit}, of what `machines.memory` leaves; name machines with more."
        else:
            text = server.log_of(pod["metadata"]["name"])
            yield f"{where} ended with exit code {ended['exitCode']}{again(entry)}. {_meaning(text, server)}".strip()


def _meaning(text: str, server: Server) -> str:
    """What vLLM's last words mean, or what any program's do."""
    uri = server.service["spec"]["predictor"]["model"]["storageUri"]
    source = f"`{uri}`, with results of training in `{annotation(server.service, 'recipe-runner/run-dir')}`"
    found = troubles.find(text, troubles.SERVER, source=source) or troubles.find(text, troubles.LOG)
    said = troubles.last_error(text, whatever=True)
    return str(found) if found else f"It said: {said}" if said else ""
