"""Submit: the cluster checks everything first, and then gets the missing objects. Existing ones do
not change."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runner import parts
from runner.catalog import tables
from runner.catalog.hardware import GIB
from runner.parts.jobs import kubernetes, podspec, trainjob
from runner.parts.jobs.kubernetes import SHARED, Manifest
from runner.parts.openshift import diagnose, helper_pod, jobs, pipeline
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import TryAgain, accounted
from runner.parts.openshift.jobs import Confirm, Owner, Sent
from runner.parts.openshift.status import (
    FAILED,
    TRAINING,
    JobState,
    ended,
    is_being_deleted,
    read_state,
)
from runner.parts.openshift.transfer import Files, keys_of, upload
from runner.parts.openshift.watch import Gone, describe_state, follow
from runner.plan import Plan
from runner.recipe import units
from runner.tools.problem import Stop, Tell, listed

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
IMAGE_VOLUMES = (1, 33)  # the version of Kubernetes that mounts images, with `subPath`
SETTING = "`openshift.claims[].storage_class`"


class Earlier(NamedTuple):
    """What a command knows that continues after a wait."""

    sent: frozenset[str]  # all on the cluster when it began (`pipeline.read_everything_sent`)
    waited_for: Sent  # the part that it has just waited for


@dataclass(frozen=True)
class Sending:
    """How a plan is sent."""

    tell: Tell
    confirm: Confirm
    target: str | None = None  # the kind of training job; None for that of the recipe's cluster
    dry_run: bool = False  # the cluster only checks
    files: Files = field(default_factory=Files)  # sent to the claim before the first stage
    # The hash of each stage's data files, by its name; none if they are not here
    # (`runner.data.prepared.contents`).
    contents: Mapping[str, str] = field(default_factory=dict)
    # The bytes that the recipe writes to each claim, by its name.
    written: Mapping[str, int] = field(default_factory=dict)
    # The driver sends it. It retries nothing that has failed; and a person's machine has already
    # sent the key and the files, and examined the image.
    unattended: bool = False
    owner: Owner = field(default_factory=Owner)
    earlier: Earlier | None = None  # None in a command's first step


class NextPart(NamedTuple):
    """The part of a plan that a step sends."""

    milestone: pipeline.Milestone
    sent: Sent  # its objects
    existing_jobs: Manifests  # the jobs of its name, for any target, which it would replace
    is_current: bool  # its existing job is made from this recipe as it is now, and stays
    files: Files | None  # sent to the claim before it


def submit(cluster: Cluster, plan: Plan, stage: str | None, options: Sending) -> Sent | None:
    """Sends the next part of a plan, or the stage of that name; waits for parts without a GPU, and
    sends the next one. Returns the part under way, or None. Raises Stop if the cluster refuses
    anything, before anything is sent, if the same part has failed before, and after a wait if
    somebody has sent another version of the recipe meanwhile."""
    if options.dry_run or stage is not None:
        return send_next_part(cluster, plan, stage, options)
    before = pipeline.read_everything_sent(cluster, plan)
    sent = send_next_part(cluster, plan, None, options)
    while sent and not sent.of_gate and not sent.stage.trains:
        options.tell("Waiting for it. ^C leaves it running; submit again to continue.")
        wait(cluster, sent, options.tell)
        sent = send_next_part(cluster, plan, None, replace(options, earlier=Earlier(before, sent)))
    return sent


def send_next_part(
    cluster: Cluster, plan: Plan, stage: str | None, options: Sending
) -> Sent | None:
    """Sends the next part, or finds it already sent, even after a lost connection. The rest is as
    in `submit`."""
    _require_mlflow_account(cluster, plan, options)
    sender = _Sender(cluster, plan, options, pipeline.claims_of(cluster, plan))
    all_milestones = pipeline.milestones(cluster, plan, options.files.key, sender.claims)
    milestone = pipeline.choose_milestone(cluster, plan, all_milestones, stage)
    if milestone is None:
        options.tell(
            f"Every stage of `{plan.name}` is finished. `--stage` selects one to run again."
        )
        return None
    if options.unattended:
        _require_not_failed(cluster, milestone)
    sent = jobs.render_job(
        plan, milestone.stage, options.target, milestone.of_gate, options.files.key
    )
    outdated: list[pipeline.Milestone] = []
    if stage is None:
        outdated = pipeline.find_outdated(all_milestones, milestone)
    part = sender.next_part(milestone, sent)
    if any(_came_since(job, milestone, sent) for job in part.existing_jobs):
        return send_next_part(cluster, plan, stage, options)
    following = sender.check(part, with_following=stage is None)
    if part.is_current:
        return _report_unchanged(sender, part)
    outdated_jobs = sender.jobs_of(outdated)
    if options.dry_run:
        _report_dry_run(part, following, outdated_jobs, options)
    else:
        _send_part(sender, part, outdated_jobs)
    return sent


def _require_mlflow_account(cluster: Cluster, plan: Plan, options: Sending) -> None:
    """Raises Stop if training reports to MLflow, and the service account for that is missing."""
    if options.unattended:
        return
    space = plan.site.namespace
    account = podspec.mlflow_account(plan)
    if account and cluster.get("ServiceAccount", space, account) is None:
        raise Stop(
            f"The namespace `{space}` has no service account `{account}`, with which training reports to MLflow.",
            "`recipe site RECIPE` generates it and its one right, for `oc apply -k`. Or write `report_to: tensorboard`.",
        )


def _require_not_failed(cluster: Cluster, milestone: pipeline.Milestone) -> None:
    """Raises Stop if a stage has failed: a person must look first. By the same reading of the
    cluster: a part that fails in between would otherwise be sent again."""
    if milestone.job is None or milestone.state != FAILED or milestone.of_gate:
        return
    reasons = diagnose.why(cluster, read_state(cluster, milestone.job))
    explanation = "".join(f" {reason}" for reason in reasons)
    raise Stop(
        f"{milestone.title} has failed, so later stages do not start.{explanation}",
        "`recipe submit RECIPE --all` continues; use `recipe stop RECIPE` first if a message asks for it.",
    )


def _report_unchanged(sender: _Sender, part: NextPart) -> Sent | None:
    """Reports a job that is already on the cluster, and repairs its config map. Returns None if the
    job has finished. Raises Stop if it has failed."""
    milestone = part.milestone
    sent = part.sent
    options = sender.options
    if milestone.state == FAILED:
        raise Stop(
            f"{sent.kind} `{sent.name}`, made from this recipe as it is now, has failed. `recipe status RECIPE` shows why.",
            "To run it again: `recipe stop RECIPE`, then `recipe submit RECIPE`.",
        )
    options.tell(
        f"{sent.kind} `{sent.name}` already exists, made from this recipe as it is now. Nothing changes."
    )
    if milestone.job and not options.unattended:
        _report_other_owner(milestone.job, options.owner, options.tell)
    if milestone.done:
        options.tell("It has finished. Its stage runs again when its inputs change.")
        return None
    if not options.dry_run:
        _restore_config_map(sender.cluster, sent, milestone.job, options.tell)
    return sent


def _report_other_owner(job: Manifest, user: Owner, tell: Tell) -> None:
    """Names the sender of a job, unless that is the user or unknown."""
    owner = Owner.of(job)
    if owner not in (Owner(), user):
        tell(str(owner))


def _report_dry_run(
    part: NextPart, following: list[Sent], outdated_jobs: Manifests, options: Sending
) -> None:
    """Reports what the cluster has accepted, and what the user would have to agree to."""
    for sent in (part.sent, *following):
        options.tell(
            f"The cluster would accept {sent.kind} `{sent.name}` and {len(sent.support)} objects that it needs."
        )
    for job in (*outdated_jobs, *part.existing_jobs):
        consent = question(job, options.owner, replaces=True)
        if consent:
            fact, action, _ = consent
            options.tell(f"{fact} Without `--dry-run` you must agree to {action}.")


def _send_part(sender: _Sender, part: NextPart, outdated_jobs: Manifests) -> None:
    """Sends a part, after what it replaces has ended: the driver and the runs of the old recipe,
    which would send its jobs again, then its jobs. A new driver follows. Raises Stop after a no, or
    if the cluster refuses something."""
    cluster = sender.cluster
    plan = sender.plan
    options = sender.options
    sent = part.sent
    drivers: Manifests = []
    runs: Manifests = []
    if not options.unattended:
        drivers, runs = pipeline.outdated_walkers(cluster, plan, options.target, options.files.key)
    old_jobs = [*outdated_jobs, *part.existing_jobs]
    if options.earlier:
        _require_undisturbed(options.earlier, part.milestone, sent, [*drivers, *runs, *old_jobs])
    # All questions come first, so that nothing has changed after a no.
    for job in (*drivers, *runs):
        require_consent(job, options.owner, options.confirm)
    for job in old_jobs:
        require_consent(job, options.owner, options.confirm, replaces=True)
    with replacing(cluster, sent, [*drivers, *old_jobs], options.tell) as remove:
        sender.provide(sent)
        for run in runs:
            name = run["metadata"]["name"]
            pipeline.end_run(cluster, plan, name)
            options.tell(f"The run `{name}` of Kubeflow Pipelines, of the old recipe: stopped")
        for job in (*drivers, *old_jobs):
            remove(job)
        if part.files:
            _upload(sender, part, part.files)
        create_job(cluster, sent, options.owner, options.tell)


def _upload(sender: _Sender, part: NextPart, files: Files) -> None:
    """Sends the data files. Raises Stop if a colleague has sent another job in the meantime, whose
    pods read the present files."""
    replaced_uids = {job["metadata"]["uid"] for job in part.existing_jobs}
    for job in sender.existing(part.sent):
        if job["metadata"]["uid"] not in replaced_uids and not jobs.is_made_from(job, part.sent):
            raise jobs.sent_meanwhile(job)
    upload(sender.cluster, part.sent.plan, part.sent.stage, files, sender.options.tell)


def _require_undisturbed(
    earlier: Earlier, milestone: pipeline.Milestone, sent: Sent, removed: Manifests
) -> None:
    """Raises Stop if a command that has waited would remove something that was sent meanwhile: it
    has the older recipe. Raises Gone if it would send the part again that it has waited for,
    because somebody has deleted it since."""
    waited_for = earlier.waited_for
    again = jobs.title_of(sent.job) == jobs.title_of(waited_for.job)
    if again and (milestone.job is None or is_being_deleted(milestone.job)):
        raise Gone(waited_for)
    for job in removed:
        meta = job["metadata"]
        was_sent = meta.get("uid", meta["name"]) in earlier.sent
        if not was_sent and not _is_job_of(job, waited_for):
            raise jobs.sent_meanwhile(job)


def _is_job_of(job: Manifest, sent: Sent) -> bool:
    """Whether a job is the one that was sent."""
    return jobs.title_of(job) == jobs.title_of(sent.job) and jobs.is_made_from(job, sent)


def _came_since(job: Manifest, milestone: pipeline.Milestone, sent: Sent) -> bool:
    """Whether somebody has sent this job, the same as the one to be sent, after the milestones were
    read."""
    known_uid = milestone.job and milestone.job["metadata"]["uid"]
    return _is_job_of(job, sent) and job["metadata"]["uid"] != known_uid


def _is_current(milestone: pipeline.Milestone, sent: Sent) -> bool:
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
    options: Sending
    claims: pipeline.Claims  # the recipe's claims that exist, as read at the beginning

    def next_part(self, milestone: pipeline.Milestone, sent: Sent) -> NextPart:
        """A milestone with its objects, and the jobs that they replace."""
        is_first = milestone.stage == self.plan.stages[0] and not milestone.of_gate
        files = None
        if is_first and self.options.files.paths:
            files = self.options.files
        return NextPart(
            milestone,
            sent,
            existing_jobs=self.existing(sent),
            is_current=_is_current(milestone, sent),
            files=files,
        )

    def following(self, milestone: pipeline.Milestone) -> list[Sent]:
        """The parts that the same command sends after this one: up to the first that trains."""
        later = self.plan.stages[self.plan.stages.index(milestone.stage) :]
        training = next((number for number, stage in enumerate(later) if stage.trains), 0)
        following_stages = []
        for stage in later[1 : training + 1]:
            following_stages.append(jobs.render_job(self.plan, stage, self.options.target))
        return following_stages

    def jobs_of(self, milestones: list[pipeline.Milestone]) -> Manifests:
        """The jobs of milestones, made from another version of the recipe."""
        target = self.options.target
        all_sent = []
        for milestone in milestones:
            all_sent.append(jobs.render_job(self.plan, milestone.stage, target, milestone.of_gate))
        return [job for sent in all_sent for job in self.existing(sent)]

    def existing(self, sent: Sent) -> Manifests:
        """Jobs of this name, for any target. Raises Stop if one belongs to another recipe."""
        existing_jobs = jobs.read_stage_jobs(self.cluster, self.plan, sent.stage, sent.of_gate)
        return [jobs.require_own(job, sent.plan.name) for job in existing_jobs]

    def made(self, sent: Sent) -> Manifests:
        """The objects that a job needs, without existing claims: their size and mode cannot be
        changed."""
        existing = {name for name, claim in self.claims.items() if claim}
        manifests = []
        for manifest in sent.support:
            is_claim = manifest["kind"] == pipeline.CLAIM
            if not is_claim or manifest["metadata"]["name"] not in existing:
                manifests.append(manifest)
        return manifests

    def check(self, part: NextPart, with_following: bool) -> list[Sent]:
        """Lets the cluster check a part and, if asked, the parts that the same command sends after
        it; returns the latter. Raises Stop if it refuses anything."""
        sent = part.sent
        self.judge(sent, part.existing_jobs, part.files, is_current=part.is_current)
        if not part.is_current:
            new_claims = []
            for manifest in self.made(sent):
                if manifest["kind"] == pipeline.CLAIM:
                    new_claims.append(manifest)
            require_storage(self.cluster, new_claims, self.options.tell)
        following: list[Sent] = []
        if with_following:
            following = self.following(part.milestone)
        if not part.is_current:
            reported = [sent]
            # Later parts report this when they are sent, except in a dry run.
            if self.options.dry_run:
                reported += following
            self._report_stuck(reported)
        for next_sent in following:
            self.judge(next_sent, self.existing(next_sent))
        return following

    def _report_stuck(self, parts: list[Sent]) -> None:
        """Reports a TrainJob that the cluster's versions of Kueue and Trainer would never start."""
        stuck = trainjob.stuck(self.plan.site)
        if stuck and any(part.kind == "TrainJob" for part in parts):
            self.options.tell(stuck)

    def judge(
        self,
        sent: Sent,
        existing_jobs: Manifests,
        files: Files | None = None,
        is_current: bool = False,
    ) -> None:
        """Raises Stop if the queue is missing, a claim does not fit, or the server's dry run
        refuses anything. existing_jobs: those that this one replaces; files: sent before it;
        is_current: the existing job and its claims stay."""
        cluster = self.cluster
        self._require_queue(sent)
        if sent.plan.site.connection and podspec.connection(sent.plan, sent.stage):
            keys_of(cluster, sent.plan)
        if sent.plan.model_image:
            self._require_image_volumes(sent)
        if not is_current:
            self._require_claims(sent)
        if sent.plan.has_gates and not self.options.unattended:
            require_seal_key(cluster, sent.namespace, dry_run=True)
        for manifest in self.made(sent):
            cluster.apply(manifest, dry_run=True)
        # Under another name where one exists, because that can only be replaced.
        if existing_jobs:
            name = f"{sent.name[:44].rstrip('-')}-dry-run"
        else:
            name = sent.name
        # `create_job` reports one that somebody has sent in the meantime.
        cluster.create(_renamed(sent.job, name), dry_run=True)
        if not is_current and not self.options.unattended:
            self._judge_helper_pods(sent, files)

    def _require_queue(self, sent: Sent) -> None:
        """Raises Stop if the namespace lacks the recipe's queue of Kueue."""
        queue = sent.plan.site.queue
        if not queue or self.cluster.get("LocalQueue", sent.namespace, queue):
            return
        queues = []
        for entry in self.cluster.list("LocalQueue", sent.namespace):
            queues.append(entry["metadata"]["name"])
        if not queues and not self.cluster.knows("LocalQueue", sent.namespace):
            raise Stop(
                f"This cluster has no Kueue, and so no queue `{queue}`.",
                "Delete `openshift.queue`; or ask the cluster's admin to install Kueue.",
            )
        hint = "`recipe site RECIPE` generates one for `oc apply -k`. Or delete `openshift.queue`."
        if queues:
            hint = f"Its queues: {', '.join(queues)}. Change `openshift.queue`."
        raise Stop(f"The namespace `{sent.namespace}` has no queue `{queue}`.", hint)

    def _require_image_volumes(self, sent: Sent) -> None:
        """Raises Stop if the cluster is too old to mount a model's image as a folder."""
        version = self.cluster.version()
        if version < IMAGE_VOLUMES:
            major, minor = version
            raise Stop(
                f"This cluster runs Kubernetes {major}.{minor}, and only 1.33 and newer mount the image `{sent.plan.model_image}` as a folder.",
                "Copy the model to a claim or to S3, and name that place in `model.base`.",
            )

    def _judge_helper_pods(self, sent: Sent, files: Files | None) -> None:
        """Lets the cluster check the pods that send files and examine the image. Under another
        name, because an earlier command may have left a pod behind."""
        helpers = []
        if files:
            helpers.append(helper_pod.pod(sent.plan, sent.stage, "word", files.folder, writes=True))
        if _examines_image(sent):
            helpers.append(helper_pod.image_check_pod(sent.plan, sent.stage, ""))
        for manifest in helpers:
            name = f"{manifest['metadata']['name']}-dry-run"
            self.cluster.create(_renamed(manifest, name), dry_run=True)

    def _require_claims(self, sent: Sent) -> None:
        """Raises Stop if a claim is being deleted or too small, or if several machines use a claim
        for one: the pods of all but the first machine would wait without end."""
        for name, claim in self.claims.items():
            if claim and is_being_deleted(claim):
                raise Stop(
                    f"The claim `{name}` in `{sent.namespace}` is being deleted, with everything on it.",
                    "It disappears when no pod uses it any more. Then submit again, and it is created again.",
                )
            if claim:
                self._require_shared(sent, name, claim)
            self._require_size(name, claim)

    def _require_shared(self, sent: Sent, name: str, claim: Manifest) -> None:
        """Raises Stop if several machines use an existing claim for one."""
        count = kubernetes.most_machines([self.plan])
        modes = claim["spec"].get("accessModes") or ["no mode"]
        if count > 1 and SHARED not in modes:
            raise Stop(
                f"The claim `{name}` in `{sent.namespace}` already exists, for one machine at a time ({', '.join(modes)}), but `{self.plan.name}` uses {count} machines.",
                "A claim keeps its mode. Write a new `openshift.claims[].name`, which is then created as ReadWriteMany, and copy the data of the old one to it. Or use one machine, `machines.nodes: 1`.",
            )

    def _require_size(self, name: str, claim: Manifest | None) -> None:
        """Raises Stop if a claim, existing or new, has no room for what the recipe writes to it."""
        need = self.options.written.get(name, 0)
        have = float(GIB * self.plan.claim_gib(name))
        if claim:
            have = _size_of(claim)
        if have >= need:
            return
        enough = self.plan.claims_gib.get(name, math.ceil(need / GIB))
        fewer = "or keep fewer checkpoints"
        shortage = f"has {units.gib(have)}, and `{self.plan.name}` writes {units.gib(need)} to it."
        if not claim:
            raise Stop(
                f"The claim `{name}` {shortage}",
                f"Write `size_gib: {enough}` for it, leave the line out, {fewer}.",
            )
        patch = json.dumps({"spec": {"resources": {"requests": {"storage": f"{enough}Gi"}}}})
        message = (
            f"The claim `{name}` in `{self.plan.site.namespace}` exists already. It {shortage}",
            f"`oc patch pvc {name} --namespace {self.plan.site.namespace} --patch '{patch}'` enlarges it, where its kind of storage allows that. Otherwise write a new `openshift.claims[].name`, {fewer}.",
        )
        raise Stop(*message)

    def provide(self, sent: Sent) -> None:
        """Sends the objects that a job needs. The job that it replaces may still be at work, and
        does not change."""
        cluster = self.cluster
        tell = self.options.tell
        unattended = self.options.unattended
        if not unattended:
            provide_seal_key(cluster, sent, tell)
        for manifest in self.made(sent):
            applied = cluster.apply(manifest)
            name = f"{manifest['kind']} `{manifest['metadata']['name']}`"
            if applied:
                tell(f"Sent {name}")
            else:
                tell(
                    f"{name}: not sent, because you may not create one. Every pod of the cluster can reach the ports of this job. To close them, write the site again (`recipe site RECIPE`) and send it."
                )
        if _examines_image(sent) and not unattended:
            contents = self.options.contents.get(sent.stage.name, "")
            helper_pod.require_rows(cluster, sent.plan, sent.stage, contents, tell)


