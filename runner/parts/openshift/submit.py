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


def submit(cluster: Cluster, plan: Plan, stage: str | None, how: Sending) -> Sent | None:
    """Sends the next part of a plan, or the stage of that name; waits for parts without a GPU, and
    sends the next one. Returns the part under way, or None. Raises Stop if the cluster refuses
    anything, before anything is sent, if the same part has failed before, and after a wait if
    somebody has sent another version of the recipe meanwhile."""
    if how.dry_run or stage is not None:
        return step(cluster, plan, stage, how)
    before = pipeline.everything_sent(cluster, plan)
    what = step(cluster, plan, None, how)
    while what and not what.of_gate and not what.stage.trains:
        how.tell("Waiting for it. ^C leaves it running; submit again to continue.")
        wait(cluster, what, how.tell)
        what = step(cluster, plan, None, replace(how, earlier=Earlier(before, what)))
    return what


def step(cluster: Cluster, plan: Plan, stage: str | None, how: Sending) -> Sent | None:
    """Sends the next part, or finds it already sent, even after a lost connection. The rest is as
    in `submit`."""
    tell = how.tell
    alone = how.alone
    space = plan.site["namespace"]
    if alone:
        account = None
    else:
        account = podspec.mlflow_account(plan)
    if account and cluster.get("ServiceAccount", space, account) is None:
        raise Stop(*worded("openshift.no-mlflow-account", space=space, account=account))
    sender = _Sender(cluster, plan, how, pipeline.claims_of(cluster, plan))
    way = pipeline.milestones(cluster, plan, how.files.key, sender.claims)
    milestone = pipeline.choose(cluster, plan, way, stage)
    if milestone is None:
        tell(f"Every stage of `{plan.name}` is finished. `--stage` selects one to run again.")
        return None
    if alone and milestone.job and milestone.state == FAILED and not milestone.of_gate:
        # A person must look first. By the same reading: a part that fails in between would
        # otherwise be sent again.
        why = "".join(
            f" {reason}" for reason in diagnose.why(cluster, look(cluster, milestone.job))
        )
        raise Stop(*worded("openshift.stage-failed", milestone=milestone, why=why))
    what = jobs.sent(plan, milestone.stage, how.target, milestone.of_gate, how.files.key)
    if stage is None:
        outdated = pipeline.outdated(way, milestone)
    else:
        outdated = []
    there = sender.existing(what)
    if any(_came_since(job, milestone, what) for job in there):
        return step(cluster, plan, stage, how)
    holds = _holds(milestone, what)
    first = milestone.stage == plan.stages[0] and not milestone.of_gate
    if first and how.files.paths:
        files = how.files
    else:
        files = None
    sender.judge(what, there, files, keeps=holds)
    if not holds:
        require_storage(
            cluster, [one for one in sender.made(what) if one["kind"] == pipeline.CLAIM], tell
        )
    # The stages that follow without another command: up to the first that trains.
    later = plan.stages[plan.stages.index(milestone.stage) :]
    training = next((number for number, other in enumerate(later) if other.trains), 0)
    if stage is None:
        following = [jobs.sent(plan, other, how.target) for other in later[1 : training + 1]]
    else:
        following = []
    # Later parts report this when they are sent, except in a dry run.
    trains = any(one.kind == "TrainJob" for one in (what, *(following if how.dry_run else ())))
    if trains and not holds and (stuck := trainjob.stuck(plan.site)):
        tell(stuck)
    for next_one in following:
        sender.judge(next_one, sender.existing(next_one))

    # The jobs of later parts, made from another version of the recipe.
    before: list[Sent] = []
    if not holds:
        before = [jobs.sent(plan, other.stage, how.target, other.of_gate) for other in outdated]
    old = [job for other in before for job in sender.existing(other)]
    if holds:
        if milestone.state == FAILED:
            raise Stop(*worded("openshift.already-failed", what=what))
        tell(
            f"{what.kind} `{what.name}` already exists, made from this recipe as it is now. Nothing changes."
        )
        if (
            not alone
            and milestone.job
            and (whose := Owner.of(milestone.job)) not in (Owner(), how.owner)
        ):
            tell(str(whose))
        if milestone.done:
            tell("It has finished. Its stage runs again when its inputs change.")
            return None
        if not how.dry_run:
            _heal(cluster, what, milestone.job, tell)
    elif how.dry_run:
        for each in (what, *following):
            tell(
                f"The cluster would accept {each.kind} `{each.name}` and {len(each.support)} objects that it needs."
            )
        for said, act, _ in filter(
            None, (question(job, how.owner, True) for job in (*old, *there))
        ):
            tell(f"{said} Without `--dry-run` you must agree to {act}.")
    else:
        # First the old recipe's driver, which would send its jobs again. A new driver follows.
        walking: Manifests = []
        runs: Manifests = []
        if not alone:
            walking, runs = pipeline.outdated_walkers(cluster, plan, how.target, how.files.key)
        if how.earlier:
            _require_undisturbed(how.earlier, milestone, what, [*walking, *runs, *old, *there])
        # All questions come first, so that nothing has changed after a no.
        for job in (*walking, *runs, *old, *there):
            ask(job, how.owner, how.confirm, replaces=job not in (*walking, *runs))
        with replacing(cluster, what, [*walking, *old, *there], tell) as remove:
            sender.provide(what)
            for run in runs:
                pipeline.end_run(cluster, plan, name := run["metadata"]["name"])
                tell(f"The run `{name}` of Kubeflow Pipelines, of the old recipe: stopped")
            for job in (*walking, *old, *there):
                remove(job)
            if files:
                # Pods of a job that a colleague has sent in the meantime read the present files.
                known = {job["metadata"]["uid"] for job in there}
                for job in sender.existing(what):
                    if job["metadata"]["uid"] not in known and not jobs.is_of(job, what):
                        raise jobs.sent_meanwhile(job)
                upload(cluster, what.plan, what.stage, files, tell)
            post(cluster, what, how.owner, tell)
    return what


