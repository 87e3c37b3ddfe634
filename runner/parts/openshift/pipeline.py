"""The progress of a recipe on the cluster, stage by stage and gate by gate, and what continues it:
driver or run.

What the cluster shows is for people; each stage's own pod reads the records on the claim before it
starts.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runner.catalog import troubles
from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.jobs.stage import ON_CLUSTER
from runner.parts.openshift import jobs
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.diagnose import MORE_MEMORY
from runner.parts.openshift.errors import accounted, in_time
from runner.parts.openshift.jobs import CONTENT
from runner.parts.openshift.status import FAILED, FINISHED, ended, is_being_deleted
from runner.plan import PLAN_FILE, Plan, Stage
from runner.scenarios import saved_plan
from runner.scenarios.shared import common
from runner.tools.files import Artifact
from runner.tools.problem import Stop

# The states of a milestone, besides FINISHED and FAILED.
MISSING = "not sent yet"
UNDER_WAY = "under way"
PROMOTED = "promoted"
GOING = "being deleted"
CHANGED = "made from another version of the recipe or its data"
LOST = "done once, but its claim has been replaced"
NEVER = "9999"  # after every time that a cluster names
# The annotation on a gate's Job with who overruled the gate and why; the record itself is on the
# claim.
PROMOTION = "recipe-runner/promotion"

# The labels that kfp's compiler and Argo give to every pod of a run: one that is always the same,
# and that with the Workflow's name.
OF_RUN = {"pipelines.kubeflow.org/v2_component": "true"}
WORKFLOW = "workflows.argoproj.io/workflow"
CLAIM = "PersistentVolumeClaim"
# The driver's service account, which `recipe site` writes with its rights.
ACCOUNT = "recipe-driver"
SERVER = "https://kubernetes.default.svc"  # the cluster's address, in every pod
# The folder of the account's token and the cluster's authority, in every pod.
KEYS = "/var/run/secrets/kubernetes.io/serviceaccount"
# What a pod that asks the cluster requests; `runner/parts/openshift/kfp/pipeline.yaml.jinja` says
# the same in other units.
SHARE = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
# A recipe's claims on the cluster by name; None for a missing one.
Claims = dict[str, Manifest | None]


class Milestone(NamedTuple):
    """A stage of a recipe, or the gate after it."""

    stage: Stage
    of_gate: bool
    job: Manifest | None  # None only where it is MISSING
    # MISSING, CHANGED, LOST, UNDER_WAY, GOING, FINISHED, FAILED or PROMOTED
    state: str

    @property
    def done(self) -> bool:
        return self.state in (FINISHED, PROMOTED)

    @property
    def at_work(self) -> bool:
        """Whether it has an unfinished job on the cluster, from the current or an earlier
        recipe."""
        return self.job is not None and not ended(self.job)

    @property
    def title(self) -> str:
        return f"{self}"[0].upper() + f"{self}"[1:]

    def __str__(self) -> str:
        if self.of_gate:
            return f"the gate after `{self.stage.name}`"
        return f"`{self.stage.name}`"


def claims_of(cluster: Cluster, plan: Plan) -> Claims:
    space = plan.site.namespace
    return {claim.name: cluster.get(CLAIM, space, claim.name) for claim in plan.claims}


def milestones(
    cluster: Cluster,
    plan: Plan,
    files_key: str = "",
    claims: Claims | None = None,
    existing_jobs: Manifests | None = None,
) -> list[Milestone]:
    """Every milestone of a recipe, in order. files_key: of the data files on this machine, if that
    counts; claims, existing_jobs: results of `claims_of` and `read_jobs`, if the caller has
    them."""
    if existing_jobs is None:
        existing_jobs = jobs.read_jobs(cluster, plan)
    all_milestones = []
    for stage in plan.stages:
        job = jobs.find_stage_job(existing_jobs, plan, stage)
        state = _state(cluster, job, stage.keys[""], files_key)
        all_milestones.append(Milestone(stage, False, job, state))
        if stage.gates:
            verdict = jobs.find_stage_job(existing_jobs, plan, stage, of_gate=True)
            state = _state(cluster, verdict, batch.gate_key(stage), files_key)
            if verdict and job and _created_at(verdict) < _created_at(job):
                # The stage was sent again after its gate, so its result may differ.
                state = CHANGED
            all_milestones.append(Milestone(stage, True, verdict, state))
    if not any(milestone.done for milestone in all_milestones):
        return all_milestones
    if claims is None:
        claims = claims_of(cluster, plan)
    since = _results_since(plan, claims)
    return [_on_claims_since(milestone, since) for milestone in all_milestones]


def _results_since(plan: Plan, claims: Claims) -> str:
    """When the last of the claims with a plan's results was created; empty without a claim."""
    folders = (plan.place.run_dir, plan.place.data_dir, plan.place.model_dir)
    written = [claim.name for folder in folders if folder and (claim := plan.claim_of(folder))]
    return max((_created_at(claims[name]) for name in written), default="")


