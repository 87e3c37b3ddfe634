"""Submit: the cluster checks everything first, and then gets the missing objects. Existing ones do
not change."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runner import parts
from runner.catalog import tables
from runner.parts.jobs import kubernetes, podspec, trainjob
from runner.parts.jobs.kubernetes import SHARED, Manifest
from runner.parts.openshift import diagnose, helper_pod, jobs, pipeline
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import TryAgain, accounted
from runner.parts.openshift.jobs import Confirm, Owner, Sent
from runner.parts.openshift.status import FAILED, TRAINING, JobState, ended, going, look
from runner.parts.openshift.transfer import Files, keys_of, upload
from runner.parts.openshift.watch import Gone, follow, line
from runner.plan import Plan
from runner.recipe import units
from runner.tools.problem import Stop, Tell, listed, worded

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
GIB = 2**30
IMAGE_VOLUMES = (1, 33)  # the version of Kubernetes that mounts images, with `subPath`
SETTING = "`openshift.claims[].storage_class`"


class Earlier(NamedTuple):
    """What a command knows that continues after a wait. sent: all that was on the cluster when it
    began (`pipeline.everything_sent`); waited_for: the part that it has just waited for."""

    sent: frozenset[str]
    waited_for: Sent


@dataclass(frozen=True)
class Sending:
    """How a plan is sent. target: the kind of training job, None for that of the recipe's cluster;
    dry_run: the cluster only checks; files: sent to the claim before the first stage; contents: the
    hash of each stage's data files, by its name, none if they are not here
    (`runner.data.prepared.contents`); written: the bytes that the recipe writes to each claim, by
    its name; alone: the driver sends it. The driver retries nothing that has failed, and a person's
    machine has already sent the key and the files, and examined the image. earlier: None in a
    command's first step."""

    tell: Tell
    confirm: Confirm
    target: str | None = None
    dry_run: bool = False
    files: Files = field(default_factory=Files)
    contents: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    alone: bool = False
    owner: Owner = field(default_factory=Owner)
    earlier: Earlier | None = None


def submit(cluster: Cluster, plan: Plan, stage: str | None, options: Sending) -> Sent | None:
    """Sends the next part of a plan, or the stage of that name; waits for parts without a GPU, and
    sends the next one. Returns the part under way, or None. Raises Stop if the cluster refuses
    anything, before anything is sent, if the same part has failed before, and after a wait if
    somebody has sent another version of the recipe meanwhile."""
    if options.dry_run or stage is not None:
        return step(cluster, plan, stage, options)
    before = pipeline.everything_sent(cluster, plan)
    sent = step(cluster, plan, None, options)
    while sent and not sent.of_gate and not sent.stage.trains:
        options.tell("Waiting for it. ^C leaves it running; submit again to continue.")
        wait(cluster, sent, options.tell)
        sent = step(cluster, plan, None, replace(options, earlier=Earlier(before, sent)))
    return sent


