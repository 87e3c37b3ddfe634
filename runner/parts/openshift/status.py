"""The state of a job on the cluster, from the job, its pods, its events and its queue entry."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runner.parts.jobs import batch, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import jobs
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import TryAgain
from runner.tools import child_process
from runner.trainer.records import EARLY_STOP_EVENT, EarlyStop

# A job's phases, in order.
QUEUED = "queued"
SUSPENDED = "suspended"
WAITING = "waiting for machines"
PULLING = "pulling image and code"
AGAIN = "restarting after a failure"
PREPARING = "preparing model and data"
STARTING = "starting"
TRAINING = "training"
MEASURING = "measuring"
WALKING = "sending one stage after the other"
FINISHED = "finished"
FAILED = "failed"
ENDED = (FINISHED, FAILED)
TAIL = 400  # the last lines of a log that are searched for the latest step

_CONDITION_ENDS = {"Succeeded": FINISHED, "Complete": FINISHED, "Failed": FAILED}


@dataclass(frozen=True)
class JobState:
    """A job on the cluster, as it is now."""

    phase: str  # one of the above
    job: Manifest
    pods: Manifests  # the latest of each machine
    events: Manifests = field(default_factory=list)
    workload: Manifest | None = None  # its entry in a queue of Kueue
    progress: "JobProgress" = field(default_factory=lambda: JobProgress())
    replaced: Manifests = field(default_factory=list)  # pods that others have replaced
    unread: str = ""  # why the progress is unknown
    made_by: Manifests = field(default_factory=list)  # the owners of its pods
    now: datetime = field(default_factory=lambda: datetime.now(UTC))  # by the cluster's clock

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def running(self) -> int:
        """How many of its machines run; one whose container waits for its restart does not."""
        count = 0
        for pod in self.pods:
            states = [entry.get("state", {}) for entry in _working(pod)]
            is_idle = any("waiting" in state or "terminated" in state for state in states)
            if jobs.phase_of(pod) == "Running" and not is_idle:
                count += 1
        return count


def read_state(cluster: Cluster, job: Manifest) -> JobState:
    made_by = jobs.pod_owners(cluster, job)
    attempts = jobs.all_pods_of(cluster, job, made_by)
    pods = jobs.latest_pods(attempts)
    workload = None
    if jobs.queue_of(job):
        entries = cluster.list("Workload", job["metadata"]["namespace"], forgiving=True)
        workload = entry_of(entries, job)
    phase = _phase(job, pods, workload)
    job_progress = JobProgress()
    unread = ""
    if phase == TRAINING:
        try:
            job_progress = _progress_of(cluster, job, pods)
            phase = _training_phase(job_progress, pods)
        except TryAgain as silence:
            # The machine of one pod may not answer while the rest of the cluster does.
            unread = silence.text.splitlines()[0]
    events: Manifests = []
    if phase != FINISHED:
        events = events_about(cluster, [*made_by, *attempts], _of_former_pod(made_by))
    replaced = [pod for pod in attempts if pod not in pods]
    return JobState(
        phase, job, pods, events, workload, job_progress, replaced, unread, made_by, cluster.now()
    )


def _progress_of(cluster: Cluster, job: Manifest, pods: Manifests) -> "JobProgress":
    """The progress of training since the last start of any machine: one that was replaced or
    restarted takes all of them back to the last checkpoint."""
    starts = []
    for pod in pods:
        for entry in _working(pod):
            starts.append(entry.get("state", {}).get("running", {}).get("startedAt"))
    started = max((datetime.fromisoformat(start) for start in starts if start), default=None)
    return progress(first_log(cluster, job, pods, stamped=True), started, cluster.now())


def _training_phase(job_progress: "JobProgress", pods: Manifests) -> str:
    """Whether training continues, or still begins, for the first time or after a failure."""
    if not job_progress.begins:
        return TRAINING
    restarts = []
    for pod in pods:
        for entry in _working(pod):
            restarts.append(entry.get("restartCount"))
    if job_progress.again or any(restarts):
        return AGAIN
    return STARTING


def _of_former_pod(made_by: Manifests) -> Callable[[Manifest], bool]:
    """What finds the events about pods of these owners that no longer exist."""
    names = "|".join(re.escape(maker["metadata"]["name"]) for maker in made_by)
    pod_name = re.compile(rf"({names})-((master|worker)-\d+|(\d+-)?[a-z0-9]{{5}})")

    def is_of_former_pod(event: Manifest) -> bool:
        of = event["involvedObject"]
        return (
            event.get("reason") in TAKEN
            and of.get("kind") == "Pod"
            and bool(pod_name.fullmatch(of.get("name", "")))
        )

    return is_of_former_pod


def ended(job: Manifest) -> str | None:
    """`finished` or `failed`; None while a job is under way."""
    for condition in reversed(jobs.conditions_of(job)):
        if condition["status"] == "True" and condition["type"] in _CONDITION_ENDS:
            return _CONDITION_ENDS[condition["type"]]
    return None


def is_being_deleted(manifest: Manifest) -> bool:
    """Whether an object is being deleted and only waits for its dependents."""
    return "deletionTimestamp" in manifest["metadata"]


def _phase(job: Manifest, pods: Manifests, workload: Manifest | None) -> str:
    end = ended(job)
    if end:
        return end
    if _is_suspended(job, workload):
        if workload or jobs.queue_of(job):
            return QUEUED
        return SUSPENDED
    phases = list(map(jobs.phase_of, pods))
    if len(pods) < jobs.machines(job) or "Pending" in phases:
        if _is_pulling(pods):
            return PULLING
        return WAITING
    if _is_restarting(pods):
        return AGAIN
    if job["kind"] != "Job":
        return TRAINING
    return {batch.GATE: MEASURING, jobs.DRIVER: WALKING}.get(jobs.container(job), PREPARING)


def _is_suspended(job: Manifest, workload: Manifest | None) -> bool:
    """Whether a job waits for its queue, or for somebody who resumes it."""
    spec = job["spec"]
    if spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"):
        return True
    return workload is not None and not jobs.has_condition(workload, "Admitted")


def _is_pulling(pods: Manifests) -> bool:
    """Whether a machine pulls the image, or clones the code."""
    init_entries = []
    for pod in pods:
        init_entries.extend(jobs.containers_of(pod, before=True))
    clones = any(
        entry["name"] == podspec.CLONER and "running" in entry.get("state", {})
        for entry in init_entries
    )
    return clones or "ContainerCreating" in _waiting_reasons(pods)


def _is_restarting(pods: Manifests) -> bool:
    """Whether a machine has failed, and the job continues."""
    died = any((state.get("terminated") or {}).get("exitCode") for state in _states(pods))
    failed = any(jobs.phase_of(pod) == "Failed" for pod in pods)
    return died or failed or "CrashLoopBackOff" in _waiting_reasons(pods)


def _waiting_reasons(pods: Manifests) -> set[str | None]:
    return {state.get("waiting", {}).get("reason") for state in _states(pods)}


def _states(pods: Manifests) -> Manifests:
    """The state of each container."""
    return [entry.get("state", {}) for pod in pods for entry in jobs.containers_of(pod)]


def entry_of(workloads: Manifests, owner: Manifest) -> Manifest | None:
    """Kueue's entry for an object, among those of its namespace."""
    uid = owner["metadata"]["uid"]
    owned = (
        workload
        for workload in workloads
        for reference in workload["metadata"].get("ownerReferences") or ()
        if reference["uid"] == uid
    )
    return next(owned, None)