def _on_claims_since(milestone: Milestone, since: str) -> Milestone:
    """A milestone, as LOST if it is from before that time: its results no longer exist."""
    if milestone.done and _created_at(milestone.job) < since:
        return milestone._replace(state=LOST)
    return milestone


def read_everything_sent(cluster: Cluster, plan: Plan) -> frozenset[str]:
    """What is on the cluster for the plan's scenario: the uids of its jobs, with the driver, and
    the names of its runs."""
    uids = [str(job["metadata"]["uid"]) for job in jobs.read_jobs(cluster, plan)]
    return frozenset([*uids, *runs_of(cluster, plan)])


def milestone_of(cluster: Cluster, plan: Plan, stage: Stage, of_gate: bool) -> Milestone:
    all_milestones = milestones(cluster, plan)
    return next(
        milestone
        for milestone in all_milestones
        if (milestone.stage.name, milestone.of_gate) == (stage.name, of_gate)
    )


def find_former_jobs(
    existing_jobs: Manifests, plan: Plan, all_milestones: list[Milestone]
) -> Manifests:
    """The jobs at work on a plan's run that are none of its milestones: former stages of the
    recipe."""
    milestone_uids = set()
    for milestone in all_milestones:
        if milestone.job:
            milestone_uids.add(milestone.job["metadata"]["uid"])
    former_jobs = []
    for job in existing_jobs:
        folder = jobs.annotation(job, kubernetes.RUN_DIR)
        meta = job["metadata"]
        of_run = (
            plan.place.run_dir in (folder, folder.rpartition("/")[0])
            and meta["uid"] not in milestone_uids
        )
        if of_run and str(meta["name"]).startswith(kubernetes.job_name(plan)) and not ended(job):
            former_jobs.append(job)
    return former_jobs


def _state(cluster: Cluster, job: Manifest | None, key_now: str, files_key: str) -> str:
    if job is None:
        return MISSING
    if is_being_deleted(job):
        return GOING
    if jobs.annotation(job, kubernetes.KEY) != key_now or jobs.uses_other_files(job, files_key):
        return CHANGED
    end = ended(job)
    if end is None and any(
        jobs.config_of(pod) != jobs.config_of(job) for pod in jobs.pods_of(cluster, job)
    ):
        # Somebody changed the job manually while its pods were at work.
        return CHANGED
    if end == FAILED and jobs.annotation(job, PROMOTION):
        return PROMOTED
    return end or UNDER_WAY


def _created_at(manifest: Manifest | None) -> str:
    if manifest:
        return str(manifest["metadata"].get("creationTimestamp", ""))
    return NEVER


def next_milestone(all_milestones: list[Milestone]) -> Milestone | None:
    """The first milestone that is not done; None if all are."""
    for milestone in all_milestones:
        if not milestone.done:
            return milestone
    return None


