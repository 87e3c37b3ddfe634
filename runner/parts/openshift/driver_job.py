"""The driver: a small Job that sends every stage and gate of a recipe in order, and holds nothing but its plan.

It mounts no claim, because a claim for one machine would block the training pods: the cluster shows the state of
everything, and each stage's own pod reads the claim.
"""

from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import PLAN_FILE, RUNNER, Machines, Plan, Stage
from runner.tools.files import Artifact

PART = "driver"
# Whoever walks in its place: a run of Kubeflow Pipelines, by the target of that name.
PIPELINE = "kfp"
# Who the driver is: an account with the rights of what it does, which `recipe site` writes.
ACCOUNT = "recipe-driver"
# Where every pod finds the cluster, and the account's key and the cluster's authority.
SERVER, KEYS = "https://kubernetes.default.svc", "/var/run/secrets/kubernetes.io/serviceaccount"
# How the driver ends where it has decided to, at a closed gate for example; it is not started again then.
DECIDED = 3
# New pods after which it is given up; those that a cluster takes off their machines do not count.
DEATHS = 20
# It asks and waits, for weeks.
SHARE = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def stage(plan: Plan, name: str = PART) -> Stage:
    """The driver as one more stage of a plan, which reads no other stage and which none reads. Its file is the whole
    plan."""
    return Stage(
        name=name,
        engine=RUNNER,
        config={},
        config_file="",
        data={},
        files=(Artifact(PLAN_FILE, plan.as_json()),),
        command=(),
        env={},
        machines=Machines(nodes=1, gpus_per_node=0, gpu="", memory_gib=1, cpus=1),
        shm_gib=0,
        folder=name,
    )


def command(plan: Plan, module: str = "runner.cluster.walk") -> list[str]:
    """A program in a pod that asks the cluster; plan: of that stage alone."""
    file = f"{plan.place.config_dir}/{PLAN_FILE}"
    return ["python", "-m", module, file, "--server", SERVER, "--keys", KEYS]


def job(plan: Plan, own: Stage, options: list[str]) -> Manifest:
    """The Job. plan: of the driver alone; own: its stage; options: of its command."""
    kept = ("config", "tmp", "code")
    mounts = [mount for mount in podspec.mounts(plan) if mount["name"] in kept]
    volumes = podspec.volumes(plan, own, kubernetes.config_map_name(plan, own))
    container = batch.small(plan, PART, [*command(plan), *options], mounts) | {
        "resources": SHARE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = batch.pod(plan, own, PART, container, [volume for volume in volumes if volume["name"] in kept])
    pod["spec"] |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    spec = {
        "backoffLimit": DEATHS,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": PART, "operator": "In", "values": [DECIDED]},
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": pod,
    }
    # Without the folder of a run: it writes none, and is no stage that a recipe has had.
    origin = {name: text for name, text in kubernetes.origin(spec, plan, own).items() if name != kubernetes.RUN_DIR}
    return batch.job(plan, own, kubernetes.job_name(plan), PART, spec, origin)