# An event of training with its time; None if its line has none.
DatedEvent = tuple[datetime | None, Mapping[str, Any]]


class JobProgress(NamedTuple):
    """The progress of training."""

    latest: Mapping[str, Any] | None = None  # the last step, or the beginning; None before that
    pace: float | None = None  # seconds a step; None if unknown
    silent: float | None = None  # seconds since the last step; None if unknown
    begins: bool = False  # the process has not reached training yet
    again: bool = False  # the log has steps from before the last start of a machine

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at this pace; None if unknown, or if it hangs."""
        if self.latest is None or self.pace is None or self.hangs:
            return None
        return float(self.pace * (self.latest["steps"] - self.latest["step"]))

    @property
    def hangs(self) -> bool:
        """Whether the next step is overdue by both 10 minutes and 30 steps: an evaluation or a
        checkpoint takes less."""
        return (
            self.pace is not None
            and self.silent is not None
            and self.silent > max(600.0, 30 * self.pace)
        )


def first_log(
    cluster: Cluster, job: Manifest, pods: Manifests, long: bool = False, stamped: bool = False
) -> str:
    """The end of the log of a job's first machine; empty without that machine."""
    space = job["metadata"]["namespace"]
    container = jobs.container(job)
    tail = 10 * TAIL if long else TAIL
    for pod in pods:
        if jobs.node_number(pod) == 0:
            name = pod["metadata"]["name"]
            return cluster.log(space, name, container, tailLines=tail, timestamps=stamped) or ""
    return ""


def early_stop(cluster: Cluster, job: Manifest) -> EarlyStop | None:
    """The early end of a finished job's training, from the log of its first machine; None if the
    log shows none."""
    text = first_log(cluster, job, jobs.pods_of(cluster, job), long=True)
    stop_events = []
    for event in child_process.events(text):
        if event.get("event") == EARLY_STOP_EVENT:
            stop_events.append(event)
    if stop_events:
        return EarlyStop.of(stop_events[-1])
    return None