def default_milestone(all_milestones: list[Milestone]) -> Milestone | None:
    """The default milestone: the one at work, else the first that is not done; None if all are
    done."""
    return next(
        (milestone for milestone in all_milestones if milestone.at_work), None
    ) or next_milestone(all_milestones)


def choose_milestone(
    cluster: Cluster, plan: Plan, all_milestones: list[Milestone], name: str | None
) -> Milestone | None:
    """The milestone that `recipe submit` sends: the first that is not done, or that of the stage
    `name`; None if all are done. Raises Stop if an earlier one is not done, or the next gate is
    closed."""
    milestone = next_milestone(all_milestones)
    if name is not None:
        stage = plan.stage(name)
        stage_milestones = [milestone for milestone in all_milestones if milestone.stage is stage]
        waiting = next_milestone(all_milestones[: all_milestones.index(stage_milestones[0])])
        if waiting and waiting.of_gate and waiting.state == FAILED:
            raise Stop(f"`{stage.name}` does not start. {closed_gate_message(cluster, waiting)}")
        if waiting:
            raise Stop(
                f"`{stage.name}` does not start: {waiting} comes first, and is {waiting.state}.",
                "`recipe submit RECIPE`, without --stage, sends what comes first. `recipe status RECIPE` shows all stages.",
            )
        milestone = next_milestone(stage_milestones) or stage_milestones[0]
    if milestone and milestone.of_gate and milestone.state == FAILED:
        raise Stop(closed_gate_message(cluster, milestone))
    return milestone


def find_outdated(all_milestones: list[Milestone], milestone: Milestone) -> list[Milestone]:
    """The other milestones at work on an older version of the recipe. Raises Stop if one is at work
    on this version."""
    outdated_milestones = [
        other_milestone
        for other_milestone in all_milestones
        if other_milestone is not milestone and other_milestone.at_work
    ]
    for other_milestone in outdated_milestones:
        if other_milestone.state not in (CHANGED, GOING):
            raise Stop(
                f"{milestone.title} comes next ({milestone.state}), but {other_milestone} is still running.",
                f"`recipe stop RECIPE --stage {other_milestone.stage.name}` stops it. `recipe submit RECIPE --stage {milestone.stage.name}` sends this stage as well.",
            )
    return outdated_milestones


def closed_gate_message(cluster: Cluster, milestone: Milestone) -> str:
    """The message of a closed gate: its table, or why it could not be measured, and the
    remedies."""
    stage = milestone.stage.name
    table = "".join(f"  {line}\n" for line in last_words(cluster, milestone.job))
    overrule = f"recipe promote RECIPE {stage}{ON_CLUSTER} --by NAME --reason TEXT"
    return f"The gate after `{stage}` is closed, so later stages do not start.\n{table}To overrule it: {overrule}\nTo measure again: `recipe stop RECIPE`, then `recipe submit RECIPE`."


def last_words(cluster: Cluster, job: Manifest | None) -> list[str]:
    """The last message of a job's pod, for a gate its table; empty if the pod is gone."""
    if job is None:
        return []
    part = jobs.container(job)
    for pod in jobs.pods_of(cluster, job):
        for entry in jobs.containers_of(pod):
            if entry["name"] != part:
                continue
            end = jobs.termination_of(entry)
            if end.get("message"):
                return str(end["message"]).strip().splitlines()
            if end.get("reason") == "OOMKilled":
                return [
                    f"Its pod used up its main memory before it had measured anything. {MORE_MEMORY}"
                ]
        text = cluster.log(
            job["metadata"]["namespace"], pod["metadata"]["name"], part, tailLines=40
        )
        if text:
            return troubles.spoken(text)
    return []


def driver_stage(plan: Plan, name: str = jobs.DRIVER) -> tuple[Plan, Stage]:
    """The driver, or with the name `kubernetes.PIPELINE` a run's tasks, as one more stage,
    independent of the others: the plan of it alone, and the stage. Its file is the whole plan."""
    work = common.work(plan.place, name, {}, common.PREPARING)
    stage = replace(work, files=(Artifact(PLAN_FILE, plan_text(plan)),))
    return plan.only(stage), stage


