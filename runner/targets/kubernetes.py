"""What every target for a cluster shares: the pod, the config map, the claims, in OpenShift's restricted-v2 terms."""

from __future__ import annotations

from typing import Any

from runner.names import content_hash, label
from runner.plan import Artifact, Machines, Place, Plan, Stage
from runner.problem import Stop
from runner.targets import code
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
    return Place(
        config_dir=CONFIG_DIR,
        data_dir=site.data_dir or f"/opt/recipe-runner/data/{recipe.name}",
        run_dir=site.output_dir or f"{first_mount}/{recipe.name}",
        scratch_dir="/tmp/recipe-runner",
    )


def job_name(plan: Plan) -> str:
    return plan.site.get("job_name") or plan.name


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
    return f"{plan.name}-{content_hash([[file.path, file.text] for file in stage.files])}"


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
                    "resources": {"requests": {"storage": f"{claim['size_gib']}Gi"}},
                },
            }
        )
        for claim in plan.site.get("claims") or ()
    ]
    return Artifact("claims.yaml", "---\n".join(documents))


def kustomization(plan: Plan, files: list[str]) -> Artifact:
    """So that `oc apply -k FOLDER` takes what is for the cluster and leaves the rest."""
    text = yaml_text({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files})
    return Artifact(
        "kustomization.yaml",
        f"# oc apply -k . sends everything that `{plan.name}` needs to the cluster.\n{text}",
    )


def pod_template(plan: Plan, stage: Stage, container: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod of every machine of a stage, master or worker."""
    site, machines = plan.site, stage.machines
    mounts = [{"name": claim["name"], "mountPath": claim["mount"]} for claim in site.get("claims") or ()]
    volumes = [
        {"name": claim["name"], "persistentVolumeClaim": {"claimName": claim["name"]}}
        for claim in site.get("claims") or ()
    ]
    image = site.get("image") or f"{IMAGE_REGISTRY}/{site['namespace']}/recipe-runner:latest"
    return {
        "metadata": {"labels": labels(plan, stage)},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            **_where(machines),
            **({"initContainers": init} if (init := code.init_containers(plan, image, _listed(CACHES))) else {}),
            "containers": [
                {
                    "name": container,
                    "image": image,
                    "command": list(stage.command),
                    "env": _listed(environment(plan, stage)),
                    **({"ports": ports} if ports else {}),
                    "resources": resources(machines),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "config", "mountPath": plan.place.config_dir, "readOnly": True},
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": "tmp", "mountPath": "/tmp"},
                        *code.mounts(plan),
                        *mounts,
                    ],
                }
            ],
            "volumes": [
                {"name": "config", "configMap": {"name": config_map_name(plan, stage)}},
                # /dev/shm is 64 MB otherwise, and NCCL and data loaders need more. It counts against the pod's memory.
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{stage.shm_gib}Gi"}},
                {"name": "tmp", "emptyDir": {}},
                *code.volumes(plan),
                *volumes,
            ],
        },
    }


def environment(plan: Plan, stage: Stage) -> dict[str, str]:
    """The stage's environment and the writable folders. What the operator sets (ranks, addresses) stays out."""
    claims = plan.site.get("claims") or ()
    models = claims[0]["mount"].rstrip("/") if claims else HOME
    return CACHES | {"HF_HOME": f"{models}/huggingface"} | code.environment(plan) | dict(stage.env)


def _where(machines: Machines) -> dict[str, Any]:
    """Machines with the GPU that is asked for; a stage that trains nothing runs on any, and takes no GPU from others."""
    if not machines.gpus_per_node:
        return {}
    return {
        "nodeSelector": {"nvidia.com/gpu.product": machines.gpu},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }


def resources(machines: Machines) -> dict[str, dict[str, Any]]:
    """What a machine is promised, and the most it may take. GPUs are never shared, so both are equal there."""
    gpus = {"nvidia.com/gpu": machines.gpus_per_node} if machines.gpus_per_node else {}
    return {
        "requests": {"cpu": str(machines.cpus), "memory": f"{machines.memory_gib}Gi"} | gpus,
        "limits": {
            "cpu": str(machines.cpus_limit or machines.cpus),
            "memory": f"{machines.memory_limit_gib or machines.memory_gib}Gi",
        }
        | gpus,
    }


def _listed(environment: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in environment.items()]
