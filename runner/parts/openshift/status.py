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
QUEUED, SUSPENDED = "queued", "suspended"
WAITING = "waiting for machines"
PULLING = "pulling image and code"
AGAIN = "restarting after a failure"
PREPARING = "preparing model and data"
STARTING, TRAINING, MEASURING = "starting", "training", "measuring"
WALKING = "sending one stage after the other"
FINISHED, FAILED = "finished", "failed"
ENDED = (FINISHED, FAILED)
TAIL = 400  # the last lines of a log that are searched for the latest step

_CONDITION_ENDS = {"Succeeded": FINISHED, "Complete": FINISHED, "Failed": FAILED}


@dataclass(frozen=True)
class JobState:
    """phase: one of the above; job, pods, events, workload: the cluster's objects; made_by: the
    owners of its pods; replaced: pods that others have replaced; unread: why the progress is
    unknown; now: by the cluster's clock."""

    phase: str
    job: Manifest
    pods: Manifests
    events: Manifests = field(default_factory=list)
    workload: Manifest | None = None
    progress: "JobProgress" = field(default_factory=lambda: JobProgress())
    replaced: Manifests = field(default_factory=list)
    unread: str = ""
    made_by: Manifests = field(default_factory=list)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def running(self) -> int:
        """How many of its machines run; one whose container waits for its restart does not."""
        up = [pod for pod in self.pods if jobs.phase_of(pod) == "Running"]
        idle = {"waiting", "terminated"}
        return len(up) - sum(
            any(idle & set(entry.get("state", {})) for entry in _working(pod)) for pod in up
        )


def look(cluster: Cluster, job: Manifest) -> JobState:
    made_by = jobs.makers(cluster, job)
    attempts = jobs.attempts_of(cluster, job, made_by)
    pods = jobs.latest(attempts)
    if jobs.queue_of(job):
        entries = cluster.list("Workload", job["metadata"]["namespace"], forgiving=True)
    else:
        entries = []
    workload = entry_of(entries, job)
    phase = _phase(job, pods, workload)
    job_progress = JobProgress()
    unread = ""
    if phase == TRAINING:
        try:
            # A machine that was replaced or restarted takes all of them back to the last
            # checkpoint.
            working = [entry for pod in pods for entry in _working(pod)]
            starts = [
                entry.get("state", {}).get("running", {}).get("startedAt") for entry in working
            ]
            started = max(
                (datetime.fromisoformat(start) for start in starts if start), default=None
            )
            job_progress = progress(
                first_log(cluster, job, pods, stamped=True), started, cluster.now()
            )
            again = job_progress.again or any(entry.get("restartCount") for entry in working)
            if not job_progress.begins:
                phase = TRAINING
            elif again:
                phase = AGAIN
            else:
                phase = STARTING
        except TryAgain as silence:
            # The machine of one pod may not answer while the rest of the cluster does.
            unread = silence.text.splitlines()[0]
    names = "|".join(re.escape(maker["metadata"]["name"]) for maker in made_by)
    called = re.compile(rf"({names})-((master|worker)-\d+|(\d+-)?[a-z0-9]{{5}})")

    def former(event: Manifest) -> bool:
        """Whether an event is about a pod of the job that no longer exists."""
        of = event["involvedObject"]
        return (
            event.get("reason") in TAKEN
            and of.get("kind") == "Pod"
            and bool(called.fullmatch(of.get("name", "")))
        )

    if phase == FINISHED:
        events = []
    else:
        events = events_about(cluster, [*made_by, *attempts], former)
    replaced = [pod for pod in attempts if pod not in pods]
    return JobState(
        phase, job, pods, events, workload, job_progress, replaced, unread, made_by, cluster.now()
    )


def ended(job: Manifest) -> str | None:
    """`finished` or `failed`; None while a job is under way."""
    for condition in reversed(jobs.conditions_of(job)):
        if condition["status"] == "True" and condition["type"] in _CONDITION_ENDS:
            return _CONDITION_ENDS[condition["type"]]
    return None


def going(manifest: Manifest) -> bool:
    """Whether an object is being deleted and only waits for its dependents."""
    return "deletionTimestamp" in manifest["metadata"]


def _phase(job: Manifest, pods: Manifests, workload: Manifest | None) -> str:
    end = ended(job)
    if end:
        return end
    suspended = job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend")
    if suspended or (workload is not None and not jobs.holds(workload, "Admitted")):
        if workload or jobs.queue_of(job):
            return QUEUED
        return SUSPENDED
    phases = [jobs.phase_of(pod) for pod in pods]
    states = [entry.get("state", {}) for pod in pods for entry in jobs.containers_of(pod)]
    died = any((state.get("terminated") or {}).get("exitCode") for state in states)
    waits_for = {state.get("waiting", {}).get("reason") for state in states}
    if len(pods) < jobs.machines(job) or "Pending" in phases:
        before = [entry for pod in pods for entry in jobs.containers_of(pod, before=True)]
        clones = any(
            entry["name"] == podspec.CLONER and "running" in entry.get("state", {})
            for entry in before
        )
        if "ContainerCreating" in waits_for or clones:
            return PULLING
        return WAITING
    if died or "Failed" in phases or "CrashLoopBackOff" in waits_for:
        return AGAIN
    if job["kind"] != "Job":
        return TRAINING
    return {batch.GATE: MEASURING, jobs.DRIVER: WALKING}.get(jobs.container(job), PREPARING)


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