def _require_undisturbed(
    earlier: Earlier, milestone: pipeline.Milestone, what: Sent, removed: Manifests
) -> None:
    """Raises Stop if a command that has waited would remove something that was sent meanwhile: it
    has the older recipe. Raises Gone if it would send the part again that it has waited for,
    because somebody has deleted it since."""
    waited_for = earlier.waited_for
    again = jobs.named(what.job) == jobs.named(waited_for.job)
    if again and (milestone.job is None or going(milestone.job)):
        raise Gone(waited_for)
    for job in removed:
        its_own = jobs.named(job) == jobs.named(waited_for.job) and jobs.is_of(job, waited_for)
        if job["metadata"].get("uid", job["metadata"]["name"]) not in earlier.sent and not its_own:
            raise jobs.sent_meanwhile(job)


def _came_since(job: Manifest, milestone: pipeline.Milestone, what: Sent) -> bool:
    """Whether somebody has sent this job, the same as the one to be sent, after the milestones were
    read."""
    known = milestone.job and milestone.job["metadata"]["uid"]
    is_the_same = jobs.named(job) == jobs.named(what.job) and jobs.is_of(job, what)
    return is_the_same and job["metadata"]["uid"] != known


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
        there = jobs.existing(self.cluster, self.plan, sent.stage, sent.of_gate)
        return [jobs.require_of(job, sent.plan.name) for job in there]

    def made(self, sent: Sent) -> Manifests:
        """The objects that a job needs, without existing claims: their size and mode cannot be
        changed."""
        existing = {name for name, claim in self.claims.items() if claim}
        return [
            one
            for one in sent.support
            if one["kind"] != pipeline.CLAIM or one["metadata"]["name"] not in existing
        ]

    def judge(
        self, sent: Sent, there: Manifests, files: Files | None = None, keeps: bool = False
    ) -> None:
        """Raises Stop if the queue is missing, a claim does not fit, or the server's dry run
        refuses anything. there: jobs that this one replaces; files: sent before it; keeps: the
        existing job and its claims stay."""
        cluster = self.cluster
        alone = self.how.alone
        queue = sent.plan.site.get("queue")
        if queue and not cluster.get("LocalQueue", sent.namespace, queue):
            known = [
                entry["metadata"]["name"] for entry in cluster.list("LocalQueue", sent.namespace)
            ]
            if not known and not cluster.knows("LocalQueue", sent.namespace):
                raise Stop(*worded("openshift.no-queue", queue=queue))
            hint = (
                "`recipe site RECIPE` generates one for `oc apply -k`. Or delete `openshift.queue`."
            )
            if known:
                hint = f"Its queues: {', '.join(known)}. Change `openshift.queue`."
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
        if there:
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
            what = f"has {units.gib(have)}, and `{self.plan.name}` writes {units.gib(need)} to it."
            if not claim:
                raise Stop(
                    *worded(
                        "openshift.claim-too-small",
                        name=name,
                        what=what,
                        enough=enough,
                        fewer=fewer,
                    )
                )
            patch = json.dumps({"spec": {"resources": {"requests": {"storage": f"{enough}Gi"}}}})
            more = worded(
                "openshift.claim-stays-small",
                name=name,
                space=space,
                what=what,
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
            made = cluster.apply(manifest)
            name = f"{manifest['kind']} `{manifest['metadata']['name']}`"
            tell(f"Sent {name}" if made else worded("openshift.not-closed", name=name)[0])
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
    lost = {jobs.config_of(job)} - set(jobs.config_maps(cluster, sent.plan, sent.stage))
    for manifest in sent.support:
        if job and manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] in lost:
            made = cluster.apply(manifest)["metadata"]
            # Without the right to read them, an existing one is applied again, which changes
            # nothing.
            if made["creationTimestamp"] > job["metadata"]["creationTimestamp"]:
                tell(
                    f"ConfigMap `{made['name']}`, which its pods read, was missing; it exists again"
                )


