"""A job until it ends, all jobs of a namespace as a table, and the logs of a job's machines."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from textwrap import fill
from typing import Any, NamedTuple

from runner.check.validate import load
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import diagnose, jobs
from runner.parts.openshift.client import Cluster, Manifests, connect
from runner.parts.openshift.errors import TryAgain, pause
from runner.parts.openshift.status import (
    FAILED,
    QUEUED,
    TRAINING,
    JobState,
    ended,
    entry_of,
    first_log,
    is_being_deleted,
    read_state,
    seconds,
)
from runner.recipe.document import flat
from runner.tools import child_process, packaged
from runner.tools.problem import Stop, Tell
from runner.tools.text import filled

# Called with the state, None while the cluster cannot be reached, and the sentences about it.
Show = Callable[[JobState | None, list[str]], None]
COLUMNS: Mapping[str, list[str]] = packaged.toml(__file__, "columns.toml")


class Failed(Stop):
    """A watched job has failed. of_gate: it is a gate's, which is then closed."""

    def __init__(self, sent: jobs.Sent, reasons: list[str], hint: str) -> None:
        super().__init__(f"{sent.kind} `{sent.name}` failed. {' '.join(reasons)}", hint)
        self.of_gate = sent.of_gate


class Gone(Stop):
    """A watched job was removed."""

    def __init__(self, sent: jobs.Sent) -> None:
        super().__init__(
            f"{sent.kind} `{sent.name}` no longer exists; someone deleted it.", "Submit again."
        )


def follow(cluster: Cluster, sent: jobs.Sent, show: Show) -> JobState:
    """Shows a job's state until it ends; returns the last one. Raises Gone if it is removed, Failed
    if it fails, and Stop if one from another version of the recipe takes its place."""
    cluster = cluster.once()
    missing = 0
    while True:
        try:
            job = cluster.get(sent.kind, sent.namespace, sent.name)
            missing = missing + 1 if job is None else 0
            if missing > 2:
                raise Gone(sent)
            if job is not None and not jobs.is_made_from(job, sent):
                raise jobs.sent_meanwhile(job)
            if job is not None and is_being_deleted(job):
                show(None, [f"{jobs.title_of(job)} is being deleted."])
            elif job is not None:
                state = read_state(cluster, job)
                log_of = diagnose.log_reader(cluster, sent.namespace, jobs.container(job))
                reasons = diagnose.reasons(state, log_of)
                if state.phase == FAILED:
                    show(state, [])  # the error itself says why
                    raise _failure(sent, state, reasons, diagnose.failed_machine(state, log_of))
                show(state, reasons)
                if state.ended:
                    return state
        except TryAgain as silence:
            show(None, [f"{silence.text.splitlines()[0]} The job continues; trying again."])
        pause()


def _failure(sent: jobs.Sent, state: JobState, reasons: list[str], machine: int) -> Failed:
    """The error for a job that has failed, with the commands that help. machine: whose log says
    most."""
    command = "recipe logs RECIPE"
    if not sent.of_gate:
        command += f" --stage {sent.stage.name}"
    if machine:
        command += f" --node {machine}"
    hints = []
    if state.pods:
        hints.append(f"The log: `{command}`.")
    if not sent.of_gate and not sent.stage.trains:
        hints.append("Submit again to retry.")
    return Failed(sent, reasons, " ".join(hints))


def describe_state(state: JobState) -> str:
    if state.pods:
        machines = f"{state.running} of {jobs.machines(state.job)} machines run"
    else:
        machines = "no machine yet"
    latest = state.progress.latest
    if state.phase != TRAINING or latest is None:
        if state.ended:
            return state.phase
        return f"{state.phase}, {machines}"
    if "loss" in latest:
        loss = f", loss {latest['loss']:.3f}"
    else:
        loss = ""
    progress = state.progress
    seconds_left = state.progress.seconds_left
    if seconds_left is not None:
        time = f", about {hours_and_minutes(seconds_left)} left"
    else:
        time = ""
    if progress.hangs:
        time = f", no step for {hours_and_minutes(progress.silent or 0)}"
    return f"step {latest['step']} of {latest['steps']}{loss}{time}"


def hours_and_minutes(seconds: float) -> str:
    """A time in hours and minutes."""
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{max(1, minutes)} min"