def step(cluster: Cluster, plan: Plan, stage: str | None, options: Sending) -> Sent | None:
    """Sends the next part, or finds it already sent, even after a lost connection. The rest is as
    in `submit`."""
    tell = options.tell
    alone = options.alone
    space = plan.site["namespace"]
    if alone:
        account = None
    else:
        account = podspec.mlflow_account(plan)
    if account and cluster.get("ServiceAccount", space, account) is None:
        raise Stop(*worded("openshift.no-mlflow-account", space=space, account=account))
    sender = _Sender(cluster, plan, options, pipeline.claims_of(cluster, plan))
    all_milestones = pipeline.milestones(cluster, plan, options.files.key, sender.claims)
    milestone = pipeline.choose(cluster, plan, all_milestones, stage)
    if milestone is None:
        tell(f"Every stage of `{plan.name}` is finished. `--stage` selects one to run again.")
        return None
    if alone and milestone.job and milestone.state == FAILED and not milestone.of_gate:
        # A person must look first. By the same reading: a part that fails in between would
        # otherwise be sent again.
        reasons = "".join(
            f" {reason}" for reason in diagnose.why(cluster, look(cluster, milestone.job))
        )
        raise Stop(*worded("openshift.stage-failed", milestone=milestone, why=reasons))
    sent = jobs.sent(plan, milestone.stage, options.target, milestone.of_gate, options.files.key)
    if stage is None:
        outdated = pipeline.outdated(all_milestones, milestone)
    else:
        outdated = []
    existing_jobs = sender.existing(sent)
    if any(_came_since(job, milestone, sent) for job in existing_jobs):
        return step(cluster, plan, stage, options)
    holds = _holds(milestone, sent)
    is_first = milestone.stage == plan.stages[0] and not milestone.of_gate
    if is_first and options.files.paths:
        files = options.files
    else:
        files = None
    sender.judge(sent, existing_jobs, files, keeps=holds)
    if not holds:
        require_storage(
            cluster,
            [manifest for manifest in sender.made(sent) if manifest["kind"] == pipeline.CLAIM],
            tell,
        )
    # The stages that follow without another command: up to the first that trains.
    later = plan.stages[plan.stages.index(milestone.stage) :]
    training = next((number for number, other_stage in enumerate(later) if other_stage.trains), 0)
    if stage is None:
        following = [
            jobs.sent(plan, other_stage, options.target) for other_stage in later[1 : training + 1]
        ]
    else:
        following = []
    # Later parts report this when they are sent, except in a dry run.
    trains = any(
        part.kind == "TrainJob" for part in (sent, *(following if options.dry_run else ()))
    )
    if trains and not holds and (stuck := trainjob.stuck(plan.site)):
        tell(stuck)
    for next_one in following:
        sender.judge(next_one, sender.existing(next_one))

    # The jobs of later parts, made from another version of the recipe.
    before: list[Sent] = []
    if not holds:
        before = [
            jobs.sent(plan, other_stage.stage, options.target, other_stage.of_gate)
            for other_stage in outdated
        ]
    old = [job for other_stage in before for job in sender.existing(other_stage)]
    if holds:
        if milestone.state == FAILED:
            raise Stop(*worded("openshift.already-failed", what=sent))
        tell(
            f"{sent.kind} `{sent.name}` already exists, made from this recipe as it is now. Nothing changes."
        )
        if (
            not alone
            and milestone.job
            and (whose := Owner.of(milestone.job)) not in (Owner(), options.owner)
        ):
            tell(str(whose))
        if milestone.done:
            tell("It has finished. Its stage runs again when its inputs change.")
            return None
        if not options.dry_run:
            _heal(cluster, sent, milestone.job, tell)
    elif options.dry_run:
        for part in (sent, *following):
            tell(
                f"The cluster would accept {part.kind} `{part.name}` and {len(part.support)} objects that it needs."
            )
        for fact, act, _ in filter(
            None, (question(job, options.owner, True) for job in (*old, *existing_jobs))
        ):
            tell(f"{fact} Without `--dry-run` you must agree to {act}.")
    else:
        # First the old recipe's driver, which would send its jobs again. A new driver follows.
        walking: Manifests = []
        runs: Manifests = []
        if not alone:
            walking, runs = pipeline.outdated_walkers(
                cluster, plan, options.target, options.files.key
            )
        if options.earlier:
            _require_undisturbed(
                options.earlier, milestone, sent, [*walking, *runs, *old, *existing_jobs]
            )
        # All questions come first, so that nothing has changed after a no.
        for job in (*walking, *runs, *old, *existing_jobs):
            ask(job, options.owner, options.confirm, replaces=job not in (*walking, *runs))
        with replacing(cluster, sent, [*walking, *old, *existing_jobs], tell) as remove:
            sender.provide(sent)
            for run in runs:
                pipeline.end_run(cluster, plan, name := run["metadata"]["name"])
                tell(f"The run `{name}` of Kubeflow Pipelines, of the old recipe: stopped")
            for job in (*walking, *old, *existing_jobs):
                remove(job)
            if files:
                # Pods of a job that a colleague has sent in the meantime read the present files.
                replaced_uids = {job["metadata"]["uid"] for job in existing_jobs}
                for job in sender.existing(sent):
                    if job["metadata"]["uid"] not in replaced_uids and not jobs.is_of(job, sent):
                        raise jobs.sent_meanwhile(job)
                upload(cluster, sent.plan, sent.stage, files, tell)
            post(cluster, sent, options.owner, tell)
    return sent