def _renamed(manifest: Manifest, name: str) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "name": name}}


def _size_of(claim: Manifest) -> float:
    """The bytes of a claim, now, or after its creation or resize."""
    sizes = (
        claim["spec"]["resources"]["requests"],
        claim.get("status", {}).get("capacity") or {},
    )
    return max(_bytes(size["storage"]) for size in sizes if "storage" in size)


def _bytes(quantity: str) -> float:
    """A Kubernetes quantity: `40Gi`, `40G`, or bytes. Other units are larger than any file."""
    for read, text in ((units.size, f"{quantity}B"), (float, quantity)):
        with suppress(ValueError):
            return read(text)
    return math.inf


def _examines_image(sent: Sent) -> bool:
    """Whether a pod examines the image for rows before the job is sent."""
    return bool(sent.stage.data) and not sent.plan.place.prepared


def _restore_config_map(cluster: Cluster, sent: Sent, job: Manifest | None, tell: Tell) -> None:
    """Creates a deleted config map of a job at work again, because its pods could not restart
    without it."""
    missing_maps = {jobs.config_of(job)} - set(jobs.config_maps(cluster, sent.plan, sent.stage))
    if job is None:
        return
    for manifest in sent.support:
        is_config_map = manifest["kind"] == "ConfigMap"
        if is_config_map and manifest["metadata"]["name"] in missing_maps:
            metadata = cluster.apply(manifest)["metadata"]
            # Without the right to read them, an existing one is applied again, which changes
            # nothing.
            if metadata["creationTimestamp"] > job["metadata"]["creationTimestamp"]:
                tell(
                    f"ConfigMap `{metadata['name']}`, which its pods read, was missing; it exists again"
                )


