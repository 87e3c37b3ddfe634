"""The pod that every target for a cluster starts, in OpenShift's restricted-v2 terms; and how pods of several machines reach each
other, over plain Ethernet and RDMA."""

from runner.parts.jobs import code, kubernetes
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import Machines, Plan, Stage
from runner.tools.run_files import SEAL_KEY

# An image runs as a user id without a name (restricted-v2: no passwd entry, group 0), so programs that write to a home
# folder get one. torch's compiler asks for the user's name and fails without one.
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


# Set where everything is on the claim or in the image.
OFFLINE = "HF_HUB_OFFLINE"
# What a pod calls its volumes beside claims.
_OWN_VOLUMES = ("config", "shm", "tmp", "code")

# What Weights & Biases and MLflow read from the environment.
TRACKING = ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")

# Between a cluster's SIGTERM to a training pod and its SIGKILL, where no estimate says how long a checkpoint takes; seconds. One
# that is done earlier ends earlier.
USUAL_GRACE = 600
# Of it, what torchrun keeps for itself after its processes have ended.
LAUNCHERS = 10

# The Secret whose KEY is what measured numbers are sealed with. `recipe submit` makes it, one for each namespace.
KEY_SECRET, KEY = "recipe-runner", "seal-key"


def metadata(plan: Plan, stage: Stage) -> Manifest:
    """By what the pod of a stage is found, read and joined to a network."""
    annotations = kubernetes.scraped(plan) | joined(plan, stage)
    return {"labels": kubernetes.pod_labels(plan, stage), "annotations": annotations}


def pod_template(plan: Plan, stage: Stage, container: str, ports: list[Manifest]) -> Manifest:
    """The pod of every machine of a stage, master or worker."""
    site = plan.site
    return {
        "metadata": metadata(plan, stage),
        "spec": {
            **identity(plan),
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": grace(stage),
            **where(plan, stage.machines),
            **cloned(plan),
            "containers": [
                {
                    "name": container,
                    **kubernetes.pulled(plan),
                    "command": list(stage.command),
                    "env": variables(plan, environment(plan, stage)),
                    "ports": [*ports, {"name": "metrics", "containerPort": site["metrics_port"]}],
                    "resources": resources(plan, stage),
                    "securityContext": container_security(),
                    "volumeMounts": mounts(plan, stage),
                }
            ],
            "volumes": volumes(plan, stage),
        },
    }


def cloned(plan: Plan) -> Manifest:
    """The init container of a pod whose code comes by git."""
    init = code.init_containers(plan, listed(stated(plan) | CACHES))
    return {"initContainers": init} if init else {}


def grace(stage: Stage) -> int:
    """Seconds that a pod has for its last checkpoint once the cluster asks it to end."""
    return stage.grace_seconds or USUAL_GRACE


def identity(plan: Plan) -> Manifest:
    """Who the pod is. Training asks nothing of the cluster, so it gets no key to it."""
    account = plan.site.get("service_account")
    return {"automountServiceAccountToken": False, **({"serviceAccountName": account} if account else {})}


def where(plan: Plan, machines: Machines | None) -> Manifest:
    """Machines with the GPU and the labels that the recipe names; a pod without a GPU runs on any, and takes no GPU from others."""
    accepted = [
        {"operator": "Equal" if "value" in taint else "Exists"} | taint for taint in plan.site.get("tolerations") or ()
    ]
    if machines is None or not machines.gpus_per_node:
        return {"tolerations": accepted} if accepted else {}
    return {
        "nodeSelector": {"nvidia.com/gpu.product": machines.gpu} | (plan.site.get("node_selector") or {}),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, *accepted],
    }


def pod_security() -> Manifest:
    """What restricted-v2 asks of a pod. No user is named: the cluster gives each namespace its own."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> Manifest:
    """What restricted-v2 asks of a container, and that it writes to volumes alone."""
    return kubernetes.CLOSED | {"readOnlyRootFilesystem": True}


def resources(plan: Plan, stage: Stage) -> Manifest:
    """Requests and limits of a pod of a stage."""
    return amounts(stage.machines, rdma(plan, stage))


def amounts(machines: Machines, others: Manifest | None = None) -> Manifest:
    """Requests and limits. GPUs and other devices are never shared, so both are equal there."""
    promised = machines.requested_memory_gib or machines.memory_gib
    gpus = {"nvidia.com/gpu": machines.gpus_per_node} if machines.gpus_per_node else {}
    devices = gpus | (others or {})
    return {
        "requests": {"cpu": str(machines.requested_cpus or machines.cpus), "memory": _quantity(promised)} | devices,
        "limits": {"cpu": str(machines.cpus), "memory": _quantity(machines.memory_gib)} | devices,
    }


def _quantity(gib: float) -> str:
    """Memory as Kubernetes writes it, in whole numbers, and never more than was meant."""
    return f"{gib:.0f}Gi" if gib == int(gib) else f"{int(gib * 1024)}Mi"


def as_text(resources: Manifest) -> Manifest:
    """Amounts as text: servers whose schema has them so (tried with Kubernetes 1.20) refuse a number in a Job."""
    return {part: {name: str(amount) for name, amount in amounts.items()} for part, amounts in resources.items()}


def config(plan: Plan, stage: Stage) -> tuple[Manifest, Manifest]:
    """The mount of a stage's config map, and its volume."""
    volume = {"name": "config", "configMap": {"name": kubernetes.config_map_name(plan, stage)}}
    return {"name": "config", "mountPath": plan.place.config_dir, "readOnly": True}, volume


