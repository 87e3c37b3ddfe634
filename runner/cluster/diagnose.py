"""Why a job does not start, or ended: read from events, pod status and logs, said in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from runner.cluster.client import Cluster
from runner.cluster.events import TAKEN, when
from runner.cluster.jobs import WORKING, annotation, container, machines, node_number
from runner.cluster.pod_trouble import (
    NO_IMAGE,
    LogOf,
    again,
    ends,
    last_error,
    limit_of,
    log_reader,
    placing,
    queued,
    refused,
    remedy_of_refusal,
    unfetched,
    unmade,
)
from runner.cluster.status import FAILED, FINISHED, QUEUED, State
from runner.runs.launch import OUT_OF_MEMORY, meaning
from runner.targets import code

NCCL = re.compile(r"Watchdog caught collective operation timeout|ncclSystemError|ncclRemoteError|NCCL (WARN|error)")

LESS = "`machines`"
BUILD = (
    "Build it with `oc start-build recipe-runner --from-dir=. --follow`, or correct `openshift.image`. Where another "
    "namespace has built it, `recipe site RECIPE` writes the right to fetch it."
)
MORE_MEMORY = "Raise `openshift.limits.memory`, or take machines with more."

# Where a failed job's last words are, once its pods are away.
GONE = "Its pods are gone, and their logs with them; `recipe fetch RECIPE` brings what it had left on its claim."


def reasons(state: State, log_of: LogOf) -> list[str]:
    """What stands in the way, most telling first; empty while all is well."""
    if state.phase == FINISHED:
        return []
    queue = (state.job["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name", "")
    said = [*queued(queue, state.workload), *_missing_pods(state), *_taken(state), *_ended(state)]
    for pod in (*state.replaced, *state.pods):
        said += _pod(state, pod, log_of)
    if state.phase == FAILED and not state.pods:
        said.append(GONE)
    if state.unread:
        said.append(f"How far it is cannot be read now: {state.unread}")
    return list(dict.fromkeys(said))


def _missing_pods(state: State) -> Iterator[str]:
    """Why the operator has not made all pods; the job itself then shows nothing at all."""
    there, wanted = len(state.pods), machines(state.job)
    if there >= wanted or state.ended or state.phase == QUEUED:
        return
    event = refused(state.events)
    if event is None:
        if not there and not state.job.get("status") and (minutes := _age(state.job) // 60):
            yield (
                f"Nobody has taken it up in {minutes:.0f} minutes: the operator of {state.job['kind']}s may be down. Ask the "
                "cluster's admin whether it runs."
            )
        return
    said = event["message"]
    remedy = remedy_of_refusal(said, LESS, "Render the recipe again with this version, and submit it again.")
    made = f"Only {there} of {wanted} pods are made" if there else "No pods are made"
    yield f"{made}: {said}. {remedy}"


def _age(manifest: dict[str, Any]) -> float:
    """Seconds since an object was made, by this machine's clock."""
    at = manifest["metadata"].get("creationTimestamp")
    return (datetime.now(UTC) - datetime.fromisoformat(at.replace("Z", "+00:00"))).total_seconds() if at else 0.0


def _taken(state: State) -> Iterator[str]:
    """Pods that are not there any more, because the cluster took them off their machines."""
    here = {pod["metadata"].get("uid") for pod in (*state.pods, *state.replaced)}
    for event in state.events:
        of = event["involvedObject"]
        if event.get("reason") in TAKEN and of.get("uid") not in here:
            yield (
                f"`{of['name']}` was taken off its machine ({when(event)[:19]}Z) and is made anew; training goes on from its "
                f"last checkpoint. The cluster says: {event['message']}"
            )


def _ended(state: State) -> Iterator[str]:
    for condition in state.job.get("status", {}).get("conditions") or []:
        if condition["type"] != "Failed" or condition["status"] != "True":
            continue
        said = condition.get("message", "")
        if "deadline" in said.lower() or condition.get("reason") == "DeadlineExceeded":
            yield "It was ended at its deadline, `openshift.deadline_hours`. Submit it again to go on from the last checkpoint."
        elif "backoff" in said.lower():
            yield "It failed more often than `openshift.backoff_limit` allows."
        elif said:
            yield f"The cluster says: {said}"