def _require_undisturbed(
    earlier: Earlier, milestone: pipeline.Milestone, sent: Sent, removed: Manifests
) -> None:
    """Raises Stop if a command that has waited would remove something that was sent meanwhile: it
    has the older recipe. Raises Gone if it would send the part again that it has waited for,
    because somebody has deleted it since."""
    waited_for = earlier.waited_for
    again = jobs.named(sent.job) == jobs.named(waited_for.job)
    if again and (milestone.job is None or going(milestone.job)):
        raise Gone(waited_for)
    for job in removed:
        its_own = jobs.named(job) == jobs.named(waited_for.job) and jobs.is_of(job, waited_for)
        if job["metadata"].get("uid", job["metadata"]["name"]) not in earlier.sent and not its_own:
            raise jobs.sent_meanwhile(job)


def _came_since(job: Manifest, milestone: pipeline.Milestone, sent: Sent) -> bool:
    """Whether somebody has sent this job, the same as the one to be sent, after the milestones were
    read."""
    known_uid = milestone.job and milestone.job["metadata"]["uid"]
    is_the_same = jobs.named(job) == jobs.named(sent.job) and jobs.is_of(job, sent)
    return is_the_same and job["metadata"]["uid"] != known_uid


def _holds(milestone: pipeline.Milestone, sent: Sent) -> bool:
    """Whether a milestone's existing job is the same as the one to be sent."""
    if milestone.job is None or milestone.job["kind"] != sent.kind:
        return False
    if milestone.state != FAILED:
        return milestone.done or milestone.state == pipeline.UNDER_WAY
    # A failed training job is not repeated. Downloading and preparing may have lacked a network, so
    # they are.
    contents = {jobs.annotation(job, jobs.CONTENT) for job in (milestone.job, sent.job)}
    return milestone.stage.trains and len(contents) == 1


