"""Target trainjob: a stage as a TrainJob of Kubeflow Trainer v2, trainer.kubeflow.org/v1alpha1, for
OpenShift AI 3.2 to 3.6. Additions to the runtime's pod are under `podTemplateOverrides` until 3.5,
and under `runtimePatches` from 3.6 on. The trainer sets PET_* itself, and refuses them from us."""

from __future__ import annotations

from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING

from runner.parts.jobs import batch, kubernetes, podspec
from runner.plan import Plan, Stage
from runner.tools.files import Artifact
from runner.tools.problem import Stop
from runner.tools.text import template, yaml_text

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

RUNTIME = "torch-distributed"  # of OpenShift AI; its job and its container are called `node`
SINCE = (3, 2)
# Since this version, OpenShift AI's NetworkPolicy protects pods (opendatahub-io/trainer,
# pkg/rhai/networkpolicy).
WALLED_SINCE = (3, 3)
QUEUED_SINCE = (0, 14)  # the first Kueue that supports a TrainJob (Red Hat build 1.2)
STUCK_SINCE = (0, 17)  # the first Kueue that requires the form of 3.6

place = kubernetes.place
named = partial(kubernetes.is_default_target_of, kubernetes.TRAINJOB)


def job(plan: Plan, stage: Stage) -> list[Artifact]:
    """The files of a TrainJob, or of a Job if the stage trains nothing. plan: of this stage alone.
    Raises Stop if the recipe's version of OpenShift AI has no TrainJob."""
    if not stage.trains:
        return batch.prepare(plan, stage)
    if kubernetes.version_numbers(plan.site.version) < SINCE:
        raise Stop(
            f"OpenShift AI {plan.site.version} has no TrainJob; 3.2 introduced it.",
            "Render for `pytorchjob`, or correct `openshift.version`.",
        )
    folders = podspec.folders(plan, stage)
    # The trainer clones its code itself, because a TrainJob takes no init container; so it must
    # write there.
    mounts = []
    for mount, _ in folders:
        mounts.append(podspec.CLONED[0] if mount["mountPath"] == kubernetes.CODE_DIR else mount)
    fields = {
        **podspec.node_placement(plan, stage.machines),
        "runtime": RUNTIME,
        "image": kubernetes.image(plan),
        "command": podspec.clone_first(plan, list(stage.command)),
        "env": podspec.variables(plan, stage, podspec.environment(plan, stage)),
        "numNodes": stage.machines.nodes,
        "numProcPerNode": max(1, stage.machines.gpus_per_node),
        "resourcesPerNode": podspec.resources(plan, stage),
        "metadata": podspec.metadata(plan, stage),
        "serviceAccountName": podspec.account(plan, folders),
        "volumeMounts": mounts,
        "volumes": [volume for _, volume in folders],
    }
    patched = kubernetes.patched(plan.site.version)
    if patched:
        file = batch.TEMPLATES / "trainjob.yaml"
        fields |= {
            "activeDeadlineSeconds": round(plan.site.deadline_hours * 3600),
            "podSecurityContext": podspec.POD_SECURITY,
            "containerSecurityContext": kubernetes.CONTAINER_SECURITY,
            "terminationGracePeriodSeconds": podspec.grace(stage),
        }
    else:
        file = batch.TEMPLATES / "trainjob-3.5.yaml"
    spec = kubernetes.fill_template(file, **fields)
    train_job = kubernetes.job("trainer.kubeflow.org/v1alpha1", "TrainJob", spec, plan, stage)
    # OpenShift AI's Trainer then reads the progress from this port of the first pod
    # (opendatahub-io/trainer, pkg/rhai/constants: exactly "true").
    train_job["metadata"]["annotations"] |= {
        "trainer.opendatahub.io/progression-tracking": "true",
        "trainer.opendatahub.io/metrics-port": str(plan.site.progress_port),
        "trainer.opendatahub.io/metrics-poll-interval": f"{plan.site.progress_seconds}s",
    }
    header_fields = {
        "patched": patched,
        "stuck": stuck(plan.site),
        "runtime": RUNTIME,
        "grace": podspec.grace(stage),
        "image": kubernetes.image(plan),
    }
    functions = {"pull": kubernetes.pull, "wrap": wrap}
    text = template(batch.TEMPLATES / "trainjob.txt.jinja", **functions).render(
        header_fields
    ) + yaml_text(train_job)
    return [*kubernetes.files(plan, stage, "trainjob.yaml", text), *batch.gate(plan, stage)]


def stuck(site: Openshift) -> str:
    """The message if the recorded versions do not work together, else empty. Kueue before 0.14 does
    not support TrainJobs, and from 0.17 on it starts one by `runtimePatches`, which Trainer 2.1
    does not support (kueue#11931)."""
    if not (site.queue and site.kueue):
        return ""
    if kubernetes.version_numbers(site.kueue) < QUEUED_SINCE:
        return f"Kueue {site.kueue} does not support TrainJobs, so the queue `{site.queue}` would not hold it. Support begins with 0.14 (Red Hat build 1.2). Use the target `pytorchjob`, or ask the cluster's admin for a newer Kueue."
    if kubernetes.patched(site.version) or kubernetes.version_numbers(site.kueue) < STUCK_SINCE:
        return ""
    return f"Kueue {site.kueue} admits a TrainJob of OpenShift AI {site.version} (Trainer 2.1) but starts no pod of it (kueue#11931). Use the target `pytorchjob`, or ask the cluster's admin for Trainer 2.2 or newer, or Kueue 0.16."