def plan_text(plan: Plan) -> str:
    """The plan as JSON with each text of its stages' files once, under `texts`. A file's text is
    its number there, or null for a stage's own plan, which follows from the rest."""
    form = plan.plain()
    texts = dict[str, int]()
    for stage in form["stages"]:
        # As `read_plan_text` returns them, so that a pod finds the config map of its plan by its
        # content.
        stage["needs"] = {name: float(value) for name, value in stage["needs"].items()}
        stage_plan_text = _stage_plan_text(form, stage["name"])
        for file in stage["files"]:
            if file["text"] == stage_plan_text:
                file["text"] = None
            else:
                file["text"] = texts.setdefault(file["text"], len(texts))
    form["texts"] = list(texts)
    return json.dumps(form, indent=1, ensure_ascii=False) + "\n"


def read_plan_text(text: str) -> Plan:
    """The plan that `plan_text` wrote, or `Plan.as_json` in earlier releases. Raises ValueError for
    any other text."""
    form = json.loads(text)
    texts = form.pop("texts", None)
    if texts:
        for stage in form["stages"]:
            for file in stage["files"]:
                if file["text"] is None:
                    file["text"] = _stage_plan_text(form, stage["name"])
                else:
                    file["text"] = texts[file["text"]]
    return saved_plan.from_json(json.dumps(form))


def _stage_plan_text(form: Mapping[str, Any], name: str) -> str:
    """The plan beside a stage's config as `runner.scenarios.shared.common.plan` writes it: the
    stage and those before it, without the guards of their commands and later estimates. form: the
    whole plan's JSON form."""
    stages = []
    for stage in form["stages"]:
        command = list(stage["command"])
        if "--" in command:
            plain = command[command.index("--") + 1 :]
        else:
            plain = command
        stages.append(stage | {"files": [], "command": plain, "needs": {}, "grace_seconds": None})
        if stage["name"] == name:
            break
    return (
        json.dumps({**form, "stages": stages, "claims_gib": {}}, indent=1, ensure_ascii=False)
        + "\n"
    )


def driver_command(plan: Plan, module: str = "runner.parts.openshift.controller") -> list[str]:
    """The command of a pod that asks the cluster; plan: of that stage alone."""
    return [
        "python",
        "-m",
        module,
        f"{plan.place.config_dir}/{PLAN_FILE}",
        "--server",
        SERVER,
        "--keys",
        KEYS,
    ]