class _Sender(NamedTuple):
    """Lets the cluster check a plan's objects, and then sends them."""

    cluster: Cluster
    plan: Plan
    how: Sending
    claims: pipeline.Claims

    def existing(self, sent: Sent) -> Manifests:
        """Jobs of this name, for any target. Raises Stop if one belongs to another recipe."""
        existing_jobs = jobs.existing(self.cluster, self.plan, sent.stage, sent.of_gate)
        return [jobs.require_of(job, sent.plan.name) for job in existing_jobs]

    def made(self, sent: Sent) -> Manifests:
        """The objects that a job needs, without existing claims: their size and mode cannot be
        changed."""
        existing = {name for name, claim in self.claims.items() if claim}
        return [
            manifest
            for manifest in sent.support
            if manifest["kind"] != pipeline.CLAIM or manifest["metadata"]["name"] not in existing
        ]

    def judge(
        self, sent: Sent, existing_jobs: Manifests, files: Files | None = None, keeps: bool = False
    ) -> None:
        """Raises Stop if the queue is missing, a claim does not fit, or the server's dry run
        refuses anything. existing_jobs: those that this one replaces; files: sent before it;
        keeps: the existing job and its claims stay."""
        cluster = self.cluster
        alone = self.how.alone
        queue = sent.plan.site.get("queue")
        if queue and not cluster.get("LocalQueue", sent.namespace, queue):
            queues = [
                entry["metadata"]["name"] for entry in cluster.list("LocalQueue", sent.namespace)
            ]
            if not queues and not cluster.knows("LocalQueue", sent.namespace):
                raise Stop(*worded("openshift.no-queue", queue=queue))
            hint = (
                "`recipe site RECIPE` generates one for `oc apply -k`. Or delete `openshift.queue`."
            )
            if queues:
                hint = f"Its queues: {', '.join(queues)}. Change `openshift.queue`."
            raise Stop(f"The namespace `{sent.namespace}` has no queue `{queue}`.", hint)
        if sent.plan.site.get("connection") and podspec.connection(sent.plan, sent.stage):
            keys_of(cluster, sent.plan)
        if sent.plan.model_image and (version := cluster.version()) < IMAGE_VOLUMES:
            raise Stop(
                *worded("openshift.no-image-volumes", sent=sent, major=version[0], minor=version[1])
            )
        if not keeps:
            self._claims_will_do(sent)
        if sent.plan.has_gates and not alone:
            require_seal_key(cluster, sent.namespace, dry_run=True)
        for manifest in self.made(sent):
            cluster.apply(manifest, dry_run=True)
        # Under another name where one exists, because that can only be replaced.
        if existing_jobs:
            name = f"{sent.name[:44].rstrip('-')}-dry-run"
        else:
            name = sent.name
        # `post` reports one that somebody has sent in the meantime.
        cluster.create(
            {**sent.job, "metadata": {**sent.job["metadata"], "name": name}}, dry_run=True
        )
        if keeps or alone:
            return
        if files:
            helpers = [helper_pod.pod(sent.plan, sent.stage, "word", files.folder, writes=True)]
        else:
            helpers = []
        if _looks(sent):
            helpers += [helper_pod.look_pod(sent.plan, sent.stage, "")]
        for manifest in helpers:
            # Under another name, because an earlier command may have left a pod behind.
            meta = manifest["metadata"]
            cluster.create(
                {**manifest, "metadata": {**meta, "name": f"{meta['name']}-dry-run"}}, dry_run=True
            )

    def _claims_will_do(self, sent: Sent) -> None:
        """Raises Stop if a claim is being deleted or too small, or if several machines use a claim
        for one: the pods of all but the first machine would wait without end."""
        count = kubernetes.most_machines([self.plan])
        for name, claim in self.claims.items():
            if claim and going(claim):
                raise Stop(*worded("openshift.claim-goes", name=name, sent=sent))
            if claim:
                modes = claim["spec"].get("accessModes") or ["no mode"]
            else:
                modes = [SHARED]
            if count > 1 and SHARED not in modes:
                of = ", ".join(modes)
                raise Stop(
                    *worded(
                        "openshift.claim-for-one",
                        name=name,
                        sent=sent,
                        of=of,
                        plan=self.plan,
                        count=count,
                    )
                )
            need = self.how.written.get(name, 0)
            have = float(GIB * self.plan.claim_gib(name))
            if claim:
                # Now, or after its creation or resize.
                sizes = (
                    claim["spec"]["resources"]["requests"],
                    claim.get("status", {}).get("capacity") or {},
                )
                have = max(_bytes(size["storage"]) for size in sizes if "storage" in size)
            if have >= need:
                continue
            enough = self.plan.claims_gib.get(name, math.ceil(need / GIB))
            space = self.plan.site["namespace"]
            fewer = "or keep fewer checkpoints"
            shortage = (
                f"has {units.gib(have)}, and `{self.plan.name}` writes {units.gib(need)} to it."
            )
            if not claim:
                raise Stop(
                    *worded(
                        "openshift.claim-too-small",
                        name=name,
                        what=shortage,
                        enough=enough,
                        fewer=fewer,
                    )
                )
            patch = json.dumps({"spec": {"resources": {"requests": {"storage": f"{enough}Gi"}}}})
            more = worded(
                "openshift.claim-stays-small",
                name=name,
                space=space,
                what=shortage,
                patch=patch,
                fewer=fewer,
            )
            raise Stop(*more)

    def provide(self, sent: Sent) -> None:
        """Sends the objects that a job needs. The job that it replaces may still be at work, and
        does not change."""
        cluster = self.cluster
        tell = self.how.tell
        alone = self.how.alone
        if not alone:
            seal(cluster, sent, tell)
        for manifest in self.made(sent):
            applied = cluster.apply(manifest)
            name = f"{manifest['kind']} `{manifest['metadata']['name']}`"
            tell(f"Sent {name}" if applied else worded("openshift.not-closed", name=name)[0])
        if _looks(sent) and not alone:
            contents = self.how.contents.get(sent.stage.name, "")
            helper_pod.require_rows(cluster, sent.plan, sent.stage, contents, tell)


def _bytes(quantity: str) -> float:
    """A Kubernetes quantity: `40Gi`, `40G`, or bytes. Other units are larger than any file."""
    for read, text in ((units.size, f"{quantity}B"), (float, quantity)):
        with suppress(ValueError):
            return read(text)
    return math.inf


def _looks(sent: Sent) -> bool:
    """Whether a pod examines the image for rows before the job is sent."""
    return bool(sent.stage.data) and not sent.plan.place.prepared


