"""What every target for a cluster shares: the pod, the config map, the claims, in OpenShift's restricted-v2 terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.names import content_hash, label
from runner.plan import Artifact, Machines, Place, Plan, Stage
from runner.problem import Stop
from runner.recipe.units import gib
from runner.targets import code, network
from runner.text import yaml_text

# An image runs as a user that nobody knows (restricted-v2: no passwd entry, group 0), so whatever wants to write to
# a home folder is told where it may. torch's compiler asks for the user's name and fails without one.
HOME = "/tmp/home"
CACHES = {
    "HOME": HOME,
    "USER": "recipe",
    "LOGNAME": "recipe",
    "TMPDIR": "/tmp",
    "XDG_CACHE_HOME": f"{HOME}/.cache",
    "TRITON_CACHE_DIR": f"{HOME}/.cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{HOME}/.cache/inductor",
}
CONFIG_DIR = "/etc/recipe-runner"
IMAGE_REGISTRY = "image-registry.openshift-image-registry.svc:5000"


def place(recipe: Any) -> Place:
    """The folders of a recipe's pods: configs from the config map, data from the image or a claim, results on the
    first claim, scratch on the pod's own disk.

    Raises Stop where the recipe names no cluster.
    """
    if "openshift" not in recipe.settings:
        raise Stop(
            f"The recipe `{recipe.name}` has no section `openshift`, so it cannot go to a cluster.",
            "Add the section; `recipes/survival.yaml` has one to copy.",
        )
    site = recipe.openshift
    first_mount = site.claims[0].mount.rstrip("/") if site.claims else ""
    data_dir = site.data_dir or f"/opt/recipe-runner/data/{recipe.name}"
    prepared = any(data_dir.startswith(f"{claim.mount.rstrip('/')}/") for claim in site.claims or ())
    return Place(
        config_dir=CONFIG_DIR,
        data_dir=data_dir,
        run_dir=site.output_dir or f"{first_mount}/{recipe.name}",
        scratch_dir="/tmp/recipe-runner",
        prepared=prepared,
        model_dir=_model_dir(recipe, first_mount) if prepared else None,
        run_key=recipe.fingerprint,
    )


def _model_dir(recipe: Any, mount: str) -> str | None:
    """The folder of a base model that is fetched ahead, one a model and revision, shared by recipes; None where the
    recipe has no model, or one that lies in a folder already."""
    if "base" not in recipe.settings.get("model", ()) or recipe.model.base.startswith("/"):
        return None
    model = recipe.model
    return f"{mount}/base-models/{label(model.base)}-{content_hash([model.base, model.revision], 8)}"


def job_name(plan: Plan) -> str:
    return plan.site.get("job_name") or plan.name


def queue(plan: Plan) -> dict[str, str]:
    """The label that puts a job into a Kueue queue."""
    return {"kueue.x-k8s.io/queue-name": plan.site["queue"]} if plan.site.get("queue") else {}


def annotations(spec: dict[str, Any], plan: Plan, stage: Stage) -> dict[str, str]:
    """Annotations of a job: what it was made from, and a hash of all that it says, which tells a changed recipe."""
    return {
        "recipe-runner/recipe": plan.name,
        "recipe-runner/stage": stage.name,
        "recipe-runner/content": content_hash([spec, plan.fingerprint]),
        "recipe-runner/run-dir": plan.place.run_dir,
    }


def foreseen(stage: Stage) -> dict[str, str]:
    """Annotations of a training job: the memory that the plan foresaw on each GPU and on each machine, for the day when
    that was not enough."""
    return {f"recipe-runner/planned-{what.replace('_', '-')}": gib(size) for what, size in stage.needs.items()}


def scraped(plan: Plan) -> dict[str, str]:
    """Annotations of a pod that tell Prometheus where training shows its metrics."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(plan.site["metrics_port"]),
    }


def image(plan: Plan) -> str:
    return plan.site.get("image") or f"{IMAGE_REGISTRY}/{plan.site['namespace']}/recipe-runner:latest"


def header(plan: Plan, stage: Stage) -> str:
    """The first lines of a job's file, for people."""
    machines, secret = stage.machines, plan.site.get("hub_token_secret")
    lines = [
        f"# Made by recipe-runner from the recipe `{plan.name}` ({plan.fingerprint}): {machines.nodes} × "
        f"{machines.gpus_per_node} {machines.gpu}. Change the recipe and render again."
    ]
    if secret:
        lines.append("# The hub's token comes from a Secret; put it into a file, and then, once:")
        namespace = plan.site["namespace"]
        lines.append(f"#   oc create secret generic {secret} --namespace {namespace} --from-file=token=FILE")
    return "\n".join(lines) + "\n"


def labels(plan: Plan, stage: Stage) -> dict[str, str]:
    """Labels that lead from anything on the cluster back to the recipe."""
    return {
        "app.kubernetes.io/name": label(plan.name),
        "app.kubernetes.io/managed-by": "recipe-runner",
        "recipe-runner/scenario": label(plan.scenario),
        "recipe-runner/stage": label(stage.name),
        "recipe-runner/fingerprint": plan.fingerprint,
    }


def config_map_name(plan: Plan, stage: Stage) -> str:
    """Named by content: a changed config is another map, and a running job keeps the one it started with."""
    return f"{job_name(plan)}-{content_hash([[file.path, file.text] for file in stage.files])}"


def config_map(plan: Plan, stage: Stage) -> Artifact:
    value = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(plan, stage),
            "namespace": plan.site["namespace"],
            "labels": labels(plan, stage),
        },
        "immutable": True,
        "data": {file.path: file.text for file in stage.files},
    }
    return Artifact("configmap.yaml", yaml_text(value))