def create_job(cluster: Cluster, sent: Sent, owner: Owner, tell: Tell) -> None:
    """Sends the job with its owner's annotations. Then deletes unused config maps of earlier ones,
    if allowed."""
    job_title = jobs.title_of(sent.job)
    # Those that are sent from now on are of somebody who is about to replace this job.
    earlier = _config_maps(cluster, sent)
    if not cluster.create(owner.signed(sent.job)):
        job = cluster.get(sent.kind, sent.namespace, sent.name)
        if job is None or not jobs.is_made_from(job, sent):
            raise jobs.sent_meanwhile(job or sent.job)
        tell(f"{job_title} already exists, made from this recipe as it is now. Nothing changes.")
        _report_other_owner(job, owner, tell)
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


def provide_seal_key(cluster: Cluster, sent: Sent, tell: Tell) -> None:
    """Creates the namespace's key if the plan has gates and the namespace has no key."""
    if sent.plan.has_gates and require_seal_key(cluster, sent.namespace):
        tell(
            f"Sent Secret `{podspec.KEY_SECRET}`: the key that seals measurements of the pods in `{sent.namespace}`"
        )


def require_consent(job: Manifest, user: Owner, confirm: Confirm, replaces: bool = False) -> None:
    """Asks before a job is removed. Raises Stop after a no."""
    question_parts = question(job, user, replaces)
    if question_parts and not confirm(*question_parts):
        raise Stop(f"{jobs.title_of(job)} stays as it is.")


