"""What keeps a pod from being made, started and kept, whether it trains or serves: read from its status and from events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from runner.cluster.client import Cluster, Manifest, Manifests
from runner.cluster.errors import TryAgain

# Given a pod's name, the end of its container's log, of the previous container's where it has been restarted.
LogOf = Callable[[str], str]

# What a pod waits with whose image is not to be had.
NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName")
# How operators and ReplicaSets say that a pod was refused.
NOT_MADE = ("FailedCreatePod", "FailedCreate")
NOT_MOUNTED = ("FailedMount", "FailedAttachVolume")
# A claim that is there keeps its mode and its storage, whatever the recipe says.
SEVERAL = (
    "Several machines need storage that all can write (ReadWriteMany): name one under `openshift.claims[].storage_class`, "
    "with a new `name`, because a claim that is there stays as it was made."
)
HELD = "The claim is for one machine at a time, and another pod has it; it is free when that has ended."
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


def remedy_of_refusal(said: str, less: str, otherwise: str) -> str:
    """What to do where a pod was refused. less: the settings that ask for less; otherwise: where no reason is known."""
    if "exceeded quota" in said:
        return f"Ask for a larger quota, or ask for less in {less}."
    if "security context constraint" in said or "PodSecurity" in said:
        return "The namespace's rules for pods refuse it; the service account needs restricted-v2."
    if "serviceaccount" in said and "not found" in said:
        return "`recipe site RECIPE` writes it, for `oc apply -k`; or delete `openshift.service_account`."
    return otherwise


def queued(queue: str, workload: Manifest | None) -> Iterator[str]:
    """What Kueue says of an entry that waits."""
    for condition in (workload or {}).get("status", {}).get("conditions") or []:
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            said = condition.get("message", "")
            if "doesn't exist" in said or "inactive" in said or "is stopped" in said:
                yield f"The queue `{queue}` does not take jobs: {said}. Ask its owner, or change `openshift.queue`."
            else:
                yield f"It waits in the queue `{queue}` until enough is free there: {said}"


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
    if status.get("reason") in ("Evicted", "Preempting", "NodeLost"):
        yield f"{where} was taken off its machine: {status.get('message', status['reason'])}"


def _unscheduled(pod: Manifest, events: Manifests, said: str, where: str, less: str) -> Iterator[str]:
    gpu = pod["spec"].get("nodeSelector", {}).get("nvidia.com/gpu.product")
    if "unbound immediate PersistentVolumeClaim" in said or (
        "persistentvolumeclaim" in said.lower() and "not found" in said
    ):
        yield f"{where} waits for its claims. {_claims(events, said)}. {SEVERAL}"
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
        yield f"{where}: no machine has enough left of {names}. It starts when others finish, or ask for less in {less}."
    elif "taint" in said:
        yield f"{where}: the machines with this GPU are closed to other work: {said}"
    elif said:
        yield f"{where} finds no machine: {said}"


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
        yield f"{where}: the image `{image}` cannot be fetched: {said}. {remedy}"


def unmade(
    pod: Manifest, entry: dict[str, Any], events: Manifests, where: str, several: bool, remedy: str
) -> Iterator[str]:
    """Why a container whose image is there is not made: a Secret, or a volume. several: whether several pods share the claims;
    remedy: for what is missing."""
    waiting = entry.get("state", {}).get("waiting") or {}
    reason, said = waiting.get("reason", ""), waiting.get("message") or waiting.get("reason", "")
    if reason == "CreateContainerConfigError":
        if "secret" in said:
            remedy = "Make the Secret with `oc create secret generic NAME --from-file=token=FILE`."
        yield f"{where}: something that it needs is not there: {said}. {remedy}"
    elif reason == "ContainerCreating":
        own = [event for event in events if event["involvedObject"].get("uid") == pod["metadata"]["uid"]]
        for event in [event for event in own if event.get("reason") in NOT_MOUNTED][-1:]:
            held = f". {SEVERAL if several else HELD}" if event["message"].startswith("Multi-Attach") else ""
            yield f"{where}: a volume cannot be attached: {event['message']}{held}"


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


def last_error(text: str) -> str:
    """The last line of a log that names an error, else its last line, as a sentence; empty where there is no log."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(\w*Error|\w*Exception|TrainingStopped)\b", line)]
    said = (errors or lines)[-1:]
    return f"It said: {said[0][:300]}" if said else ""