def claims(plan: Plan) -> Artifact:
    """One PersistentVolumeClaim a claim. More than one machine writing one volume needs ReadWriteMany."""
    several = any(stage.machines.nodes > 1 for stage in plan.stages)
    documents = [
        yaml_text(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim["name"], "namespace": plan.site["namespace"]},
                "spec": {
                    "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
                    **({"storageClassName": claim["storage_class"]} if claim.get("storage_class") else {}),
                    "resources": {"requests": {"storage": f"{claim_gib(plan, claim)}Gi"}},
                },
            }
        )
        for claim in plan.site.get("claims") or ()
    ]
    return Artifact("claims.yaml", "---\n".join(documents))


def claim_gib(plan: Plan, claim: Mapping[str, Any]) -> int:
    """What a claim is asked for with, in GiB: what the recipe says, else what the estimate says."""
    return claim.get("size_gib") or plan.claims_gib.get(claim["name"], 50)


def kustomization(plan: Plan, files: list[str]) -> Artifact:
    """So that `oc apply -k FOLDER` takes what is for the cluster and leaves the rest."""
    text = yaml_text({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files})
    return Artifact(
        "kustomization.yaml",
        f"# oc apply -k . sends everything that `{plan.name}` needs to the cluster.\n{text}",
    )


def pod_template(plan: Plan, stage: Stage, container: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod of every machine of a stage, master or worker."""
    site = plan.site
    return {
        "metadata": {"labels": labels(plan, stage), "annotations": scraped(plan)},
        "spec": {
            **identity(plan),
            "securityContext": pod_security(),
            **where(stage.machines),
            **({"initContainers": init} if (init := code.init_containers(plan, image(plan), listed(CACHES))) else {}),
            "containers": [
                {
                    "name": container,
                    "image": image(plan),
                    "command": list(stage.command),
                    "env": variables(plan, environment(plan, stage)),
                    "ports": [*ports, {"name": "metrics", "containerPort": site["metrics_port"]}],
                    "resources": resources(plan, stage),
                    "securityContext": container_security(),
                    "volumeMounts": mounts(plan),
                }
            ],
            "volumes": volumes(plan, stage, config_map_name(plan, stage)),
        },
    }


def identity(plan: Plan) -> dict[str, Any]:
    """Who the pod is. Training asks nothing of the cluster, so it gets no key to it."""
    account = plan.site.get("service_account")
    return {"automountServiceAccountToken": False, **({"serviceAccountName": account} if account else {})}


def where(machines: Machines) -> dict[str, Any]:
    """Machines with the GPU that is asked for; a stage that trains nothing runs on any, and takes no GPU from others."""
    if not machines.gpus_per_node:
        return {}
    return {
        "nodeSelector": {"nvidia.com/gpu.product": machines.gpu},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }


def pod_security() -> dict[str, Any]:
    """What restricted-v2 asks of a pod. No user is named: the cluster gives each namespace its own."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def resources(plan: Plan, stage: Stage) -> dict[str, Any]:
    """What a machine is promised, and the most it may take. GPUs and network devices are never shared, so both are
    equal there."""
    machines = stage.machines
    gpus = {"nvidia.com/gpu": machines.gpus_per_node} if machines.gpus_per_node else {}
    devices = gpus | network.resources(plan, stage)
    return {
        "requests": {"cpu": str(machines.cpus), "memory": f"{machines.memory_gib}Gi"} | devices,
        "limits": {
            "cpu": str(machines.cpus_limit or machines.cpus),
            "memory": f"{machines.memory_limit_gib or machines.memory_gib}Gi",
        }
        | devices,
    }


def mounts(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"name": "config", "mountPath": plan.place.config_dir, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        *code.mounts(plan),
        *({"name": claim["name"], "mountPath": claim["mount"]} for claim in plan.site.get("claims") or ()),
    ]


def volumes(plan: Plan, stage: Stage, config: str) -> list[dict[str, Any]]:
    """The volumes behind `mounts`; config: the name of the config map."""
    return [
        {"name": "config", "configMap": {"name": config}},
        # /dev/shm is 64 MB otherwise, and NCCL and data loaders need more. It counts against the pod's memory.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{stage.shm_gib}Gi"}},
        {"name": "tmp", "emptyDir": {}},
        *code.volumes(plan),
        *(
            {"name": claim["name"], "persistentVolumeClaim": {"claimName": claim["name"]}}
            for claim in plan.site.get("claims") or ()
        ),
    ]


def variables(plan: Plan, plain: dict[str, str]) -> list[dict[str, Any]]:
    """Environment variables as a container lists them; the hub's token by reference, never by value."""
    secret = plan.site.get("hub_token_secret")
    found = listed(plain)
    if secret:
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}})
    return found


def listed(plain: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in plain.items()]


def environment(plan: Plan, stage: Stage) -> dict[str, str]:
    """The stage's environment and the writable folders. What the operator sets (ranks, addresses) stays out."""
    offline = {"HF_HUB_OFFLINE": "1"} if plan.place.prepared else {}
    metrics = {"RECIPE_METRICS_PORT": str(plan.site["metrics_port"])}
    around = offline | network.environment(plan, stage) | metrics | code.environment(plan)
    return writable(plan) | around | dict(stage.env)


def writable(plan: Plan) -> dict[str, str]:
    """Folders that a user whom nobody knows may write to; the hub's cache on the first claim, so that it stays."""
    claims = plan.site.get("claims") or ()
    models = claims[0]["mount"].rstrip("/") if claims else HOME
    return CACHES | {"HF_HOME": f"{models}/huggingface"}
