"""Target trainjob: a stage as a TrainJob of Kubeflow Trainer v2, trainer.kubeflow.org/v1alpha1, as OpenShift AI 3.2 to
3.5 and 3.6 have it. The two forms have the same content in different places: additions to the runtime's pod are under
`podTemplateOverrides` until 3.5, and under `runtimePatches` from 3.6 on. The trainer itself injects PET_* and refuses
them from us.
"""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from runner.parts.jobs import batch, code, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.tools.files import Artifact
from runner.tools.problem import Stop
from runner.tools.text import yaml_text

KIND = kubernetes.TRAINJOB
# The runtime's job and its container, and the runtime that comes with OpenShift AI.
NODE = "node"
RUNTIME = "torch-distributed"
SINCE = (3, 2)
# Since when OpenShift AI's own NetworkPolicy protects the pods of each (opendatahub-io/trainer,
# pkg/rhai/networkpolicy).
WALLED_SINCE = (3, 3)
# Since when Kueue knows a TrainJob (the Red Hat build since 1.2), and since when it asks one for the form of 3.6.
QUEUED_SINCE, STUCK_SINCE = (0, 14), (0, 17)
# Who makes the patch; it distinguishes the patches of one job.
MANAGER = "recipe-runner.io/render"

# The folders of the recipe's pods.
place = kubernetes.place


def named(recipe: Recipe) -> bool:
    return kubernetes.takes(recipe, KIND)


def job(plan: Plan, stage: Stage) -> list[Artifact]:
    """What trains as a TrainJob, everything else as a Job, with all that goes with it. plan: of this stage alone.
    Raises Stop if the recipe's version of OpenShift AI has no TrainJob."""
    if not stage.trains:
        return batch.prepare(plan, stage)
    if kubernetes.version(plan.site) < SINCE:
        raise Stop(
            f"OpenShift AI {plan.site['version']} has no TrainJob; 3.2 introduced it.",
            "Render for `pytorchjob`, or correct `openshift.version`.",
        )
    made = kubernetes.job("trainer.kubeflow.org/v1alpha1", "TrainJob", _trainjob_spec(plan, stage), plan, stage)
    # OpenShift AI's Trainer then asks the first pod how far it is, and lets it through to that port (opendatahub-io/trainer,
    # pkg/rhai/constants: "true" and nothing else).
    made["metadata"]["annotations"] |= {
        "trainer.opendatahub.io/progression-tracking": "true",
        "trainer.opendatahub.io/metrics-port": str(plan.site["progress_port"]),
        "trainer.opendatahub.io/metrics-poll-interval": f"{plan.site['progress_seconds']}s",
    }
    text = _unsaid(plan, stage) + yaml_text(made)
    return [*kubernetes.folder(plan, stage, "trainjob.yaml", text), *batch.gate(plan, stage)]


def _unsaid(plan: Plan, stage: Stage) -> str:
    """What the recipe says and a TrainJob cannot: it is the runtime's to decide."""
    settings = ["restart_policy", "clean_pod_policy", "backoff_limit"]
    if not kubernetes.patched(plan.site):
        settings.append("deadline_hours")
    said = f"# A TrainJob has no place for {', '.join(settings)}; the runtime `{RUNTIME}` decides them.\n"
    if not kubernetes.patched(plan.site):
        said += (
            f"# Nor for the {podspec.grace(stage)} s that a pod may take for its last checkpoint when the cluster wants its machine: it has\n"
            "# the runtime's `terminationGracePeriodSeconds`, which is 30 where nothing is said. OpenShift AI 3.6 has a place for it.\n"
            "# Nor for a root file system that its pods cannot write to; 3.6 has a place for that, too.\n"
        )
    if kubernetes.movable(plan):
        said += (
            "# Nor for when the image is fetched: a machine that has an older build of this tag may go on with it. Write the\n"
            "# image by its digest (NAME@sha256:…) under `openshift.image`, and no other one is taken.\n"
        )
    return said + "".join(f"# {line}\n" for line in wrap(stuck(plan.site), 120))


def stuck(site: Mapping[str, Any]) -> str:
    """The message if the recorded versions do not work together: Kueue before 0.14 knows no TrainJob, and from 0.17 on
    starts one by `runtimePatches`, which Trainer 2.1 does not know (kueue#11931). Empty if that is not so, or not
    known."""
    if not (site.get("queue") and site.get("kueue")):
        return ""
    if kubernetes.numbers(site["kueue"]) < QUEUED_SINCE:
        return f"Kueue {site['kueue']} does not know TrainJobs, so the queue `{site['queue']}` does not hold it; 0.14 (Red Hat build 1.2) introduced that. Use the target `pytorchjob`, or ask the cluster's admin for a newer Kueue."
    if kubernetes.patched(site) or kubernetes.numbers(site["kueue"]) < STUCK_SINCE:
        return ""
    return f"Kueue {site['kueue']} admits a TrainJob of OpenShift AI {site['version']} (Trainer 2.1) but starts no pod of it (kueue#11931). Use the target `pytorchjob`, or ask the cluster's admin for Trainer 2.2 or newer, or Kueue 0.16."


def _trainjob_spec(plan: Plan, stage: Stage) -> Manifest:
    trainer = {
        "image": kubernetes.image(plan),
        "command": code.wrapped(plan, list(stage.command)),
        "env": podspec.variables(plan, podspec.environment(plan, stage)),
        "numNodes": stage.machines.nodes,
        "numProcPerNode": max(1, stage.machines.gpus_per_node),
        "resourcesPerNode": podspec.resources(plan, stage),
    }
    spec: Manifest = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": RUNTIME},
        "trainer": trainer,
    }
    if kubernetes.patched(plan.site):
        seconds = round(plan.site["deadline_hours"] * 3600)
        return spec | {"activeDeadlineSeconds": seconds, "runtimePatches": [_patch(plan, stage)]}
    return spec | {"podTemplateOverrides": [{"targetJobs": [{"name": NODE}], **_pod(plan, stage)}]}


def _patch(plan: Plan, stage: Stage) -> Manifest:
    """The form of 3.6: a patch of the runtime, which also has room for the security context."""
    pod = _pod(plan, stage)
    pod["spec"]["securityContext"] = podspec.pod_security()
    pod["spec"]["terminationGracePeriodSeconds"] = podspec.grace(stage)
    pod["spec"]["containers"][0]["securityContext"] = podspec.container_security()
    node = {"name": NODE, "template": {"spec": {"template": pod}}}
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}


def _pod(plan: Plan, stage: Stage) -> Manifest:
    """What the runtime's pod gets on top. Until 3.5 the security context has no place here; restricted-v2 fills in
    the same values when it admits the pod."""
    account = plan.site.get("service_account")
    return {
        "metadata": podspec.metadata(plan, stage),
        "spec": {
            **({"serviceAccountName": account} if account else {}),
            **podspec.where(plan, stage.machines),
            "containers": [{"name": NODE, "volumeMounts": _mounts(plan, stage)}],
            "volumes": podspec.volumes(plan, stage),
        },
    }


def _mounts(plan: Plan, stage: Stage) -> list[Manifest]:
    """A TrainJob takes no init container, so the trainer itself clones its code and must write there."""
    return [
        {key: value for key, value in mount.items() if mount["mountPath"] != code.MOUNT or key != "readOnly"}
        for mount in podspec.mounts(plan, stage)
    ]