def progress(text: str, started: datetime | None, now: datetime) -> JobProgress:
    """The progress of training, from the end of a log with timestamps. The pace is that between its
    first and last step, else since all machines have started; older lines do not count."""
    dated_events = []
    for line in text.splitlines():
        for event in child_process.events(line):
            if event.get("event") in ("begin", "step"):
                dated_events.append((_time(line), event))
    current_events = [
        (moment, event)
        for moment, event in dated_events
        if not (moment and started and moment < started)
    ]
    if not current_events:
        # Without steps from before, the end of a long log does not show whether training has begun.
        is_short = text.count("\n") < TAIL
        return JobProgress(begins=bool(dated_events) or is_short, again=bool(dated_events))
    current_events = _since_last_begin(current_events)
    moment, latest = current_events[-1]
    silent = None
    if moment and latest["event"] == "step":
        silent = max(0.0, (now - moment).total_seconds())
    return JobProgress(latest, _pace(current_events, started, now), silent)


def _since_last_begin(events: list[DatedEvent]) -> list[DatedEvent]:
    """The events of the last process, from its beginning on, if the log shows that."""
    begins = [number for number, (_, event) in enumerate(events) if event["event"] == "begin"]
    return events[max(begins, default=0) :]


def _pace(events: list[DatedEvent], started: datetime | None, now: datetime) -> float | None:
    """Seconds a step, between the first and the last step, else since all machines have started;
    None if unknown."""
    since, first_event = events[0]
    moment, latest = events[-1]
    if first_event["event"] == "begin" and len(events) > 2:
        # The first step also compiles kernels and fills caches.
        since, first_event = events[1]
    steps = latest["step"] - first_event["step"]
    passed = _seconds_between(since, moment)
    if steps <= 0 or passed <= 0:
        steps = latest["step"] - events[0][1]["step"]
        passed = _seconds_between(started, now)
    if steps > 0 and passed > 0:
        return float(passed / steps)
    return None


def _seconds_between(start: datetime | None, end: datetime | None) -> float:
    """From a start to an end; 0 if one is unknown."""
    if start and end:
        return (end - start).total_seconds()
    return 0.0


def _time(line: str) -> datetime | None:
    try:
        return datetime.fromisoformat(f"{line.partition(' ')[0][:19]}+00:00")
    except ValueError:
        return None


def seconds(start: str | None, now: datetime, end: str | None = None) -> float:
    """From a start to an end, else to now; 0 without a start."""
    if end:
        last = datetime.fromisoformat(end)
    else:
        last = now
    if start:
        return max(0.0, (last - datetime.fromisoformat(start)).total_seconds())
    return 0.0


def _working(pod: Manifest) -> Manifests:
    return [entry for entry in jobs.containers_of(pod) if entry["name"] in jobs.WORKING]


# Why a pod leaves its machine: by kubelet (memory, disk), scheduler (priority) or node controller
# (machine gone).
TAKEN = ("Evicted", "Preempted", "TaintManagerEviction")


def events_about(
    cluster: Cluster, objects: Manifests, by_name: Callable[[Manifest], bool]
) -> Manifests:
    """The warnings about these objects, and all events of the unbound claims of their pods, the
    latest last. A later success ends a warning, except for a pod that was removed from its machine.
    by_name: whether an event about an object with an unknown uid counts, if it is newer than the
    first of these objects."""
    meta = objects[0]["metadata"]
    unbound = _unbound_claims(cluster, objects)
    uids = {manifest["metadata"]["uid"] for manifest in (*objects, *unbound)}
    events = sorted(cluster.list("Event", meta["namespace"], forgiving=True), key=time_of_event)
    # The last success of each object.
    well = {
        event["involvedObject"].get("uid", ""): time_of_event(event)
        for event in events
        if event.get("type") == "Normal"
    }

    def counts(event: Manifest) -> bool:
        of = event["involvedObject"]
        uid = of.get("uid", "")
        if uid not in uids and not (
            time_of_event(event) >= meta["creationTimestamp"] and by_name(event)
        ):
            return False
        if of.get("kind") == "PersistentVolumeClaim":
            return True
        if event.get("reason") in TAKEN and uid not in uids:
            return True
        return event.get("type") == "Warning" and time_of_event(event) >= well.get(uid, "")

    return list(filter(counts, events))


def _unbound_claims(cluster: Cluster, objects: Manifests) -> Manifests:
    """The claims of pods among these objects that have no volume yet."""
    volumes: Manifests = []
    for manifest in objects:
        volumes.extend(manifest.get("spec", {}).get("volumes") or ())
    names = set()
    for volume in volumes:
        if "persistentVolumeClaim" in volume:
            names.add(volume["persistentVolumeClaim"]["claimName"])
    namespace = objects[0]["metadata"]["namespace"]
    unbound = []
    for name in sorted(names):
        claim = cluster.get("PersistentVolumeClaim", namespace, name)
        if claim and claim.get("status", {}).get("phase") != "Bound":
            unbound.append(claim)
    return unbound


def time_of_event(event: Manifest) -> str:
    """When an event was last seen; components of a cluster write it to different fields."""
    series = event.get("series") or {}
    moments = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    for moment in moments:
        if moment:
            return str(moment)
    return event["metadata"].get("creationTimestamp") or ""