def question(job: Manifest, user: Owner, replaces: bool) -> tuple[str, str, str] | None:
    """What is asked before a job is removed: one under way, unless it is the user's own and nothing
    `replaces` it, and every one of another person. Returns the facts, what would be done, and that
    person; None if nothing is asked."""
    owner = Owner.of(job)
    end = ended(job)
    # Empty if either is unknown, or both are the same.
    person = ""
    if user.person and owner.person != user.person:
        person = owner.person
    is_over = end and not person
    is_own = owner == user and not replaces
    if is_being_deleted(job) or is_over or is_own:
        return None
    fact = _state_of(job, user, replaces)
    folder = jobs.annotation(job, kubernetes.RUN_DIR)
    if person and replaces and folder and job["kind"] in jobs.POD_LABEL:
        fact += f" Its results are in `{folder}`, and yours would replace them, unless you change the `name` of your recipe."
    if not replaces:
        action = "stop it"
    elif end:
        action = "replace it"
    else:
        action = "stop it and start again"
    return fact, action, person


def _state_of(job: Manifest, user: Owner, replaces: bool) -> str:
    """Whether a job is running, and who has sent it, if that is not the user."""
    owner = Owner.of(job)
    end = ended(job)
    if end:
        state = f"{jobs.title_of(job)} has {end}"
    else:
        state = f"{jobs.title_of(job)} is running"
    if replaces:
        state += ", made from another version of this recipe"
    if owner != user:
        return f"{state}. {owner}"
    return f"{state}."


