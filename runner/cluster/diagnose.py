"""Why a job does not start, or ended: read from events, pod status and logs, said in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from runner.cluster.client import Cluster
from runner.cluster.errors import TryAgain
from runner.cluster.jobs import WORKING, annotation, container, machines, node_number
from runner.cluster.status import FAILED, FINISHED, QUEUED, TAKEN, State, when
from runner.runs.launch import OUT_OF_MEMORY, meaning
from runner.targets import code

# Given a pod's name, the end of its container's log, of the previous container's where it has been restarted.
LogOf = Callable[[str], str]

# What a pod waits with whose image is not to be had.
NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName")
# How operators say that a pod was refused.
NOT_MADE = ("FailedCreatePod", "FailedCreate")
NCCL = re.compile(r"Watchdog caught collective operation timeout|ncclSystemError|ncclRemoteError|NCCL (WARN|error)")

MORE_MEMORY = "Raise `openshift.limits.memory`, or take machines with more."
# A claim that is there keeps its mode and its storage, whatever the recipe says.
SEVERAL = (
    "Several machines need storage that all can write (ReadWriteMany): name one under `openshift.claims[].storage_class`, "
    "with a new `name`, because a claim that is there stays as it was made."
)


# Where a failed job's last words are, once its pods are away.
GONE = "Its pods are gone, and their logs with them; `recipe fetch RECIPE` brings what it had left on its claim."


def reasons(state: State, log_of: LogOf) -> list[str]:
    """What stands in the way, most telling first; empty while all is well."""
    if state.phase == FINISHED:
        return []
    said = [*_queue(state), *_missing_pods(state), *_taken(state), *_ended(state)]
    for pod in (*state.replaced, *state.pods):
        said += _pod(state, pod, log_of)
    if state.phase == FAILED and not state.pods:
        said.append(GONE)
    if state.unread:
        said.append(f"How far it is cannot be read now: {state.unread}")
    return list(dict.fromkeys(said))


def _queue(state: State) -> Iterator[str]:
    queue = state.job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    for condition in (state.workload or {}).get("status", {}).get("conditions") or []:
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            said = condition.get("message", "")
            if "doesn't exist" in said or "inactive" in said or "is stopped" in said:
                yield f"The queue `{queue}` does not take jobs: {said}. Ask its owner, or change `openshift.queue`."
            else:
                yield f"It waits in the queue `{queue}` until enough is free there: {said}"


def _missing_pods(state: State) -> Iterator[str]:
    """Why the operator has not made all pods; the job itself then shows nothing at all."""
    there, wanted = len(state.pods), machines(state.job)
    if there >= wanted or state.ended or state.phase == QUEUED:
        return
    event = next((event for event in reversed(state.events) if event.get("reason") in NOT_MADE), None)
    if event is None:
        if not there and not state.job.get("status") and (minutes := _age(state.job) // 60):
            yield (
                f"Nobody has taken it up in {minutes:.0f} minutes: the operator of {state.job['kind']}s may be down. Ask the "
                "cluster's admin whether it runs."
            )
        return
    said = event["message"]
    if "exceeded quota" in said:
        remedy = "Ask for a larger quota, or ask for less in `machines`."
    elif "security context constraint" in said or "PodSecurity" in said:
        remedy = "The namespace's rules for pods refuse it; the service account needs restricted-v2."
    elif "serviceaccount" in said and "not found" in said:
        remedy = "`recipe site RECIPE` writes it, for `oc apply -k`; or delete `openshift.service_account`."
    else:
        remedy = "Render the recipe again with this version, and submit it again."
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
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield from _unscheduled(state, pod, condition.get("message", ""), where)
    if status.get("reason") in ("Evicted", "Preempting", "NodeLost"):
        yield f"{where} was taken off its machine: {status.get('message', status['reason'])}"
    for entry in status.get("initContainerStatuses") or []:
        if (entry.get("state", {}).get("terminated") or {}).get("exitCode") == 0:
            continue  # done, if not at the first try
        yield from _clone(pod, entry, where) if entry["name"] == code.CONTAINER else _wait_for_master(entry, where)
    for entry in status.get("containerStatuses") or []:
        if entry["name"] in WORKING:
            yield from _container(state, pod, entry, where, log_of)


def _clone(pod: dict[str, Any], entry: dict[str, Any], where: str) -> Iterator[str]:
    """Our own container that fetches the code; it runs in the pod's image, and first."""
    yield from _pull(pod, entry, where)
    for ended in _ends(entry):
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
    elif _ends(entry):
        yield f"{where} gave up waiting for the master; look at machine 0 first."