class JobProgress(NamedTuple):
    """The progress of training. latest: the last event, a step or the beginning, None before that;
    pace: seconds a step; silent: seconds since the last step; both None if unknown. begins: the
    process has not reached training yet; again: the log has steps from before the last start of a
    machine."""

    latest: Mapping[str, Any] | None = None
    pace: float | None = None
    silent: float | None = None
    begins: bool = False
    again: bool = False

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
    first_pod = next((pod["metadata"]["name"] for pod in pods if jobs.node_number(pod) == 0), None)
    space = job["metadata"]["namespace"]
    name = jobs.container(job)
    tail = 10 * TAIL if long else TAIL
    if first_pod:
        return cluster.log(space, first_pod, name, tailLines=tail, timestamps=stamped) or ""
    return ""


def early_stop(cluster: Cluster, job: Manifest) -> EarlyStop | None:
    """The early end of a finished job's training, from the log of its first machine; None if the
    log shows none."""
    text = first_log(cluster, job, jobs.pods_of(cluster, job), long=True)
    stop_events = [
        event for event in child_process.events(text) if event.get("event") == EARLY_STOP_EVENT
    ]
    if stop_events:
        return EarlyStop.of(stop_events[-1])
    return None


def progress(text: str, started: datetime | None, now: datetime) -> JobProgress:
    """The progress of training, from the end of a log with timestamps. The pace is that between its
    first and last step, else since all machines have started; older lines do not count."""
    all_events = [
        (_time(line), event) for line in text.splitlines() for event in child_process.events(line)
    ]
    before = [
        (moment, event) for moment, event in all_events if event.get("event") in ("begin", "step")
    ]
    current_events = [
        (moment, event) for moment, event in before if not (moment and started and moment < started)
    ]
    if not current_events:
        # Without steps from before, the end of a long log does not show whether training has begun.
        return JobProgress(begins=bool(before) or text.count("\n") < TAIL, again=bool(before))
    begin = max(
        (place for place, (_, event) in enumerate(current_events) if event["event"] == "begin"),
        default=0,
    )
    current_events = current_events[begin:]
    (since, first_event), (moment, latest) = current_events[0], current_events[-1]
    if first_event["event"] == "begin" and len(current_events) > 2:
        # The first step also compiles kernels and fills caches.
        since, first_event = current_events[1]
    steps = latest["step"] - first_event["step"]
    if moment and since:
        passed = (moment - since).total_seconds()
    else:
        passed = 0.0
    if steps <= 0 or passed <= 0:
        steps = latest["step"] - current_events[0][1]["step"]
        if started:
            passed = (now - started).total_seconds()
        else:
            passed = 0.0
    if steps > 0 and passed > 0:
        pace = passed / steps
    else:
        pace = None
    if moment and latest["event"] == "step":
        silent = max(0.0, (now - moment).total_seconds())
    else:
        silent = None
    return JobProgress(latest, pace, silent)


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
    volumes = [
        volume for manifest in objects for volume in manifest.get("spec", {}).get("volumes") or ()
    ]
    names = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }
    claims = [
        cluster.get("PersistentVolumeClaim", meta["namespace"], name) for name in sorted(names)
    ]
    unbound = [
        claim for claim in claims if claim and claim.get("status", {}).get("phase") != "Bound"
    ]
    uids = {manifest["metadata"]["uid"] for manifest in (*objects, *unbound)}
    events = sorted(cluster.list("Event", meta["namespace"], forgiving=True), key=when)
    # The last success of each object.
    well = {
        event["involvedObject"].get("uid", ""): when(event)
        for event in events
        if event.get("type") == "Normal"
    }

    def counts(event: Manifest) -> bool:
        of = event["involvedObject"]
        uid = of.get("uid", "")
        if uid not in uids and not (when(event) >= meta["creationTimestamp"] and by_name(event)):
            return False
        if of.get("kind") == "PersistentVolumeClaim" or (
            event.get("reason") in TAKEN and uid not in uids
        ):
            return True
        return event.get("type") == "Warning" and when(event) >= well.get(uid, "")

    return list(filter(counts, events))


def when(event: Manifest) -> str:
    """When an event was last seen; components of a cluster write it to different fields."""
    series = event.get("series") or {}
    moments = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next(
        (moment for moment in moments if moment), event["metadata"].get("creationTimestamp") or ""
    )
