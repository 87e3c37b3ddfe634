"""Target pytorchjob: a stage as a PyTorchJob of the Kubeflow training operator, kubeflow.org/v1."""

from functools import partial

from runner.parts.jobs import batch, kubernetes, podspec
from runner.plan import Plan, Stage
from runner.tools.files import Artifact
from runner.tools.text import from_template, yaml_text

# The operator looks for a container and a container port of these names.
PYTORCH = "pytorch"
MASTER_PORT = {"name": "pytorchjob-port", "containerPort": 23456}

place = kubernetes.place
named = partial(kubernetes.is_default_target_of, kubernetes.PYTORCHJOB)


def job(plan: Plan, stage: Stage) -> list[Artifact]:
    """The files of a PyTorchJob, or of a Job if the stage trains nothing. plan: of this stage
    alone."""
    if not stage.trains:
        return batch.prepare(plan, stage)
    site = plan.site
    machines = stage.machines
    name = kubernetes.job_name(plan)
    container_fields = {
        "command": list(stage.command),
        "env": podspec.variables(plan, stage, podspec.environment(plan, stage)),
        "ports": [MASTER_PORT, {"name": "metrics", "containerPort": site.metrics_port}],
        "resources": podspec.resources(plan, stage),
    }
    # One pod spec for master and workers, without what the operator sets itself.
    meta = podspec.metadata(plan, stage, group="machines")
    folders = podspec.folders(plan, stage)
    template = podspec.pod(
        plan,
        meta,
        PYTORCH,
        folders,
        machines,
        container_fields,
        terminationGracePeriodSeconds=podspec.grace(stage),
    )
    replica = {"restartPolicy": site.restart_policy, "template": template}
    replicas = {"Master": {"replicas": 1, **replica}}
    if machines.nodes > 1:
        replicas["Worker"] = {"replicas": machines.nodes - 1, **replica}
    spec = kubernetes.fill_template(
        batch.TEMPLATES / "pytorchjob.yaml",
        nprocPerNode=str(max(1, machines.gpus_per_node)),
        cleanPodPolicy=site.clean_pod_policy,
        backoffLimit=site.backoff_limit * machines.nodes + 1,
        activeDeadlineSeconds=round(site.deadline_hours * 3600),
        pytorchReplicaSpecs=replicas,
    )
    text = yaml_text(kubernetes.job("kubeflow.org/v1", "PyTorchJob", spec, plan, stage))
    # The access to a job's pods. OpenShift AI itself restricts that to the pods of a TrainJob.
    policy_file = batch.TEMPLATES / kubernetes.POLICY_FILE
    policy = from_template(policy_file, name=name, namespace=site.namespace, port=site.metrics_port)
    return [
        *kubernetes.files(plan, stage, "pytorchjob.yaml", text, policy=policy),
        *batch.gate(plan, stage),
    ]