def post(cluster: Cluster, sent: Sent, owner: Owner, tell: Tell) -> None:
    """Sends the job with its owner's annotations. Then deletes unused config maps of earlier ones,
    if allowed."""
    named = jobs.named(sent.job)
    # Those that are sent from now on are of somebody who is about to replace this job.
    earlier = _config_maps(cluster, sent)
    if not cluster.create(owner.signed(sent.job)):
        job = cluster.get(sent.kind, sent.namespace, sent.name)
        if job is None or not jobs.is_of(job, sent):
            raise jobs.sent_meanwhile(job or sent.job)
        tell(f"{named} already exists, made from this recipe as it is now. Nothing changes.")
        whose = Owner.of(job)
        if whose not in (Owner(), owner):
            tell(str(whose))
        return
    tell(f"Sent {named} to `{sent.namespace}`")
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


def ask(job: Manifest, mine: Owner, confirm: Confirm, replaces: bool = False) -> None:
    """Asks before a job is removed. Raises Stop after a no."""
    asked = question(job, mine, replaces)
    if asked and not confirm(*asked):
        raise Stop(f"{jobs.named(job)} stays as it is.")


def question(job: Manifest, mine: Owner, replaces: bool) -> tuple[str, str, str] | None:
    """What is asked before a job is removed: one under way, unless it is the user's own and nothing
    `replaces` it, and every one of another person. Returns the facts, what would be done, and that
    person; None if nothing is asked."""
    owner = Owner.of(job)
    end = ended(job)
    name = jobs.named(job)
    # Empty if either is unknown, or both are the same.
    if mine.person and owner.person != mine.person:
        person = owner.person
    else:
        person = ""
    if going(job) or (end and not person) or (owner == mine and not replaces):
        return None
    said = f"{name} {(f'has {end}' if end else 'is running')}"
    said += f"{', made from another version of this recipe' if replaces else ''}.{f' {owner}' if owner != mine else ''}"
    if (
        person
        and replaces
        and job["kind"] in jobs.POD_LABEL
        and (folder := jobs.annotation(job, kubernetes.RUN_DIR))
    ):
        said += f" Its results are in `{folder}`, and yours would replace them, unless you change the `name` of your recipe."
    if replaces:
        if end:
            what = "replace it"
        else:
            what = "stop it and start again"
    else:
        what = "stop it"
    return said, what, person


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
    said: list[str] = []

    def show(state: JobState | None, why: list[str]) -> None:
        nonlocal said
        lines = [
            *([state.phase if state.phase == TRAINING else line(state)] if state else []),
            *why,
        ]
        for text in lines:
            if text not in said:
                tell(f"  {text}")
        said = lines

    follow(cluster, sent, show)


def require_storage(cluster: Cluster, made: Manifests, tell: Tell) -> None:
    """Reports what is unknown about new claims' storage. Raises Stop if it is unfit: pods would
    wait without end."""
    made = [claim for claim in made if SHARED in claim["spec"]["accessModes"]]
    if not made:
        return
    classes = {
        one["metadata"]["name"]: one for one in cluster.list("StorageClass", "", forgiving=True)
    }
    if not classes:
        names = listed(claim["metadata"]["name"] for claim in made)
        tell(worded("openshift.storage-unseen", names=names, setting=SETTING, shared=SHARED)[0])
        return
    # The default class is the newest of several (Kubernetes documentation, Storage Classes).
    metas = [one["metadata"] for one in classes.values()]
    defaults = [
        meta for meta in metas if (meta.get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    newest = max(
        defaults,
        key=lambda meta: (meta.get("creationTimestamp", ""), meta["name"]),
        default={"name": ""},
    )
    unknown: dict[str, list[str]] = {}
    for claim in made:
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
            other
            for other, one in sorted(classes.items())
            if shared_storage(one.get("provisioner", ""))
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
    for known, facts in tables.table("storage").items():
        if provisioner == known or provisioner.endswith(f".{known}"):
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
    made: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "stringData": {podspec.KEY: word},
    }
    return cluster.create(
        {**made, "metadata": {"name": podspec.KEY_SECRET, "namespace": namespace}}, dry_run
    )
