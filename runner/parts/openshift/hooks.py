"""What commands of other parts ask of the cluster: why a job stands still, and that a stage passes its gate."""

from collections.abc import Callable

from runner.parts.openshift import promote
from runner.parts.openshift.client import connect
from runner.parts.openshift.commands import cluster_options
from runner.parts.openshift.diagnose import logs_of, reasons
from runner.parts.openshift.follow import line
from runner.parts.openshift.status import look
from runner.parts.openshift.submit_all import wake


def why_on_cluster(path: str, sets: tuple[str, ...], stage: str | None) -> list[str]:
    """How far a recipe's job is, and what stands in its way.

    Raises Stop where the cluster has no job of the recipe, or cannot be asked."""
    plan = cluster_options.open_plan(path, sets)
    cluster = connect()
    state = look(cluster, cluster_options.job_at_work(cluster, plan, stage))
    why = reasons(state, logs_of(cluster, state))
    kind, meta = state.job["kind"], state.job["metadata"]
    return [f"{kind} `{state.name}` in `{meta['namespace']}`: {line(state)}", *(why or ["Nothing stands in its way."])]


def promote_on_cluster(
    path: str, sets: tuple[str, ...], stage: str, by: str, reason: str, tell: Callable[[str], None]
) -> None:
    """Lets a stage of a run on the cluster pass, and wakes what has waited for it."""
    plan = cluster_options.open_plan(path, sets)
    cluster = connect()
    promote.promote(cluster, plan, plan.stage(stage), by, reason, tell)
    wake(cluster, plan, tell)