def mounts(plan: Plan, stage: Stage) -> list[Manifest]:
    return [
        config(plan, stage)[0],
        {"name": "shm", "mountPath": "/dev/shm"},
        *own_mounts(plan),
        *claim_mounts(plan),
    ]


def own_mounts(plan: Plan) -> list[Manifest]:
    """What every container has: scratch, where home and caches are, and code by git."""
    return [{"name": "tmp", "mountPath": "/tmp"}, *code.mounts(plan)]


def own_volumes(plan: Plan) -> list[Manifest]:
    return [{"name": "tmp", "emptyDir": {}}, *code.volumes(plan)]


def claim_mounts(plan: Plan, read_only: bool = False) -> list[Manifest]:
    how = {"readOnly": True} if read_only else {}
    return [
        {"name": _volume(claim["name"]), "mountPath": claim["mount"]} | how for claim in plan.site.get("claims") or ()
    ]


def claim_volumes(plan: Plan) -> list[Manifest]:
    return [
        {"name": _volume(claim["name"]), "persistentVolumeClaim": {"claimName": claim["name"]}}
        for claim in plan.site.get("claims") or ()
    ]


def _volume(claim: str) -> str:
    """The volume of a claim: called as it is, unless a pod has another volume of that name."""
    return f"{claim}-claim" if claim in _OWN_VOLUMES else claim


def volumes(plan: Plan, stage: Stage) -> list[Manifest]:
    """The volumes behind `mounts`."""
    return [
        config(plan, stage)[1],
        # /dev/shm is 64 MB otherwise, and NCCL and data loaders need more. It counts against the pod's memory.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{stage.shm_gib}Gi"}},
        *own_volumes(plan),
        *claim_volumes(plan),
    ]


def variables(plan: Plan, plain: dict[str, str]) -> list[Manifest]:
    """Environment variables as a container lists them; tokens by reference, never by value, and of the hub not for who does not
    go there."""
    entries = listed(stated(plan) | plain) + seal_key(plan)
    if (secret := plan.site.get("hub_token_secret")) and OFFLINE not in plain:
        entries.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}})
    if secret := plan.site.get("tracking_secret"):
        # A Secret holds those of one tool; the others are not there.
        entries += [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, "optional": True}}}
            for name in TRACKING
        ]
    return entries


def seal_key(plan: Plan) -> list[Manifest]:
    """The key that measured numbers are sealed with, for pods of a plan with gates. If it is missing the pod says so
    itself."""
    key = {"name": KEY_SECRET, "key": KEY, "optional": True}
    return [{"name": SEAL_KEY, "valueFrom": {"secretKeyRef": key}}] if plan.has_gates else []


def stated(plan: Plan) -> dict[str, str]:
    """The environment variables that the recipe names, as text."""
    return {name: str(value) for name, value in (plan.site.get("environment") or {}).items()}


def listed(plain: dict[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in plain.items()]


def environment(plan: Plan, stage: Stage) -> dict[str, str]:
    """The stage's environment and the writable folders. What the operator sets (ranks, addresses) stays out."""
    # What prepares data itself must reach the hub.
    offline = {OFFLINE: "1"} if (plan.place.prepared or stage.model) and stage.trains else {}
    told = {
        "RECIPE_METRICS_PORT": str(plan.site["metrics_port"]),
        "RECIPE_PROGRESS_PORT": str(plan.site["progress_port"]),
    }
    # torchrun otherwise ends its processes 30 s after it has passed SIGTERM on (torch 2.13).
    patience = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace(stage) - LAUNCHERS)} if stage.trains else {}
    around = offline | patience | nccl(plan, stage) | told | code.environment(plan)
    return writable(plan) | around | dict(stage.env)


def writable(plan: Plan) -> dict[str, str]:
    """Folders that an arbitrary user id (restricted-v2) can write to; the hub's cache is on the first claim, so that it
    persists."""
    claims = plan.site.get("claims") or ()
    models = claims[0]["mount"] if claims else HOME
    return CACHES | {"HF_HOME": f"{models}/huggingface"}


def nccl(plan: Plan, stage: Stage) -> dict[str, str]:
    """NCCL's variables (NVIDIA NCCL documentation, Environment Variables). A single machine has no one to talk to."""
    network = plan.site.get("network")
    if stage.machines.nodes == 1 or network is None:
        return {}
    over = {"NCCL_SOCKET_IFNAME": network["interface"]}
    if network["kind"] == "rdma":
        # GPUs may write past the processor where card and GPU hang on the same switch.
        return over | {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": network["rdma_devices"], "NCCL_NET_GDR_LEVEL": "PHB"}
    # Without it NCCL looks for InfiniBand first, and on some machines finds a card that the pod may not use.
    return over | {"NCCL_IB_DISABLE": "1"}


def joined(plan: Plan, stage: Stage) -> dict[str, str]:
    """What joins a pod to a secondary network, if the recipe names one (Multus, Kubernetes Network Custom Resource
    Definition De-facto Standard v1.3, section 4.1.1)."""
    attachment = (plan.site.get("network") or {}).get("attachment")
    return {"k8s.v1.cni.cncf.io/networks": attachment} if attachment and stage.machines.nodes > 1 else {}


def rdma(plan: Plan, stage: Stage) -> dict[str, int]:
    """The RDMA devices that a pod asks for, one a link; nothing over Ethernet."""
    network = plan.site.get("network")
    if stage.machines.nodes == 1 or network is None or network["kind"] != "rdma":
        return {}
    return {network["rdma_resource"]: network.get("links") or 1}