def _unscheduled(state: State, pod: dict[str, Any], said: str, where: str) -> Iterator[str]:
    gpu = pod["spec"].get("nodeSelector", {}).get("nvidia.com/gpu.product")
    if "unbound immediate PersistentVolumeClaim" in said or (
        "persistentvolumeclaim" in said.lower() and "not found" in said
    ):
        yield f"{where} waits for its claims. {_claims(state, said)}. {SEVERAL}"
    elif "volume node affinity" in said:
        yield f"{where}: its claims lie where no free machine is. The cluster says: {said}"
    elif away := re.findall(r"taint {node\.kubernetes\.io/([\w-]+)", said) or re.findall("unschedulable", said):
        names = ", ".join(dict.fromkeys(away))
        yield f"{where}: machines that it could start on are not ready ({names}), which their admin can mend. The cluster says: {said}"
    elif gpu and ("node affinity" in said or "node selector" in said):
        busy = " Those that have one are all in use." if "Insufficient nvidia.com/gpu" in said else ""
        yield f"{where}: no machine with the GPU `{gpu}` is free for it.{busy} The cluster says: {said}"
    elif scarce := re.findall(r"Insufficient ([\w./-]+)", said):
        names = ", ".join(dict.fromkeys(name.rstrip(".") for name in scarce))
        yield f"{where}: no machine has enough left of {names}. It starts when others finish, or ask for less in `machines`."
    elif "taint" in said:
        yield f"{where}: the machines with this GPU are closed to other work: {said}"
    elif said:
        yield f"{where} finds no machine: {said}"


def _claims(state: State, said: str) -> str:
    """Why claims are not bound: their own last word, else the scheduler's."""
    told = [
        f"Claim `{event['involvedObject']['name']}`: {event['message']}"
        for event in state.events
        if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
    ]
    return (told[-1] if told else f"They are not bound to storage yet: {said}").rstrip(".")


def _container(state: State, pod: dict[str, Any], entry: dict[str, Any], where: str, log_of: LogOf) -> Iterator[str]:
    yield from _pull(pod, entry, where)
    waiting = entry.get("state", {}).get("waiting") or {}
    reason, said = waiting.get("reason", ""), waiting.get("message", "")
    if reason == "CreateContainerConfigError":
        yield f"{where}: something that it needs is not there: {said}. {_missing(said)}"
    elif reason == "ContainerCreating":
        yield from _mounting(state, pod, where)
    for ended in _ends(entry):
        yield from _end(state.job, pod, entry, ended, where, log_of)


def _pull(pod: dict[str, Any], entry: dict[str, Any], where: str) -> Iterator[str]:
    waiting = entry.get("state", {}).get("waiting") or {}
    if waiting.get("reason") not in NO_IMAGE:
        return
    # Every container of ours has the same image.
    image = entry.get("image") or pod["spec"]["containers"][0]["image"]
    yield (
        f"{where}: the image `{image}` cannot be fetched: {waiting.get('message') or waiting['reason']}. "
        "Build it with `oc start-build recipe-runner --from-dir=. --follow`, or correct `openshift.image`. Where another "
        "namespace has built it, `recipe site RECIPE` writes the right to fetch it."
    )