def _pod(state: State, pod: dict[str, Any], log_of: LogOf) -> Iterator[str]:
    before = ", since replaced" if pod in state.replaced else ""
    where = f"Machine {node_number(pod)} (`{pod['metadata']['name']}`{before})"
    status = pod.get("status", {})
    yield from placing(pod, state.events, where, LESS)
    for entry in status.get("initContainerStatuses") or []:
        if (entry.get("state", {}).get("terminated") or {}).get("exitCode") == 0:
            continue  # done, if not at the first try
        yield from _clone(pod, entry, where) if entry["name"] == code.CONTAINER else _wait_for_master(entry, where)
    for entry in status.get("containerStatuses") or []:
        if entry["name"] in WORKING:
            yield from _container(state, pod, entry, where, log_of)


def _clone(pod: dict[str, Any], entry: dict[str, Any], where: str) -> Iterator[str]:
    """Our own container that fetches the code; it runs in the pod's image, and first."""
    yield from unfetched(pod, entry, where, BUILD)
    for ended in ends(entry):
        said = f" It said: {_last_line(ended['message'])}." if ended.get("message") else ""
        yield (
            f"{where} could not fetch its code.{said} Look at `image.code_from_git`: the address, and whether the commit is "
            "pushed there; and whether the cluster's machines reach that server."
        )


def _wait_for_master(entry: dict[str, Any], where: str) -> Iterator[str]:
    """The operator's container that goes before each worker's."""
    waiting = entry.get("state", {}).get("waiting") or {}
    if waiting.get("reason") in NO_IMAGE:
        image = entry.get("image") or "the training operator's own"
        yield (
            f"{where}: the image `{image}`, with which it would wait for the master, cannot be fetched: "
            f"{waiting.get('message') or waiting['reason']}. Ask the cluster's admin."
        )
    elif "running" in entry.get("state", {}):
        yield f"{where} waits for the master: its address is not known yet, because the master's pod has not started."
    elif ends(entry):
        yield f"{where} gave up waiting for the master; look at machine 0 first."


def _container(state: State, pod: dict[str, Any], entry: dict[str, Any], where: str, log_of: LogOf) -> Iterator[str]:
    yield from unfetched(pod, entry, where, BUILD)
    yield from unmade(pod, entry, state.events, where, machines(state.job) > 1, "Submit the recipe again.")
    for ended in ends(entry):
        yield from _end(state.job, pod, entry, ended, where, log_of)


def _end(
    job: dict[str, Any], pod: dict[str, Any], entry: dict[str, Any], ended: dict[str, Any], where: str, log_of: LogOf
) -> Iterator[str]:
    if ended.get("reason") == "OOMKilled":
        yield f"{where} used up its main memory{again(entry)}. {_memory(pod, job)} {MORE_MEMORY}"
        return
    if ended.get("message"):
        # The pod's own last words: a gate's table, or why a stage does not start.
        yield f"{where} ended{again(entry)}. It said: {ended['message'].strip()}"
        return
    text = log_of(pod["metadata"]["name"])
    if NCCL.search(text):
        yield (
            f"{where} waited in vain for the other machines (NCCL){again(entry)}. Look for one that failed first; if none did, the "
            "network is the reason: `openshift.network`, and `communication.nccl_debug: INFO` shows which one was used."
        )
        return
    said = " ".join(part for part in (meaning(text) or last_error(text), _gpu_memory(text, job)) if part)
    yield f"{where} ended with exit code {ended['exitCode']}{again(entry)}. {said}".strip()


def _foreseen(job: dict[str, Any], what: str) -> str:
    """What the plan foresaw (see `targets.kubernetes.foreseen`), with its unit; empty where there is no estimate."""
    return annotation(job, f"recipe-runner/planned-{what}")


def _gpu_memory(text: str, job: dict[str, Any]) -> str:
    """What the plan had said, where the log says that a GPU's memory was too small."""
    need = _foreseen(job, "gpu-memory")
    return f"`recipe plan` had estimated {need} on each GPU." if need and OUT_OF_MEMORY.search(text) else ""


def _memory(pod: dict[str, Any], job: dict[str, Any]) -> str:
    """The pod's limit, by its recipe, and what the plan had said."""
    shared = [
        volume["emptyDir"].get("sizeLimit")
        for volume in pod["spec"].get("volumes") or []
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    ]
    of_it = f", {shared[0]} of it as shared memory" if shared and shared[0] else ""
    need = _foreseen(job, "memory")
    estimated = f" `recipe plan` had estimated {need}." if need else ""
    return f"Its limit was {limit_of(pod, WORKING)}{of_it}.{estimated}"


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1][:300].rstrip(".")


def logs_of(cluster: Cluster, state: State) -> LogOf:
    """Reads the logs of a job's pods for `reasons`."""
    return log_reader(cluster, state.job["metadata"]["namespace"], container(state.job))
