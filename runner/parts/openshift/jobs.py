"""A recipe's objects on the cluster: what to send, in which order, and how to find it later."""

import socket
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, cast

import yaml

from runner.parts.contract import JobTarget
from runner.parts.jobs import batch, kubernetes
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import errors
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import in_time
from runner.plan import Plan, Stage
from runner.scenarios import target as target_of
from runner.tools.problem import Stop, Tell

KIND = {"pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}  # by the target
# The label with a job's name on its pods, by kind.
POD_LABEL = {
    "PyTorchJob": "training.kubeflow.org/job-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    # The short one is set by every version; the one with a prefix since Kubernetes 1.27.
    "Job": "job-name",
}
CONTAINER = {"PyTorchJob": "pytorch", "TrainJob": "node"}
PART = "recipe-runner/part"
FILES = "recipe-runner/files"  # one hash for the data files that were sent before a job
CONTENT = "recipe-runner/content"
# Who sent a job, from which machine and recipe file. Added at sending, because rendered files are
# the same everywhere.
OWNER = ("recipe-runner/sent-by", "recipe-runner/sent-from-host", "recipe-runner/sent-from-file")
DRIVER = "driver"  # the part of the driver's Job
# The pods of `runner.parts.openshift.helper_pod`, each with one container of that name.
FETCH = "fetch"
SEND = "send"
PROMOTE = "promote"
LOOK = "look"
# The containers that do a pod's work, among all in it.
WORKING = (*CONTAINER.values(), batch.PREPARE, batch.GATE, DRIVER, FETCH, SEND, PROMOTE, LOOK)

# Asks the user, given a fact, the action (`stop it`) and the other person whose job it is, or
# empty; True for yes. Raises Stop without a terminal and without an option that answers.
Confirm = Callable[[str, str, str], bool]


class Owner(NamedTuple):
    """Who sent a job; all fields are empty if that is not recorded."""

    person: str = ""  # the user's name on the cluster
    host: str = ""  # the machine
    file: str = ""  # the recipe file

    @classmethod
    def of(cls, job: Manifest) -> "Owner":
        return cls(*(annotation(job, name) for name in OWNER))

    @classmethod
    def here(cls, path: str, person: str = "") -> "Owner":
        """The user of this command, with the recipe file `path`."""
        return cls(person, socket.gethostname(), str(Path(path).resolve()))

    def signed(self, job: Manifest) -> Manifest:
        """A job, or a server, with its owner's annotations."""
        if self.person:
            marks = dict(zip(OWNER, self, strict=True))
        else:
            marks = {}
        meta = job["metadata"]
        return {**job, "metadata": {**meta, "annotations": {**meta["annotations"], **marks}}}

    def __str__(self) -> str:
        if not self.person:
            return "Who sent it is not recorded: an older version, `oc apply` or Kubeflow Pipelines sent it."
        return f"{self.person} sent it from {self.host}, with the recipe file `{self.file}`."


class Sent(NamedTuple):
    """The objects of a stage, or of the gate after it."""

    plan: Plan  # of this stage alone
    stage: Stage
    support: tuple[Manifest, ...]  # claims, config maps and network policies, in order
    job: Manifest  # the stage's own, or the gate's

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def kind(self) -> str:
        return str(self.job["kind"])

    @property
    def of_gate(self) -> bool:
        return container(self.job) == batch.GATE


def render_job(
    plan: Plan, stage: Stage, target: str | None = None, of_gate: bool = False, files_key: str = ""
) -> Sent:
    """The objects of a stage, or of the gate after it, as `recipe render` writes them, with the key
    of data files."""
    target = target or kubernetes.default(plan.site.version)
    stage_plan = plan.only(stage)
    job_target = cast(JobTarget, target_of(target))
    texts = {file.path: file.text for file in job_target.job(stage_plan, stage)}
    if of_gate:
        job_file = batch.GATE_FILE
    elif stage.trains:
        job_file = f"{target}.yaml"
    else:
        job_file = batch.PREPARE_FILE
    claims, config, policy, (job, *_) = (
        [document for document in yaml.safe_load_all(texts.get(file, "")) if document]
        for file in (
            kubernetes.CLAIMS_FILE,
            kubernetes.CONFIG_FILE,
            kubernetes.POLICY_FILE,
            job_file,
        )
    )
    if files_key:
        job["metadata"]["annotations"][FILES] = files_key
    return Sent(stage_plan, stage, (*claims, *config, *policy), job)


def read_jobs(cluster: Cluster, plan: Plan) -> Manifests:
    """Every rendered job of the plan's scenario, for any target, also of other recipes: one request
    a kind."""
    scenario = "recipe-runner/scenario"
    return read_all_jobs(
        cluster,
        plan.site.namespace,
        {scenario: kubernetes.labels(plan, plan.stages[0])[scenario]},
    )


def read_all_jobs(
    cluster: Cluster, namespace: str, labels: dict[str, str] | None = None
) -> Manifests:
    """Every rendered job of a namespace, with these labels. Raises Stop if there is no such
    namespace."""
    labels = {"app.kubernetes.io/managed-by": "recipe-runner"} | (labels or {})
    # The items of a list have no kind.
    existing_jobs: Manifests = []
    for job_kind in POD_LABEL:
        for job in cluster.list(job_kind, namespace, labels):
            existing_jobs.append({"kind": job_kind, **job})
    if not existing_jobs:
        cluster.require_namespace(namespace)
    return existing_jobs


def read_stage_jobs(cluster: Cluster, plan: Plan, stage: Stage, of_gate: bool = False) -> Manifests:
    """The jobs with the name of a stage's job, or of its gate's, for any target, also those that
    others created."""
    kinds, name = _kinds_and_name(plan, stage, of_gate)
    return [job for job_kind in kinds if (job := cluster.get(job_kind, plan.site.namespace, name))]


def find_stage_job(
    existing_jobs: Manifests, plan: Plan, stage: Stage, of_gate: bool = False
) -> Manifest | None:
    """The job of a stage, or of the gate after it, among those of `read_jobs`."""
    kinds, name = _kinds_and_name(plan, stage, of_gate)
    for job in existing_jobs:
        if job["kind"] in kinds and job["metadata"]["name"] == name:
            return job
    return None


def _kinds_and_name(plan: Plan, stage: Stage, of_gate: bool) -> tuple[tuple[str, ...], str]:
    """The kinds that a stage's job, or its gate's, may have, and its name."""
    stage_plan = plan.only(stage)
    if of_gate:
        return ("Job",), batch.gate_name(stage_plan)
    kinds: tuple[str, ...] = ("Job",)
    if stage.trains:
        kinds = tuple(KIND.values())
    return kinds, kubernetes.job_name(stage_plan)


def config_of(manifest: object) -> str:
    """The config map that a pod, or a job's pods, read; empty if they read none."""
    if isinstance(manifest, dict):
        if manifest.get("name") == "config" and "configMap" in manifest:
            return str(manifest["configMap"]["name"])
        manifest = list(manifest.values())
    if isinstance(manifest, list):
        return next(filter(None, map(config_of, manifest)), "")
    return ""


def config_maps(cluster: Cluster, plan: Plan, stage: Stage) -> dict[str, Manifest]:
    """The config maps of all versions of a stage, by name; none if this person may not read them.
    plan: of that stage."""
    labels = kubernetes.labels(plan, stage)
    del labels["recipe-runner/fingerprint"]  # it differs from version to version
    existing_maps = cluster.list("ConfigMap", plan.site.namespace, labels, forgiving=True)
    own_maps = {}
    for config_map in existing_maps:
        name = config_map["metadata"]["name"]
        if kubernetes.is_config_map_of(name, plan):
            own_maps[name] = config_map
    return own_maps


def container(job: Manifest) -> str:
    """The name of the container that does a job's work."""
    job_kind = job["kind"]
    if job_kind in CONTAINER:
        return CONTAINER[job_kind]
    labels: dict[str, str] = job["metadata"].get("labels") or {}
    return labels.get(PART, batch.PREPARE)


def annotation(job: Manifest, name: str) -> str:
    return str((job["metadata"].get("annotations") or {}).get(name, ""))


def sender_note(job: Manifest | None) -> str:
    """Who sent a job, as the end of a line about it; empty if unknown."""
    person = Owner.of(job).person if job else ""
    if person:
        return f" (sent by {person})"
    return ""


def conditions_of(manifest: Manifest) -> Manifests:
    return list(manifest.get("status", {}).get("conditions") or [])


def has_condition(manifest: Manifest, *types: str) -> bool:
    """Whether one of these conditions of an object is true."""
    return any(
        condition["type"] in types and condition["status"] == "True"
        for condition in conditions_of(manifest)
    )


def containers_of(pod: Manifest, before: bool = False) -> Manifests:
    """The status of a pod's containers. before: of its init containers."""
    status = pod.get("status", {})
    if before:
        return list(status.get("initContainerStatuses") or [])
    return list(status.get("containerStatuses") or [])


def termination_of(entry: Manifest) -> Manifest:
    """How a container ended, by its status; empty if it has not."""
    return dict(entry.get("state", {}).get("terminated") or {})


def phase_of(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def queue_of(manifest: Manifest) -> str:
    """The queue of Kueue that an object names; empty if it names none."""
    return str((manifest["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name", ""))


def planned_figure(job: Manifest, figure: str) -> str:
    """A prediction of the plan for a job (`runner.parts.jobs.kubernetes.job`), memory with its
    unit, or empty."""
    return annotation(job, f"{kubernetes.PLANNED}{figure}")


def recipe_of(job: Manifest) -> str:
    """The recipe, or the stage of one, that a job belongs to; empty if recipe-runner did not make
    it."""
    return annotation(job, "recipe-runner/recipe")


def uses_other_files(job: Manifest, files_key: str) -> bool:
    """Whether a job was made from other data files than those of a key (`transfer.Files.key`): the
    hash of the files, and the versions at addresses. What this machine cannot read does not
    count."""
    pairs = zip_longest(files_key.split("+"), annotation(job, FILES).split("+"), fillvalue="")
    return any(now and now != before for now, before in pairs)


def is_made_from(job: Manifest, sent: Sent) -> bool:
    """Whether a job of the cluster is made from the recipe and the files of the one in `sent`."""
    if annotation(sent.job, kubernetes.KEY):
        key = kubernetes.KEY
    else:
        key = CONTENT
    same_recipe = annotation(job, key) == annotation(sent.job, key)
    return same_recipe and not uses_other_files(job, annotation(sent.job, FILES))


def sent_meanwhile(job: Manifest) -> Stop:
    """The end of a command that would otherwise replace a job that was sent after the command had
    begun."""
    owner = Owner.of(job)
    who = f" {owner}" if owner.person else ""
    return Stop(
        f"Another {title_of(job)}, made from another version of this recipe, was sent meanwhile.{who}",
        "`recipe status RECIPE` shows it; submit again to replace it.",
    )


def require_own(existing_object: Manifest, recipe: str) -> Manifest:
    """The same object. Raises Stop if it does not belong to that recipe, or stage of one."""
    owner = recipe_of(existing_object)
    if owner == recipe:
        return existing_object
    if owner:
        whose = f"the recipe `{owner}`"
    else:
        whose = "someone who did not use recipe-runner"
    object_kind = existing_object["kind"]
    meta = existing_object["metadata"]
    raise Stop(
        f"The name `{meta['name']}` is in use: {whose} has a {object_kind} with that name in `{meta['namespace']}`.",
        "Choose another name with `openshift.job_name`.",
    )


def pod_owners(cluster: Cluster, job: Manifest) -> Manifests:
    """The owners of a job's pods: the job itself, and for a TrainJob the plain Jobs of its JobSet,
    which has its name. Jobs of an earlier TrainJob of that name are older than this one."""
    if job["kind"] != "TrainJob":
        return [job]
    meta = job["metadata"]
    jobs_of_set = cluster.list("Job", meta["namespace"], {POD_LABEL["TrainJob"]: meta["name"]})
    owners = [job]
    for job_of_set in jobs_of_set:
        if job_of_set["metadata"]["creationTimestamp"] >= meta["creationTimestamp"]:
            owners.append({"kind": "Job", **job_of_set})
    return owners


def all_pods_of(cluster: Cluster, job: Manifest, made_by: Manifests) -> Manifests:
    """All pods that `made_by` own, by machine and then by age, the latest last: a plain Job keeps
    failed pods."""
    uids = {maker["metadata"]["uid"] for maker in made_by}
    meta = job["metadata"]
    label = POD_LABEL[job["kind"]]
    own_pods = []
    for pod in cluster.list("Pod", meta["namespace"], {label: meta["name"]}):
        owners = pod["metadata"].get("ownerReferences") or ()
        if uids.intersection(owner["uid"] for owner in owners):
            own_pods.append(pod)
    return sorted(
        own_pods, key=lambda pod: (node_number(pod), pod["metadata"].get("creationTimestamp", ""))
    )


def pods_of(cluster: Cluster, job: Manifest) -> Manifests:
    """A job's pods, the latest of each machine, the first machine's first."""
    return latest_pods(all_pods_of(cluster, job, pod_owners(cluster, job)))


def latest_pods(attempts: Manifests) -> Manifests:
    """The latest pod of each machine, of those from `all_pods_of`."""
    return list({node_number(pod): pod for pod in attempts}.values())


def machines(job: Manifest) -> int:
    return sum(count for count, _ in _pod_groups(job))


def gpus(job: Manifest) -> int:
    """How many GPUs a job needs, on all its machines."""
    return sum(count * gpus_of(pod) for count, pod in _pod_groups(job))


def gpus_of(pod: Manifest) -> int:
    """How many GPUs a pod needs, by its specification."""
    limits = []
    for container in pod.get("containers", ()):
        limits.append(container.get("resources", {}).get("limits", {}))
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


def _pod_groups(job: Manifest) -> list[tuple[int, Manifest]]:
    """Each group of a job's pods: their number and specification."""
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        trainer = spec.get("trainer", {})
        pod = {"containers": [{"resources": trainer.get("resourcesPerNode", {})}]}
        return [(int(trainer.get("numNodes") or 1), pod)]
    if job["kind"] == "PyTorchJob":
        pod_groups = []
        for replica_group in spec["pytorchReplicaSpecs"].values():
            count = replica_group.get("replicas", 1)
            pod_groups.append((count, replica_group["template"]["spec"]))
        return pod_groups
    pod = spec.get("template", {}).get("spec", {})
    return [(int(spec.get("completions") or 1), pod)]


def node_number(pod: Manifest) -> int:
    """The number of a pod's machine: 0 for the master, as the operators count."""
    labels = pod["metadata"].get("labels", {})
    if labels.get("training.kubeflow.org/replica-type") == "worker":
        return int(labels.get("training.kubeflow.org/replica-index", 0)) + 1
    index = labels.get("batch.kubernetes.io/job-completion-index", "0")
    if index.isdigit():
        return int(index)
    return 0


def title_of(job: Manifest) -> str:
    return f"{job['kind']} `{job['metadata']['name']}`"


def delete(cluster: Cluster, existing_object: Manifest, deleted: list[str], tell: Tell) -> None:
    """Deletes an object, adds its name to `deleted`, and waits until it is gone. Raises Stop if it
    stays."""
    object_kind = existing_object["kind"]
    meta = existing_object["metadata"]
    cluster.delete(object_kind, meta["namespace"], meta["name"], meta["uid"])
    deleted.append(title_of(existing_object))
    wait_until_gone(cluster, existing_object, tell)


def wait_until_gone(cluster: Cluster, deleted_object: Manifest, tell: Tell) -> None:
    """Waits until a deleted object is gone, or another has its name; reports a wait of more than a
    few seconds. Raises Stop after too long."""
    object_kind = deleted_object["kind"]
    meta = deleted_object["metadata"]
    begun = time.monotonic()
    is_silent = True

    def is_gone() -> bool:
        nonlocal is_silent
        current_object = cluster.get(object_kind, meta["namespace"], meta["name"])
        if current_object is None or current_object["metadata"]["uid"] != meta["uid"]:
            return True
        if is_silent and time.monotonic() - begun > errors.SILENT_SECONDS:
            is_silent = False
            minutes = errors.ENDING_SECONDS // 60
            tell(
                f"Waiting up to {minutes} minutes until {title_of(deleted_object)} is gone; its pods must end first."
            )
        return False

    if not in_time(is_gone):
        raise Stop(
            f"{object_kind} `{meta['name']}` is being deleted, but still exists.",
            f"Look at it with `oc describe {object_kind} {meta['name']} -n {meta['namespace']}`, then run the command again.",
        )