def _heal(cluster: Cluster, sent: Sent, job: Manifest | None, tell: Tell) -> None:
    """Creates a deleted config map of a job at work again, because its pods could not restart
    without it."""
    missing_maps = {jobs.config_of(job)} - set(jobs.config_maps(cluster, sent.plan, sent.stage))
    for manifest in sent.support:
        if job and manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] in missing_maps:
            metadata = cluster.apply(manifest)["metadata"]
            # Without the right to read them, an existing one is applied again, which changes
            # nothing.
            if metadata["creationTimestamp"] > job["metadata"]["creationTimestamp"]:
                tell(
                    f"ConfigMap `{metadata['name']}`, which its pods read, was missing; it exists again"
                )


def post(cluster: Cluster, sent: Sent, owner: Owner, tell: Tell) -> None:
    """Sends the job with its owner's annotations. Then deletes unused config maps of earlier ones,
    if allowed."""
    job_title = jobs.named(sent.job)
    # Those that are sent from now on are of somebody who is about to replace this job.
    earlier = _config_maps(cluster, sent)
    if not cluster.create(owner.signed(sent.job)):
        job = cluster.get(sent.kind, sent.namespace, sent.name)
        if job is None or not jobs.is_of(job, sent):
            raise jobs.sent_meanwhile(job or sent.job)
        tell(f"{job_title} already exists, made from this recipe as it is now. Nothing changes.")
        whose = Owner.of(job)
        if whose not in (Owner(), owner):
            tell(str(whose))
        return
    tell(f"Sent {job_title} to `{sent.namespace}`")
    with suppress(Stop):
        for name in earlier:
            if name != jobs.config_of(sent.job):
                cluster.delete("ConfigMap", sent.namespace, name)


def _config_maps(cluster: Cluster, sent: Sent) -> list[str]:
    """The names of the config maps of a job and of earlier ones; none if the cluster refuses."""
    try:
        return list(jobs.config_maps(cluster, sent.plan, sent.stage))
    except Stop:
        return []


def seal(cluster: Cluster, sent: Sent, tell: Tell) -> None:
    """Creates the namespace's key if the plan has gates and the namespace has no key."""
    if sent.plan.has_gates and require_seal_key(cluster, sent.namespace):
        tell(
            f"Sent Secret `{podspec.KEY_SECRET}`: the key that seals measurements of the pods in `{sent.namespace}`"
        )


def ask(job: Manifest, user: Owner, confirm: Confirm, replaces: bool = False) -> None:
    """Asks before a job is removed. Raises Stop after a no."""
    question_parts = question(job, user, replaces)
    if question_parts and not confirm(*question_parts):
        raise Stop(f"{jobs.named(job)} stays as it is.")


def question(job: Manifest, user: Owner, replaces: bool) -> tuple[str, str, str] | None:
    """What is asked before a job is removed: one under way, unless it is the user's own and nothing
    `replaces` it, and every one of another person. Returns the facts, what would be done, and that
    person; None if nothing is asked."""
    owner = Owner.of(job)
    end = ended(job)
    name = jobs.named(job)
    # Empty if either is unknown, or both are the same.
    if user.person and owner.person != user.person:
        person = owner.person
    else:
        person = ""
    if going(job) or (end and not person) or (owner == user and not replaces):
        return None
    fact = f"{name} {(f'has {end}' if end else 'is running')}"
    fact += f"{', made from another version of this recipe' if replaces else ''}.{f' {owner}' if owner != user else ''}"
    if (
        person
        and replaces
        and job["kind"] in jobs.POD_LABEL
        and (folder := jobs.annotation(job, kubernetes.RUN_DIR))
    ):
        fact += f" Its results are in `{folder}`, and yours would replace them, unless you change the `name` of your recipe."
    if replaces:
        if end:
            action = "replace it"
        else:
            action = "stop it and start again"
    else:
        action = "stop it"
    return fact, action, person


@contextmanager
def replacing(
    cluster: Cluster, sent: Sent, old: Manifests, tell: Tell
) -> Iterator[Callable[[Manifest], None]]:
    """Yields what deletes an old job. A Stop in the block names what is still on the cluster."""
    deleted: list[str] = []

    def remove(job: Manifest) -> None:
        jobs.delete(cluster, job, deleted, tell)
        tell(f"the old {jobs.named(job)}: deleted")

    def left(stop: Stop) -> str:
        before = ", ".join(dict.fromkeys(map(jobs.named, old)))
        unsent = f"{jobs.named(sent.job)} was not sent."
        if deleted:
            return (
                f"The new {unsent} Already deleted: {', '.join(deleted)}. Submit again to send it."
            )
        if isinstance(stop, TryAgain) and old:
            return f"The new {unsent} `recipe status RECIPE` shows whether this is still on the cluster: {before}."
        if old:
            return f"The new {unsent} Nothing was deleted; still on the cluster: {before}."
        return unsent

    with accounted(left):
        yield remove