def _missing(said: str) -> str:
    if "secret" in said:
        return "Make the Secret with `oc create secret generic NAME --from-file=token=FILE`."
    return "Submit the recipe again."


def _mounting(state: State, pod: dict[str, Any], where: str) -> Iterator[str]:
    for event in reversed(state.events):
        if event["involvedObject"].get("uid") == pod["metadata"]["uid"] and event.get("reason") in (
            "FailedMount",
            "FailedAttachVolume",
        ):
            shared = f". {SEVERAL}" if event["message"].startswith("Multi-Attach") else ""
            yield f"{where}: a volume cannot be attached: {event['message']}{shared}"
            return


def _ends(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """A container's bad ends: the present one, else the last one."""
    ends = [entry.get(part, {}).get("terminated") for part in ("state", "lastState")]
    return [end for end in ends if end and end.get("exitCode")][:1]


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _end(
    job: dict[str, Any], pod: dict[str, Any], entry: dict[str, Any], ended: dict[str, Any], where: str, log_of: LogOf
) -> Iterator[str]:
    again = f", and was started again ({times(entry['restartCount'])} so far)" if entry.get("restartCount") else ""
    if ended.get("reason") == "OOMKilled":
        yield f"{where} used up its main memory{again}. {_memory(pod, job)} {MORE_MEMORY}"
        return
    if ended.get("message"):
        # The pod's own last words: a gate's table, or why a stage does not start.
        yield f"{where} ended{again}. It said: {ended['message'].strip()}"
        return
    text = log_of(pod["metadata"]["name"])
    if NCCL.search(text):
        yield (
            f"{where} waited in vain for the other machines (NCCL){again}. Look for one that failed first; if none did, the "
            "network is the reason: `openshift.network`, and `communication.nccl_debug: INFO` shows which one was used."
        )
        return
    said = " ".join(part for part in (meaning(text) or _last_error(text), _gpu_memory(text, job)) if part)
    yield f"{where} ended with exit code {ended['exitCode']}{again}. {said}".strip()


def _foreseen(job: dict[str, Any], what: str) -> str:
    """What the plan foresaw (see `targets.kubernetes.foreseen`), with its unit; empty where there is no estimate."""
    return annotation(job, f"recipe-runner/planned-{what}")


def _gpu_memory(text: str, job: dict[str, Any]) -> str:
    """What the plan had said, where the log says that a GPU's memory was too small."""
    need = _foreseen(job, "gpu-memory")
    return f"`recipe plan` had estimated {need} on each GPU." if need and OUT_OF_MEMORY.search(text) else ""


def _memory(pod: dict[str, Any], job: dict[str, Any]) -> str:
    """The pod's limit, by its recipe, and what the plan had said."""
    worker = next(entry for entry in pod["spec"]["containers"] if entry["name"] in WORKING)
    limit = worker.get("resources", {}).get("limits", {}).get("memory", "?")
    shared = [
        volume["emptyDir"].get("sizeLimit")
        for volume in pod["spec"].get("volumes") or []
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    ]
    of_it = f", {shared[0]} of it as shared memory" if shared and shared[0] else ""
    need = _foreseen(job, "memory")
    estimated = f" `recipe plan` had estimated {need}." if need else ""
    return f"Its limit was {limit}{of_it}.{estimated}"


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1][:300].rstrip(".")


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(Error|Exception|TrainingStopped)\b|Error:", line)]
    said = (errors or lines)[-1:]
    return f"It said: {said[0][:300]}" if said else ""


def log_reader(cluster: Cluster, state: State) -> LogOf:
    """Reads a pod's log for `reasons`; the previous container's where it has been restarted."""
    meta, name = state.job["metadata"], container(state.job)

    def read(pod: str) -> str:
        try:
            before = cluster.log(meta["namespace"], pod, name, previous=True, tail=200)
            return before or cluster.log(meta["namespace"], pod, name, tail=200) or ""
        except TryAgain:
            return ""  # of a machine that does not answer

    return read