@dataclass(frozen=True)
class JobRow:
    """A job in the table of a namespace."""

    state: JobState
    why: list[str] = field(default_factory=list)  # its problems
    place: str = ""  # in its queue (`2nd of 5`), or empty
    gpu_hours: float | None = 0.0  # so far; None if unknown

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of COLUMNS; empty if unknown or over."""
        fields = self._fields()
        return tuple(next(filled(forms, fields), "") for forms in COLUMNS.values())

    def _fields(self) -> dict[str, object]:
        """The values for the cells, None if unknown or over."""
        state = self.state
        latest = state.progress.latest or {}
        machines = jobs.machines(state.job)
        fields = {
            **latest,
            "name": state.name,
            "phase": state.phase,
            "machines": machines,
            "planned_tokens": self._planned("tokens-per-second"),
            "planned_rows": self._planned("samples-per-second"),
            # The reserved memory of the first GPU, because that must fit.
            "memory": latest.get("gpu_reserved_gib") or latest.get("gpu_memory_gib"),
            "planned_memory": jobs.planned_figure(state.job, "gpu-memory").removesuffix(" GiB")
            or None,
            "gpu_hours": self.gpu_hours or None,
            "person": jobs.Owner.of(state.job).person,
        }
        if state.phase == QUEUED:
            fields["place"] = self.place or None
        elif not state.ended and state.running < machines:
            fields["running"] = state.running
        seconds_left = state.progress.seconds_left
        if state.phase == TRAINING and seconds_left is not None:
            fields["left"] = hours_and_minutes(seconds_left)
        price = self._planned("price-per-gpu-hour")
        if price is not None and self.gpu_hours:
            fields["money"] = self.gpu_hours * price
        if self.gpu_hours is None:
            fields["unknown"] = "unknown"
        return fields

    def _planned(self, figure: str) -> float | None:
        """A prediction of the plan for this job; None without one."""
        text = jobs.planned_figure(self.state.job, figure)
        if text:
            return float(text)
        return None


def read_job_rows(cluster: Cluster, namespace: str) -> list[JobRow]:
    """Every rendered job of a namespace, the latest first."""
    existing_jobs = jobs.read_all_jobs(cluster, namespace)
    existing_jobs.sort(key=lambda job: str(job["metadata"]["creationTimestamp"]), reverse=True)
    if any(map(jobs.queue_of, existing_jobs)):
        waiting = cluster.list("Workload", namespace, forgiving=True)
    else:
        waiting = []
    job_rows = []
    for job in existing_jobs:
        state = read_state(cluster, job)
        job_rows.append(
            JobRow(state, diagnose.why(cluster, state), queue_place(waiting, job), gpu_hours(state))
        )
    return job_rows


def as_runs(namespace: str) -> Iterator[dict[str, Any]]:
    """The training jobs of a namespace, by default the current one, as rows of `recipe runs`. loss:
    the lowest in the pods' logs; settings: of the recipe file, if it is here and nothing on which
    the result depends has changed."""
    cluster = connect()
    namespace = namespace or cluster.namespace
    for job in jobs.read_all_jobs(cluster, namespace):
        if job["kind"] == "Job":  # it prepares, measures or copies
            continue
        state = read_state(cluster, job)
        meta = job["metadata"]
        owner = jobs.Owner.of(job)
        settings = dict[str, str]()
        events = child_process.events(first_log(cluster, job, state.pods, long=True))
        losses = [loss for event in events if (loss := event.get("validation_loss")) is not None]
        with suppress(Stop):  # the file is gone, or no longer valid
            if owner.host == socket.gethostname():
                recipe = load(owner.file, look=False)[0]
            else:
                recipe = None
            if recipe and recipe.fingerprint == meta["labels"].get("recipe-runner/fingerprint"):
                settings = flat(recipe.settings.plain())
        changed = datetime.fromisoformat(
            _last_change(job) or meta["creationTimestamp"]
        ).astimezone()
        yield {
            "folder": f"{namespace}/{state.name}",
            "recipe": jobs.recipe_of(job),
            "kind": "job",
            "status": state.phase,
            "changed": f"{changed:%Y-%m-%d %H:%M}",
            "loss": min(losses, default=None),
            "gpu hours": gpu_hours(state) or None,
            "gates": "",
            "settings": settings,
        }


def format_table(rows: list[JobRow], width: int | None = None) -> list[str]:
    """The rows under their titles, without empty columns, and below each row its problems. width:
    columns of the screen; each job takes several lines where the table is wider."""
    cells = [(*COLUMNS,), *(row.cells for row in rows)]
    kept = []
    for column in range(len(COLUMNS)):
        if any(line[column] for line in cells[1:]):
            kept.append(column)
    width_of = {}
    for column in kept:
        width_of[column] = max(len(line[column]) for line in cells)
    lines = []
    for row_cells in cells:
        padded = [row_cells[column].ljust(width_of[column]) for column in kept]
        lines.append("  ".join(padded).rstrip())
    output = lines[:1]
    job_lines = lines[1:]
    if width and max(map(len, lines)) > width:
        output = []
        job_lines = []
        for name, state, *other_cells in cells[1:]:
            titled_cells = []
            for title, cell in zip([*COLUMNS][2:], other_cells, strict=True):
                if cell:
                    titled_cells.append(f"{title} {cell}")
            # A fact stays on one line, so its blanks do not break.
            facts = ", ".join(fact.replace(" ", "\xa0") for fact in titled_cells)
            facts = fill(
                facts, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
            )
            job_lines.append(f"{name}: {state}\n{facts}".replace("\xa0", " ").rstrip())
    for row, line in zip(rows, job_lines, strict=True):
        output += [line, *(f"  {reason}" for reason in row.why)]
    return output


def queue_place(workloads: Manifests, job: Manifest) -> str:
    """A job's place among those of this namespace that wait in the same queue of Kueue, by priority
    and age. Jobs of other namespaces in a shared queue are not visible here."""
    own_entry = entry_of(workloads, job)
    if own_entry is None or not _waits(own_entry):
        return ""
    queue = _queue(own_entry)
    line = [entry for entry in workloads if _waits(entry) and _queue(entry) == queue]
    line.sort(
        key=lambda waiting: (
            -int(waiting.get("spec", {}).get("priority") or 0),
            waiting["metadata"]["creationTimestamp"],
        )
    )
    place = ordinal(line.index(own_entry) + 1)
    return f"{place} of {len(line)} here in `{queue or jobs.queue_of(job)}`"


def _queue(workload: Manifest) -> str:
    return str(workload.get("spec", {}).get("queueName") or "")


def _waits(workload: Manifest) -> bool:
    if jobs.has_condition(workload, "QuotaReserved", "Finished"):
        return False
    return workload.get("spec", {}).get("active", True) is not False


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `13th`."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def gpu_hours(state: JobState, now: datetime | None = None) -> float | None:
    """How long a job held GPUs, in hours times GPUs. A waiting or suspended job holds none.

    Each pod counts from its start to its end, or to `now`. Kueue records for how long it had
    admitted the job before a preemption, whose pods are gone; then all GPUs count. So they do for
    an ended job whose pods are gone, from its start to its end, as it or the Jobs that it made
    record them; None if none records a start. Replaced pods that are gone are not counted."""
    held = []
    for pod in (*state.replaced, *state.pods):
        start = pod.get("status", {}).get("startTime")
        held.append(Hold(jobs.gpus_of(pod["spec"]), start, _end_of(pod)))
    if state.ended and not held and not _never_ran(state.job):
        held = _held_without_pods(state)
        if any(hold.gpus and not hold.start for hold in held):
            return None
    queue_status = (state.workload or {}).get("status", {})
    # Kueue's versions before v1beta2 have a typo in the name.
    names = ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")
    before = jobs.gpus(state.job) * max(queue_status.get(name) or 0 for name in names)
    until = now or state.now
    gpu_seconds = sum(hold.gpus * seconds(hold.start, until, hold.end) for hold in held)
    return (before + gpu_seconds) / 3600


class Hold(NamedTuple):
    """GPUs that were held together."""

    gpus: int
    start: str | None  # None if unknown, or if they were not held yet
    end: str | None  # None while they are held


def _never_ran(job: Manifest) -> bool:
    """Whether a job without pods has never had any."""
    conditions = _conditions_by_type(job)
    # A TrainJob has no condition `Running`.
    is_unborn = (
        job["kind"] == "PyTorchJob" and "Created" in conditions and "Running" not in conditions
    )
    return is_unborn or jobs.has_condition(job, "Suspended")


def _held_without_pods(state: JobState) -> list[Hold]:
    """The GPUs of an ended job whose pods are gone, by the times of the job, or of its Jobs."""
    held = []
    # An operator sets the start again after a suspension.
    for maker in state.made_by or [state.job]:
        status = maker.get("status", {})
        start = status.get("startTime")
        if start:
            end = status.get("completionTime") or _last_change(maker)
            held.append(Hold(jobs.gpus(maker), start, end))
    if held:
        return held
    # A TrainJob records only the time when its queue resumed it.
    resumed = _conditions_by_type(state.job).get("Suspended", {}).get("lastTransitionTime")
    return [Hold(jobs.gpus(state.job), resumed, _last_change(state.job))]


def _conditions_by_type(job: Manifest) -> dict[str, Manifest]:
    return {condition["type"]: condition for condition in jobs.conditions_of(job)}


def _last_change(manifest: Manifest) -> str | None:
    return max(
        (
            str(condition.get("lastTransitionTime", ""))
            for condition in jobs.conditions_of(manifest)
        ),
        default=None,
    )


def _end_of(pod: Manifest) -> str | None:
    """When the last container of a pod ended, or the pod was removed from its machine; None while
    it runs."""
    status = pod.get("status", {})
    going = pod["metadata"].get("deletionTimestamp")
    if status.get("phase") not in ("Succeeded", "Failed"):
        return going and str(going)
    terminations = map(jobs.termination_of, jobs.containers_of(pod))
    ends = [str(end["finishedAt"]) for end in terminations if end.get("finishedAt")]
    return max(ends, default=_last_change(pod) or status.get("startTime"))


class NotYet(Stop):
    """A machine of the job has no pod at the moment."""


def pod_of(cluster: Cluster, job: Manifest, node: int) -> Manifest:
    """The pod of machine `node`, 0 the master. Raises Stop without such a machine, NotYet if its
    pod is missing."""
    planned = jobs.machines(job)
    name = jobs.title_of(job)
    if node >= planned:
        if planned > 1:
            hint = f"Its machines are 0 to {planned - 1}."
        else:
            hint = "It has only machine 0."
        raise Stop(f"{name} has no machine {node}.", hint)
    pods = jobs.pods_of(cluster, job)
    for pod in pods:
        if jobs.node_number(pod) == node:
            return pod
    if ended(job) and not pods:
        raise Stop(f"{name} has {ended(job)}.", diagnose.GONE)
    if pods:
        missing = f"no pod for machine {node}"
    else:
        missing = "no pods"
    raise NotYet(
        f"{name} has {missing}, so it has no log.",
        "`recipe status` explains why, if the cause is known. `recipe logs RECIPE -f` waits for it.",
    )


def whole_log(cluster: Cluster, job: Manifest, node: int) -> list[str]:
    """A machine's log, after a restart with that of the previous container before it."""
    pod = pod_of(cluster, job, node)
    space = job["metadata"]["namespace"]
    name = pod["metadata"]["name"]
    container = jobs.container(job)
    restarts = _restarts(pod)
    lines: list[str] = []
    if restarts:
        before = cluster.log(space, name, container, previous=True)
        if before:
            lines += before.splitlines()
            lines.append(f"--- `{name}` was restarted ({diagnose.times(restarts)} so far) ---")
    now = cluster.log(space, name, container)
    # Without a machine a pod's log is empty; while its container waits, there is none.
    has_log = now or (now is not None and jobs.phase_of(pod) != "Pending")
    if not lines and not has_log:
        raise Stop(
            f"`{name}` has not started, and has no log yet.",
            "`recipe status` shows what it waits for. `recipe logs RECIPE -f` waits for it.",
        )
    return lines + (now or "").splitlines()