def wait(cluster: Cluster, sent: Sent, tell: Tell) -> None:
    """Waits for a job, and reports its phases, not its steps. Raises Stop as `follow` does."""
    last_lines: list[str] = []

    def show(state: JobState | None, reasons: list[str]) -> None:
        nonlocal last_lines
        lines = [
            *([state.phase if state.phase == TRAINING else line(state)] if state else []),
            *reasons,
        ]
        for text in lines:
            if text not in last_lines:
                tell(f"  {text}")
        last_lines = lines

    follow(cluster, sent, show)


def require_storage(cluster: Cluster, new_claims: Manifests, tell: Tell) -> None:
    """Reports what is unknown about new claims' storage. Raises Stop if it is unfit: pods would
    wait without end."""
    new_claims = [claim for claim in new_claims if SHARED in claim["spec"]["accessModes"]]
    if not new_claims:
        return
    classes = {
        storage_class["metadata"]["name"]: storage_class
        for storage_class in cluster.list("StorageClass", "", forgiving=True)
    }
    if not classes:
        names = listed(claim["metadata"]["name"] for claim in new_claims)
        tell(worded("openshift.storage-unseen", names=names, setting=SETTING, shared=SHARED)[0])
        return
    # The default class is the newest of several (Kubernetes documentation, Storage Classes).
    metas = [storage_class["metadata"] for storage_class in classes.values()]
    defaults = [
        meta for meta in metas if (meta.get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    newest = max(
        defaults,
        key=lambda meta: (meta.get("creationTimestamp", ""), meta["name"]),
        default={"name": ""},
    )
    unknown: dict[str, list[str]] = {}
    for claim in new_claims:
        claim_name = claim["metadata"]["name"]
        name = claim["spec"].get("storageClassName") or str(newest["name"])
        provisioner = classes.get(name, {}).get("provisioner", "")
        if not name:
            problem = f"The claim `{claim_name}` names no storage class, and this cluster has no default, so the claim would wait without end."
        elif name not in classes:
            problem = f"This cluster has no storage class `{name}`, which the claim `{claim_name}` asks for."
        elif (shared := shared_storage(provisioner)) is False:
            problem = f"Several machines write to the claim `{claim_name}`, but `{name}` ({provisioner}) creates volumes for one at a time."
        else:
            if shared is None:
                unknown.setdefault(f"`{name}` ({provisioner})", []).append(claim_name)
            continue
        able = [
            class_name
            for class_name, storage_class in sorted(classes.items())
            if shared_storage(storage_class.get("provisioner", ""))
        ]
        if able:
            write = f"Write {listed(able, 'or')} there"
        else:
            write = "Ask the cluster's admin for one"
        raise Stop(
            problem,
            f"{SETTING} names the storage class. {write}. Or use one machine, `machines.nodes: 1`.",
        )
    for storage, claims in unknown.items():
        tell(
            worded(
                "openshift.storage-unknown", claims=listed(claims), storage=storage, shared=SHARED
            )[0]
        )


def shared_storage(provisioner: str) -> bool | None:
    """Whether volumes of a provisioner can be ReadWriteMany; None for an unknown one. An operator
    may put its name before the driver's (`openshift-storage.cephfs.csi.ceph.com`)."""
    for driver, facts in tables.table("storage").items():
        if provisioner == driver or provisioner.endswith(f".{driver}"):
            return bool(facts["shared"])
    return None


def require_seal_key(cluster: Cluster, namespace: str, dry_run: bool = False) -> bool:
    """Creates the Secret with the namespace's key if it has none; returns whether it did. An
    existing one stays, as it seals measured results; in earlier releases it is the first sender's
    own key. Raises Stop if the cluster refuses."""
    if dry_run:
        word = ""
    else:
        word = parts.hook("seal_key")(make=True, namespace=namespace)
    secret: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "stringData": {podspec.KEY: word},
    }
    return cluster.create(
        {**secret, "metadata": {"name": podspec.KEY_SECRET, "namespace": namespace}}, dry_run
    )
