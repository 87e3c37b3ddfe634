"""Why a job does not start, or ended: read from events, pod status and logs, said in words."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

from runner.catalog import troubles
from runner.parts.jobs import code
from runner.parts.openshift.client import Cluster
from runner.parts.openshift.events import TAKEN, when
from runner.parts.openshift.jobs import (
    WORKING,
    container,
    foreseen,
    gpus,
    machines,
    node_number,
    queue_of,
)
from runner.parts.openshift.pod_trouble import (
    NO_IMAGE,
    LogOf,
    again,
    ends,
    limit_of,
    log_reader,
    placing,
    queued,
    refusal,
    refused,
    taken_off,
    times,
    unfetched,
    unmade,
)
from runner.parts.openshift.status import FAILED, FINISHED, QUEUED, State
from runner.recipe import units

LESS = "`machines`"
BUILD = "Build it with `oc start-build recipe-runner --from-dir=. --follow`, or correct `openshift.image`."
MORE_MEMORY = troubles.remedy("main memory")

# Where a failed job's last words are, once its pods are away.
GONE = "Its pods are gone, and their logs with them; `recipe fetch RECIPE` brings what it had left on its claim."


def reasons(state: State, log_of: LogOf) -> list[str]:
    """What stands in the way, most telling first; empty while all is well."""
    if state.phase == FINISHED:
        return []
    said = [*queued(queue_of(state.job), state.workload), *_missing_pods(state), *_taken(state), *_ended(state)]
    read = cache(log_of)
    for pod in sorted((*state.replaced, *state.pods), key=lambda pod: _follows(pod, read)):
        said += _pod(state, pod, read)
    if state.phase == FAILED and not state.pods:
        said.append(GONE)
    if state.progress.hangs:
        ago, pace = units.duration(state.progress.silent or 0.0), units.speed(state.progress.pace or 0.0)
        said.append(
            f"Its last step was {ago} ago, and one takes {pace} s: it hangs, or measures itself for long. `recipe logs RECIPE "
            "--node N` shows what each machine does; NCCL gives up by itself after a while, and says who came late. `recipe stop` "
            "and `recipe submit` go on from the last checkpoint."
        )
    if state.unread:
        said.append(f"How far it is cannot be read now: {state.unread}")
    return list(dict.fromkeys(said))


def _follows(pod: dict[str, Any], log_of: LogOf) -> bool:
    """Whether what ended a pod was mostly brought about by another one, whose words are then read first."""
    entries = [entry for entry in pod.get("status", {}).get("containerStatuses") or [] if entry["name"] in WORKING]
    found = troubles.find(log_of(pod["metadata"]["name"]), troubles.LOG) if any(map(ends, entries)) else None
    return found is not None and found.trouble.follows


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
    why = refusal(event["message"], LESS, "Render the recipe again with this version, and submit it again.")
    yield f"{f'Only {there} of {wanted} pods are made' if there else 'No pods are made'}: {why}"


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
            yield taken_off(f"`{of['name']}`", event["reason"], event["message"], f" ({when(event)[:19]}Z)")


def _ended(state: State) -> Iterator[str]:
    if lost := state.job.get("status", {}).get("failedIndexes"):
        tries = state.job["spec"].get("backoffLimitPerIndex", 0) + 1
        yield (
            f"Machine {lost} has failed {times(tries)}, and the others wait for it in vain. What they have done stays: submitting "
            "again goes on with what is missing."
        )
        return
    for condition in state.job.get("status", {}).get("conditions") or []:
        if condition["type"] != "Failed" or condition["status"] != "True":
            continue
        said = condition.get("message", "")
        if found := troubles.find(f"{condition.get('reason', '')} {said}", troubles.ENDED):
            yield str(found)
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
    yield from unmade(pod, entry, state.events, where, "Submit the recipe again.")
    for ended in ends(entry):
        yield from _end(state, pod, entry, ended, where, log_of)


def _end(
    state: State, pod: dict[str, Any], entry: dict[str, Any], ended: dict[str, Any], where: str, log_of: LogOf
) -> Iterator[str]:
    if ended.get("reason") == "OOMKilled":
        yield f"{where} used up its main memory{again(entry)}. {_memory(pod, state.job)} {MORE_MEMORY}"
        return
    if ended.get("message"):
        # The pod's own last words: a gate's table, or why a stage does not start.
        yield f"{where} ended{again(entry)}. It said: {ended['message'].strip()}"
        return
    why = _of_log(state, pod, log_of)
    yield f"{where} ended with exit code {ended['exitCode']}{again(entry)}. {why}".strip()


def _of_log(state: State, pod: dict[str, Any], log_of: LogOf) -> str:
    """What a pod's last words mean. Who came late to what all do together, all logs say together."""
    text = log_of(pod["metadata"]["name"])
    plan = troubles.planned(foreseen(state.job, "gpu-memory"))
    found = troubles.find(text, troubles.LOG, plan=plan)
    if found is None:
        said = troubles.last_error(text, whatever=True)
        return f"It said: {said}" if said else ""
    if found.trouble.reads == "ranks":
        together = "\n".join(log_of(other["metadata"]["name"]) for other in state.pods)
        world = str(gpus(state.job)) if len(state.pods) == machines(state.job) else ""
        found = found.trouble.found_in(together, {"world_size": world}) or found
    return found.with_line


def _memory(pod: dict[str, Any], job: dict[str, Any]) -> str:
    """The pod's limit, by its recipe, and what the plan had said."""
    shared = [
        volume["emptyDir"].get("sizeLimit")
        for volume in pod["spec"].get("volumes") or []
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    ]
    of_it = f", {shared[0]} of it as shared memory" if shared and shared[0] else ""
    need = foreseen(job, "memory")
    estimated = f" `recipe plan` had estimated {need}." if need else ""
    return f"Its limit was {limit_of(pod, WORKING)}{of_it}.{estimated}"


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1][:300].rstrip(".")


def logs_of(cluster: Cluster, state: State) -> LogOf:
    """Reads the logs of a job's pods for `reasons`."""
    return log_reader(cluster, state.job["metadata"]["namespace"], container(state.job))
