"""Logs of a job's machines: the right pod and container, the previous container's first, followed across restarts."""

from collections.abc import Callable
from typing import Any

from runner.parts.openshift.client import Cluster, address
from runner.parts.openshift.diagnose import GONE
from runner.parts.openshift.errors import Refused, TryAgain, pause
from runner.parts.openshift.jobs import container, machines, node_number, pods_of
from runner.parts.openshift.pod_trouble import times
from runner.parts.openshift.status import ended
from runner.tools.problem import Stop


class NotYet(Stop):
    """A machine that the job is for has no pod: not yet, or between two of them."""


def pod_of(cluster: Cluster, job: dict[str, Any], node: int) -> dict[str, Any]:
    """The pod of machine `node`, 0 the master. Raises Stop where the job is for fewer, NotYet where it is not there."""
    meta = job["metadata"]
    if node >= (planned := machines(job)):
        raise Stop(
            f"{job['kind']} `{meta['name']}` has no machine {node}.",
            f"It has 0 to {planned - 1}." if planned > 1 else "It has only machine 0.",
        )
    pods = pods_of(cluster, job)
    for pod in pods:
        if node_number(pod) == node:
            return pod
    if ended(job) and not pods:
        raise Stop(f"{job['kind']} `{meta['name']}` has {ended(job)}.", GONE)
    missing = f"no pod for machine {node}" if pods else "no pods"
    raise NotYet(
        f"{job['kind']} `{meta['name']}` has {missing}, and so no log.",
        "`recipe status` says why, where it is known.",
    )


def whole(cluster: Cluster, job: dict[str, Any], node: int) -> list[str]:
    """A machine's log, that of the previous container first where it was restarted."""
    pod = pod_of(cluster, job, node)
    space, name = job["metadata"]["namespace"], pod["metadata"]["name"]
    lines: list[str] = []
    if _restarts(pod) and (before := cluster.log(space, name, container(job), previous=True)):
        lines += [*before.splitlines(), f"--- `{name}` was started again ({times(_restarts(pod))} so far) ---"]
    now = cluster.log(space, name, container(job))
    # Of a pod without a machine a cluster gives an empty log, of one whose container waits none.
    if not lines and (now is None or (not now and pod.get("status", {}).get("phase", "Pending") == "Pending")):
        raise Stop(f"`{name}` has not started, and has no log yet.", "`recipe status` says what it waits for.")
    return lines + (now or "").splitlines()


def _restarts(pod: dict[str, Any]) -> int:
    return sum(entry.get("restartCount", 0) for entry in pod.get("status", {}).get("containerStatuses") or [])


def follow(cluster: Cluster, find: Callable[[], dict[str, Any] | None], node: int, say: Callable[[str], None]) -> None:
    """Says every new line of a machine's log until its job ends; goes on after restarts and lost connections.

    Raises Stop where the cluster refuses, and where there is no such machine: waiting would change neither.
    """
    since, silent, restarts = "", False, 0
    while True:
        try:
            job = find()
            if job is None:
                say("--- the job is not there any more ---")
                return
            over = ended(job) is not None
            pod = pod_of(cluster, job, node)
            parts = (True, False) if _restarts(pod) > restarts else (False,)
            for previous in parts:
                for stamp, text in _since(cluster, job, pod["metadata"]["name"], since, previous):
                    since = stamp
                    say(text)
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
        pause()


def _since(cluster: Cluster, job: dict[str, Any], pod: str, since: str, previous: bool) -> list[tuple[str, str]]:
    """Lines after the time stamp `since`, each with its own; a stamp has nanoseconds, so no line comes twice.

    previous: of the container before the last restart.
    """
    space = job["metadata"]["namespace"]
    query = [("container", container(job)), ("timestamps", "true")] + ([("sinceTime", since)] if since else [])
    query += [("previous", "true")] if previous else []
    try:
        response = cluster.request("GET", f"{address('Pod', space, pod)}/log", query)
    except Refused as refused:
        if refused.status in (400, 404):
            return []
        raise refused.stop("Pod", space, pod) from None
    stamped = [line.partition(" ") for line in response.data.decode(errors="replace").splitlines()]
    return [(stamp, text) for stamp, _, text in stamped if stamp > since]