def render_driver(plan: Plan, target: str | None, files_key: str) -> jobs.Sent:
    """The objects of the driver; files_key: of the data files that are on the claim."""
    alone, stage = driver_stage(plan)
    command = driver_command(alone)
    if target:
        command += ["--target", target]
    if files_key:
        command += ["--files", files_key]
    pod = batch.small(
        alone,
        stage,
        jobs.DRIVER,
        command,
        [podspec.config(alone, stage)],
        resources=SHARE,
        terminationMessagePolicy=kubernetes.LAST_WORDS,
    )
    account = {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    template = {**pod, "spec": {**pod["spec"], **account}}
    file = Path(__file__).with_name("driver-job.yaml")
    spec = kubernetes.fill_template(
        file, podFailurePolicy=batch.failure_policy(jobs.DRIVER), template=template
    )
    # Without a run folder: it writes none, so it is not taken for a former stage of the recipe.
    origin = {}
    for name, text in kubernetes.origin(spec, alone, stage).items():
        if name != kubernetes.RUN_DIR:
            origin[name] = text
    job = batch.job(alone, stage, kubernetes.job_name(alone), jobs.DRIVER, spec, origin)
    return jobs.Sent(alone, stage, (yaml.safe_load(kubernetes.config_map(alone, stage).text),), job)


def driver_of(cluster: Cluster, plan: Plan) -> Manifest | None:
    """The driver on the cluster. Raises Stop if its name is in use for something else."""
    alone, _ = driver_stage(plan)
    job = cluster.get("Job", plan.site.namespace, kubernetes.job_name(alone))
    if job:
        return jobs.require_own(job, alone.name)
    return None


def is_driver_at_work(job: Manifest | None) -> bool:
    """Whether a driver is at work."""
    return job is not None and not ended(job) and not is_being_deleted(job)


def is_same_driver(job: Manifest, wanted: jobs.Sent) -> bool:
    """Whether a driver has the content of the one that would be sent now."""
    return jobs.annotation(job, CONTENT) == jobs.annotation(wanted.job, CONTENT)


def runs_of(cluster: Cluster, plan: Plan) -> dict[str, Manifest]:
    """The active runs of Kubeflow Pipelines of a recipe, in any version, by name. A run is a
    Workflow of Argo; its pods carry its name. Its content and owner's marks come from the config
    map with the plan that its tasks mount."""
    alone, stage = driver_stage(plan, kubernetes.PIPELINE)
    runs: dict[str, str] = {}
    for pod in cluster.list("Pod", plan.site.namespace, OF_RUN):
        maps = []
        for volume in pod["spec"].get("volumes", ()):
            maps.append(volume.get("configMap", {}).get("name", ""))
        mounted = [name for name in maps if kubernetes.is_config_map_of(name, alone)]
        if mounted and jobs.phase_of(pod) in ("Pending", "Running"):
            runs[str(pod["metadata"]["labels"][WORKFLOW])] = mounted[0]
    if runs:
        plans = jobs.config_maps(cluster, alone, stage)
    else:
        plans = {}
    workflows: dict[str, Manifest] = {}
    for name, config in sorted(runs.items()):
        marks = plans.get(config, {"metadata": {}})["metadata"].get("annotations") or {}
        workflows[name] = {
            "kind": "Workflow",
            "metadata": {"name": name, "annotations": marks | {CONTENT: config}},
        }
    return workflows


def outdated_walkers(
    cluster: Cluster, plan: Plan, target: str | None, files_key: str
) -> tuple[Manifests, Manifests]:
    """The driver, and the runs, that are at work on an older version of the recipe, which they
    would send again."""
    job = driver_of(cluster, plan)
    now = kubernetes.config_map_name(*driver_stage(plan, kubernetes.PIPELINE))
    drivers = []
    if job and is_driver_at_work(job):
        new_driver = render_driver(plan, target, files_key)
        if not is_same_driver(job, new_driver):
            drivers.append(job)
    runs = []
    for run in runs_of(cluster, plan).values():
        if jobs.annotation(run, CONTENT) != now:
            runs.append(run)
    return drivers, runs


def owner_of_runs(cluster: Cluster, plan: Plan) -> jobs.Owner:
    """Who sent the plan of the runs of a recipe, in its current version."""
    alone, stage = driver_stage(plan, kubernetes.PIPELINE)
    config = jobs.config_maps(cluster, alone, stage).get(kubernetes.config_map_name(alone, stage))
    if config:
        return jobs.Owner.of(config)
    return jobs.Owner()


def end_run(cluster: Cluster, plan: Plan, name: str) -> None:
    """Ends a run by a deadline of 0 s, like the pipeline server (`TerminateWorkflow` in kfp's
    `resource_manager.go`), and waits until no task of it can send anything. Raises Stop if the
    cluster refuses, or it continues."""
    space = plan.site.namespace
    cluster.patch("Workflow", space, name, {"spec": {"activeDeadlineSeconds": 0}})
    with accounted(lambda _: f"The cluster is stopping the run `{name}` of Kubeflow Pipelines."):
        over = in_time(lambda: name not in runs_of(cluster, plan))
    if not over:
        raise Stop(
            f"Workflow `{name}` should have ended, but still exists.",
            f"Look at it with `oc describe workflow {name} -n {space}`.",
        )