@contextmanager
def replacing(
    cluster: Cluster, sent: Sent, old: Manifests, tell: Tell
) -> Iterator[Callable[[Manifest], None]]:
    """Yields what deletes an old job. A Stop in the block names what is still on the cluster."""
    deleted: list[str] = []

    def remove(job: Manifest) -> None:
        jobs.delete(cluster, job, deleted, tell)
        tell(f"the old {jobs.title_of(job)}: deleted")

    def left(stop: Stop) -> str:
        before = ", ".join(dict.fromkeys(map(jobs.title_of, old)))
        unsent = f"{jobs.title_of(sent.job)} was not sent."
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
        lines = list(reasons)
        if state and state.phase == TRAINING:
            lines.insert(0, TRAINING)
        elif state:
            lines.insert(0, describe_state(state))
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
    classes = {}
    for storage_class in cluster.list("StorageClass", "", forgiving=True):
        classes[storage_class["metadata"]["name"]] = storage_class
    if not classes:
        names = listed(claim["metadata"]["name"] for claim in new_claims)
        tell(
            f"Several machines will write to {names}, but you may not list this cluster's storage classes. The default, or the one in {SETTING}, must support {SHARED}."
        )
        return
    unknown: dict[str, list[str]] = {}
    for claim in new_claims:
        claim_name = claim["metadata"]["name"]
        class_name = claim["spec"].get("storageClassName") or _default_class(classes)
        problem = _storage_problem(claim_name, class_name, classes)
        if problem:
            raise Stop(problem, _storage_remedy(classes))
        provisioner = classes[class_name].get("provisioner", "")
        if shared_storage(provisioner) is None:
            unknown.setdefault(f"`{class_name}` ({provisioner})", []).append(claim_name)
    for storage, claims in unknown.items():
        tell(
            f"Several machines will write to {listed(claims)}. It is unknown whether {storage} supports {SHARED}. If it does not, pods wait without end, and `recipe status` says so."
        )


