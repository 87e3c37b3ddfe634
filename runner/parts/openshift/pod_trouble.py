"""What keeps a pod from being made, started and kept, whether it trains or serves: read from its status and from events."""

from collections.abc import Callable, Iterator
from typing import Any

from runner.catalog import troubles
from runner.parts.openshift.client import Cluster, Manifest, Manifests
from runner.parts.openshift.errors import TryAgain

# Given a pod's name, the end of its container's log, of the previous container's where it has been restarted.
LogOf = Callable[[str], str]

# What a pod waits with whose image is not to be had.
NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName")
# How operators and ReplicaSets say that a pod was refused.
NOT_MADE = ("FailedCreatePod", "FailedCreate")
NOT_MOUNTED = ("FailedMount", "FailedAttachVolume")
# Lines of a log's end in which a reason is looked for: each of eight processes may leave a trace of its own.
TAIL = 2000


def log_reader(cluster: Cluster, space: str, container: str) -> LogOf:
    """Reads the log of a container of that name; the previous one's where it has been restarted."""

    def read(pod: str) -> str:
        try:
            before = cluster.log(space, pod, container, previous=True, tail=TAIL)
            return before or cluster.log(space, pod, container, tail=TAIL) or ""
        except TryAgain:
            return ""  # of a machine that does not answer

    return read


def refused(events: Manifests) -> Manifest | None:
    """The latest event that says why a pod was not made."""
    return next((event for event in reversed(events) if event.get("reason") in NOT_MADE), None)


def refusal(said: str, less: str, otherwise: str) -> str:
    """Why a pod was refused, in words to go on a sentence. less: the settings that ask for less; otherwise: what to do where the
    reason is nobody's."""
    return str(troubles.find(said, troubles.UNMADE, said=said, less=less) or f"{said}. {otherwise}")


def queued(queue: str, workload: Manifest | None) -> Iterator[str]:
    """What Kueue says of an entry that waits."""
    for condition in (workload or {}).get("status", {}).get("conditions") or []:
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            said = condition.get("message", "")
            found = troubles.find(said, troubles.QUEUE, said=said, queue=queue)
            yield str(found or f"It waits in the queue `{queue}`: {said}")


def entry_of(workloads: Manifests, owner: Manifest) -> Manifest | None:
    """Kueue's entry for an object, among those of its namespace."""
    for workload in workloads:
        owners = workload["metadata"].get("ownerReferences") or []
        if any(each["uid"] == owner["metadata"]["uid"] for each in owners):
            return workload
    return None


def placing(pod: Manifest, events: Manifests, where: str, less: str) -> Iterator[str]:
    """Why no machine takes a pod, or one has put it out again. less: the settings that ask for less."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield from _unscheduled(pod, events, condition.get("message", ""), where, less)
    if (reason := status.get("reason")) in ("Evicted", "Preempting", "NodeLost"):
        yield taken_off(where, reason, status.get("message", reason))


def taken_off(where: str, reason: str, said: str, at: str = "") -> str:
    """Why a pod was taken off its machine, and when, where that is known."""
    found = troubles.find(f"{reason}: {said}", troubles.TAKEN, said=said)
    return f"{where} was taken off its machine{at}: {found or said}"


def _unscheduled(pod: Manifest, events: Manifests, said: str, where: str, less: str) -> Iterator[str]:
    gpu = pod["spec"].get("nodeSelector", {}).get("nvidia.com/gpu.product", "")
    busy = " Those that have one are all in use." if "Insufficient nvidia.com/gpu" in said else ""
    words = {"said": said, "gpu": gpu, "less": less, "busy": busy, "claims": _claims(events, said)}
    if found := troubles.find(said, troubles.PLACING, **words):
        yield f"{where}: {found}"
    elif said:
        yield f"{where}: it finds no machine: {said}"


def _claims(events: Manifests, said: str) -> str:
    """Why claims are not bound: their own last word, else the scheduler's."""
    told = [
        f"Claim `{event['involvedObject']['name']}`: {event['message']}"
        for event in events
        if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
    ]
    return (told[-1] if told else f"They are not bound to storage yet: {said}").rstrip(".")


def unfetched(pod: Manifest, entry: dict[str, Any], where: str, remedy: str) -> Iterator[str]:
    """Why the image of a container is not there."""
    waiting = entry.get("state", {}).get("waiting") or {}
    if waiting.get("reason") in NO_IMAGE:
        # Every container of ours has the same image.
        image = entry.get("image") or pod["spec"]["containers"][0]["image"]
        said = (waiting.get("message") or waiting["reason"]).rstrip(".")
        found = troubles.find(said, troubles.IMAGE, said=said, image=image, advice=remedy)
        yield f"{where}: {found or f'the image `{image}` cannot be fetched: {said}. {remedy}'}"


def unmade(pod: Manifest, entry: dict[str, Any], events: Manifests, where: str, remedy: str) -> Iterator[str]:
    """Why a container whose image is there is not made: a Secret, or a volume. remedy: for what else is missing."""
    waiting = entry.get("state", {}).get("waiting") or {}
    reason, said = waiting.get("reason", ""), waiting.get("message") or waiting.get("reason", "")
    if reason == "CreateContainerConfigError":
        found = troubles.find(said, troubles.MISSING, said=said)
        yield f"{where}: {found or f'something that it needs is not there: {said}. {remedy}'}"
    elif reason == "ContainerCreating":
        own = [event for event in events if event["involvedObject"].get("uid") == pod["metadata"]["uid"]]
        for event in [event for event in own if event.get("reason") in NOT_MOUNTED][-1:]:
            said = event["message"]
            found = troubles.find(said, troubles.MOUNT, said=said)
            yield f"{where}: {found or f'a volume cannot be attached: {said}'}"


def ends(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """A container's bad ends: the present one, else the last one."""
    known = [entry.get(part, {}).get("terminated") for part in ("state", "lastState")]
    return [end for end in known if end and end.get("exitCode")][:1]


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def again(entry: dict[str, Any]) -> str:
    """How often a container was started again, to go on a sentence; empty where it was not."""
    return f", and was started again ({times(entry['restartCount'])} so far)" if entry.get("restartCount") else ""


def limit_of(pod: Manifest, containers: tuple[str, ...]) -> str:
    """The limit of main memory of the first container of these names, as the pod says it."""
    worker = next(entry for entry in pod["spec"]["containers"] if entry["name"] in containers)
    return str(worker.get("resources", {}).get("limits", {}).get("memory", "?"))
