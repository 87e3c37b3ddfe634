"""A recipe's objects on the cluster: what to send, in which order, and how to find them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from runner.names import label
from runner.plan import Plan, Stage
from runner.targets import TARGETS, default, gate, kubernetes, preparing

# The training jobs that a target makes, and the labels that its operator gives a job's pods, first the first one's.
KIND = {"pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}
POD_LABEL = {
    "PyTorchJob": "training.kubeflow.org/job-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    # The short one is set by every version; the one with a prefix since Kubernetes 1.27.
    "Job": "job-name",
}
CONTAINER = {"PyTorchJob": "pytorch", "TrainJob": "node"}
PART = "recipe-runner/part"
# The pods that only open a claim, and have one container of that name.
FETCH, PROMOTE = "fetch", "promote"
# The containers that do a pod's work, whoever else runs in it.
WORKING = (*CONTAINER.values(), preparing.PART, gate.PART, FETCH, PROMOTE)


@dataclass(frozen=True)
class Sent:
    """What a stage, or the gate after it, puts on the cluster.

    plan: of this stage alone; support: claims and config maps, in order; prepare: the Job that comes first, or None; job: the training
    job, or the gate's.
    """

    plan: Plan
    stage: Stage
    support: tuple[dict[str, Any], ...]
    prepare: dict[str, Any] | None
    job: dict[str, Any]

    @property
    def namespace(self) -> str:
        return self.job["metadata"]["namespace"]

    @property
    def name(self) -> str:
        return self.job["metadata"]["name"]

    @property
    def kind(self) -> str:
        return self.job["kind"]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that the same work could have been sent as."""
        return ("Job",) if self.kind == "Job" else tuple(KIND.values())


def sent(plan: Plan, stage: Stage, target: str | None = None, of_gate: bool = False) -> Sent:
    """The objects of a stage, or of the gate after it, exactly those that `recipe render` writes."""
    target = target or default(plan.site)[0]
    one = plan.only(stage)
    manifests = {
        file.path: [document for document in yaml.safe_load_all(file.text) if _is_manifest(document)]
        for file in TARGETS[target](one)
    }
    prepare = manifests.get("prepare/job.yaml")
    support = [*manifests.get("claims.yaml", []), *manifests.get("prepare/configmap.yaml", [])]
    return Sent(
        plan=one,
        stage=stage,
        support=(*support, *manifests["configmap.yaml"]),
        prepare=prepare[0] if prepare and not of_gate else None,
        job=manifests[gate.FILE if of_gate else f"{target}.yaml"][0],
    )


def _is_manifest(document: Any) -> bool:
    return isinstance(document, dict) and "kind" in document and "metadata" in document


def names(plan: Plan, stage: Stage) -> Iterator[tuple[str, str]]:
    """Kind and name of every object that makes something run for a stage, under any target."""
    one = plan.only(stage)
    for kind in KIND.values():
        yield kind, kubernetes.job_name(one)
    if preparing.wanted(one, stage):
        yield "Job", preparing.job_name(one, stage)
    if stage.gates:
        yield "Job", gate.job_name(one)


def prepares(cluster: Any, one: Plan) -> list[dict[str, Any]]:
    """The prepare Jobs that the cluster has, whatever the recipe said when they were sent; one: the plan of one stage."""
    labels = {"app.kubernetes.io/name": label(one.name), PART: preparing.PART}
    # Items of a list do not say what they are.
    return [{"kind": "Job", **job} for job in cluster.list("Job", one.site["namespace"], labels)]


def container(job: dict[str, Any]) -> str:
    """The name of the container that does a job's work."""
    kind = job["kind"]
    return CONTAINER[kind] if kind in CONTAINER else (job["metadata"].get("labels") or {}).get(PART, preparing.PART)


def key(job: dict[str, Any]) -> str | None:
    """The key of what a job was made from, where it is of one stage of several."""
    return (job["metadata"].get("annotations") or {}).get(kubernetes.KEY)


def pods_of(cluster: Any, kind: str, namespace: str, name: str) -> list[dict[str, Any]]:
    """A job's pods, the first process's first."""
    found = cluster.list("Pod", namespace, {POD_LABEL[kind]: name})
    return sorted(found, key=lambda pod: node_number(pod))


def machines(job: dict[str, Any]) -> int:
    """How many machines a job is for, whether they have pods yet or not."""
    spec = job["spec"]
    if job["kind"] == "PyTorchJob":
        return sum(replica.get("replicas", 1) for replica in spec["pytorchReplicaSpecs"].values())
    return spec.get("trainer", {}).get("numNodes", 1)


def node_number(pod: dict[str, Any]) -> int:
    """A pod's place in its job: 0 for the master, as the operators number them."""
    labels = pod["metadata"].get("labels", {})
    if labels.get("training.kubeflow.org/replica-type") == "worker":
        return int(labels.get("training.kubeflow.org/replica-index", 0)) + 1
    index = labels.get("batch.kubernetes.io/job-completion-index", "0")
    return int(index) if index.isdigit() else 0
