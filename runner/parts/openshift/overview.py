"""Overview: all jobs of a namespace as one table, each with how far it is, what was planned for it, and what it has cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from runner.parts.openshift.client import Cluster, Manifest, Manifests
from runner.parts.openshift.diagnose import logs_of, reasons
from runner.parts.openshift.follow import rest
from runner.parts.openshift.jobs import everyone, foreseen, gpus, machines, queue_of
from runner.parts.openshift.pod_trouble import entry_of
from runner.parts.openshift.status import QUEUED, TRAINING, State, look

TITLES = ("job", "state", "step", "loss", "speed", "GPU memory", "left", "spent")


@dataclass(frozen=True)
class Row:
    """A job: its state, what stands in its way, its place in its queue (`2nd of 5`, empty where it waits in none), and the GPU
    hours that it has held so far."""

    state: State
    why: list[str] = field(default_factory=list)
    place: str = ""
    gpu_hours: float = 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """As TITLES has them; empty what nobody knows, or what is over."""
        state, latest = self.state, self.state.progress.latest or {}
        at_work = state.phase == TRAINING
        left = state.progress.seconds_left if at_work else None
        return (
            state.name,
            self._phase,
            f"{latest['step']} of {latest['steps']}" if latest else "",
            f"{latest['loss']:.3f}" if latest.get("loss") is not None else "",
            self._speed(latest),
            self._memory(latest),
            rest(left) if left is not None else "",
            self._spent,
        )

    @property
    def _phase(self) -> str:
        state = self.state
        if state.phase == QUEUED:
            return f"{state.phase}{f', {self.place}' if self.place else ''}"
        running = sum(pod.get("status", {}).get("phase") == "Running" for pod in state.pods)
        missing = not state.ended and running < machines(state.job)
        return state.phase + (f", {running} of {machines(state.job)} machines" if missing else "")

    def _speed(self, latest: Mapping[str, Any]) -> str:
        for what, unit in (("tokens_per_second", "tokens/s"), ("samples_per_second", "rows/s")):
            if (real := latest.get(what)) is not None:
                plan = foreseen(self.state.job, what.replace("_", "-"))
                return f"{real:,.0f} {unit}" + (f" (plan {float(plan):,.0f})" if plan else "")
        return ""

    def _memory(self, latest: Mapping[str, Any]) -> str:
        """What the allocator has taken of the first GPU, because that, and not what lies in it, must fit."""
        real = latest.get("gpu_reserved_gib") or latest.get("gpu_memory_gib")
        if real is None:
            return ""
        plan = foreseen(self.state.job, "gpu-memory")
        return f"{real:.1f} GiB" + (f" (plan {plan.removesuffix(' GiB')})" if plan else "")

    @property
    def _spent(self) -> str:
        if not self.gpu_hours:
            return ""
        price = foreseen(self.state.job, "price-per-gpu-hour")
        return f"{self.gpu_hours * float(price):,.2f}" if price else f"{self.gpu_hours:.1f} GPU h"


def rows(cluster: Cluster, namespace: str) -> list[Row]:
    """Every job of a namespace that recipe-runner has rendered, the latest first."""
    jobs = sorted(everyone(cluster, namespace), key=lambda job: str(job["metadata"]["creationTimestamp"]), reverse=True)
    waiting = cluster.list("Workload", namespace, forgiving=True) if any(map(queue_of, jobs)) else []
    found = []
    for job in jobs:
        state = look(cluster, job)
        found.append(Row(state, reasons(state, logs_of(cluster, state)), place(waiting, job), gpu_hours(state)))
    return found


def table(rows: list[Row]) -> list[str]:
    """The rows under their titles, without columns that nobody fills, and below each what stands in its way."""
    cells = [TITLES, *(row.cells for row in rows)]
    kept = [column for column in range(len(TITLES)) if any(line[column] for line in cells[1:])]
    width = {column: max(len(line[column]) for line in cells) for column in kept}
    lines = ["  ".join(f"{line[column]:<{width[column]}}" for column in kept).rstrip() for line in cells]
    said = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        said += [line, *(f"  {reason}" for reason in row.why)]
    return said


def place(workloads: Manifests, job: Manifest) -> str:
    """A job's place among those of this namespace that wait in the same queue of Kueue: it takes the most important first, and
    of those the oldest. What other namespaces wait for in a shared queue, nobody here may see."""
    own = entry_of(workloads, job)
    if own is None or not _waits(own):
        return ""
    line = sorted(
        (entry for entry in workloads if _waits(entry) and _queue(entry) == _queue(own)),
        key=lambda entry: (-int(entry.get("spec", {}).get("priority") or 0), entry["metadata"]["creationTimestamp"]),
    )
    return f"{ordinal(line.index(own) + 1)} of {len(line)} here in `{_queue(own) or queue_of(job)}`"


def _queue(workload: Manifest) -> str:
    return str(workload.get("spec", {}).get("queueName") or "")


def _waits(workload: Manifest) -> bool:
    conditions = workload.get("status", {}).get("conditions") or []
    over = any(each["type"] in ("QuotaReserved", "Finished") and each["status"] == "True" for each in conditions)
    return not over and workload.get("spec", {}).get("active", True) is not False


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `13th`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"


def gpu_hours(state: State, now: datetime | None = None) -> float:
    """How long GPUs were held: by each pod that is there, from its start to its end; by a job whose pods are gone, all of them
    from its start to its end. Pods that others have taken the place of and that are gone are not counted."""
    now = now or datetime.now(UTC)
    pods = [*state.replaced, *state.pods]
    if not pods:
        status = state.job.get("status", {})
        end = status.get("completionTime") or (_ended(state) if state.ended else None)
        return gpus(state.job) * _hours(status.get("startTime"), end, now) if end or not state.ended else 0.0
    return sum(_gpus_of(pod) * _hours(pod.get("status", {}).get("startTime"), _end_of(pod), now) for pod in pods)


def _ended(state: State) -> str | None:
    """When the last condition of a job came about, which is its end."""
    conditions = state.job.get("status", {}).get("conditions") or []
    return max((each.get("lastTransitionTime") or "" for each in conditions), default="") or None


def _gpus_of(pod: Manifest) -> int:
    limits = [each.get("resources", {}).get("limits", {}) for each in pod["spec"].get("containers", ())]
    return sum(int(each.get("nvidia.com/gpu", 0)) for each in limits)


def _end_of(pod: Manifest) -> str | None:
    """When the last container of a pod has ended; None while it runs."""
    status = pod.get("status", {})
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    entries = [entry.get("state", {}).get("terminated") or {} for entry in status.get("containerStatuses") or []]
    return max((str(end["finishedAt"]) for end in entries if end.get("finishedAt")), default=status.get("startTime"))


def _hours(start: str | None, end: str | None, now: datetime) -> float:
    if not start:
        return 0.0
    last = _time(end) if end else now
    return max(0.0, (last - _time(start)).total_seconds() / 3600)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