def _restarts(pod: Manifest) -> int:
    return sum(entry.get("restartCount", 0) for entry in jobs.containers_of(pod))


def follow_log(cluster: Cluster, find: Callable[[], Manifest | None], node: int, say: Tell) -> None:
    """Prints every new line of a machine's log until its job ends, also after restarts and lost
    connections. Raises Stop if the cluster refuses, and if there is no such machine."""
    since = ""
    silent = False
    restarts = 0
    waits = False
    while True:
        try:
            job = find()
            if job is None:
                say("--- the job no longer exists ---")
                return
            over = ended(job) is not None
            pod = pod_of(cluster, job, node)
            for stamp, content in _new_lines(cluster, job, pod, since, _restarts(pod) > restarts):
                since = stamp
                say(content)
            restarts = _restarts(pod)
            silent = False
            if over:
                return
        except TryAgain:
            if not silent:
                say("--- the cluster does not answer; trying again ---")
            silent = True
        except NotYet:
            if over:
                raise
        if not (since or silent or waits):
            say(f"--- waiting for the first line of machine {node} ---")
            waits = True
        pause()


def _new_lines(
    cluster: Cluster, job: Manifest, pod: Manifest, since: str, was_restarted: bool
) -> Iterator[tuple[str, str]]:
    """The lines of a pod's log after the time `since`, each with its own; after a restart, first
    those of the previous container."""
    container = jobs.container(job)
    space = job["metadata"]["namespace"]
    name = pod["metadata"]["name"]
    attempts = [False]
    if was_restarted:
        attempts = [True, False]  # the previous container first
    for previous in attempts:
        text = cluster.log(
            space, name, container, previous=previous, timestamps=True, sinceTime=since
        )
        for line in (text or "").splitlines():
            stamp, _, content = line.partition(" ")
            # A stamp has nanoseconds, so that no line comes twice.
            if stamp > since:
                since = stamp
                yield stamp, content