def _default_class(classes: Mapping[str, Manifest]) -> str:
    """The name of a cluster's default storage class, the newest of several (Kubernetes
    documentation, Storage Classes); empty if it has none. classes: by name."""
    metas = [storage_class["metadata"] for storage_class in classes.values()]
    defaults = [
        meta for meta in metas if (meta.get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    newest = max(
        defaults,
        key=lambda meta: (meta.get("creationTimestamp", ""), meta["name"]),
        default={"name": ""},
    )
    return str(newest["name"])


def _storage_problem(claim_name: str, class_name: str, classes: Mapping[str, Manifest]) -> str:
    """Why the pods of several machines cannot use a new claim of this storage class; empty if they
    can, or if that is unknown."""
    if not class_name:
        return f"The claim `{claim_name}` names no storage class, and this cluster has no default, so the claim would wait without end."
    if class_name not in classes:
        return f"This cluster has no storage class `{class_name}`, which the claim `{claim_name}` asks for."
    provisioner = classes[class_name].get("provisioner", "")
    if shared_storage(provisioner) is False:
        return f"Several machines write to the claim `{claim_name}`, but `{class_name}` ({provisioner}) creates volumes for one at a time."
    return ""


def _storage_remedy(classes: Mapping[str, Manifest]) -> str:
    able = []
    for class_name, storage_class in sorted(classes.items()):
        if shared_storage(storage_class.get("provisioner", "")):
            able.append(class_name)
    if able:
        write = f"Write {listed(able, 'or')} there"
    else:
        write = "Ask the cluster's admin for one"
    return f"{SETTING} names the storage class. {write}. Or use one machine, `machines.nodes: 1`."


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
    word = ""
    if not dry_run:
        parts.require("evaluate")
        from runner.parts.evaluate import seal

        word = seal.key(make=True, namespace=namespace)
    secret: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "stringData": {podspec.KEY: word},
    }
    return cluster.create(
        {**secret, "metadata": {"name": podspec.KEY_SECRET, "namespace": namespace}}, dry_run
    )
