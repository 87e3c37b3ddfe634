"""The pod that every target for a cluster starts, within OpenShift's restricted-v2; the code that
it clones; and how pods of several machines reach each other, over Ethernet and RDMA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.parts.jobs import kubernetes
from runner.parts.jobs.kubernetes import CODE_DIR, Folder, Manifest
from runner.plan import Machines, Plan, Stage, tracker
from runner.tools import packaged
from runner.tools.run_files import SEAL_KEY

if TYPE_CHECKING:
    from runner.recipe.sections import ImageCodeFromGit, OpenshiftNetwork, OpenshiftTolerations

VARIABLES: Mapping[str, dict[str, str]] = packaged.toml(__file__, "environment.toml")
CACHES = VARIABLES["caches"]
CONNECTION = VARIABLES["connection"]
REQUIRED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")  # of its keys
HOME = CACHES["HOME"]
OFFLINE = "HF_HUB_OFFLINE"  # set if everything is on the claim or in the image
# The volumes of a pod that are not claims.
_OWN_VOLUMES = ("config", "shm", "tmp", "code", "base-model", "mlflow-token")
MLFLOW_SINCE = (3, 4)  # the first version of OpenShift AI with an MLflow of its own
MLFLOW_ACCOUNT = "recipe-mlflow"  # the account that may write to it, if the recipe names none
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_SOURCES = [
    {"serviceAccountToken": {"path": "token"}},
    {"configMap": {"name": "openshift-service-ca.crt"}},
]
TOKEN = kubernetes.folder(
    "mlflow-token", TOKEN_FOLDER, {"projected": {"sources": _SOURCES}}, readOnly=True
)
# Home and caches of every container; and the folder with cloned code, for the container that clones
# it.
SCRATCH = kubernetes.folder("tmp", "/tmp", {"emptyDir": {}})
CLONED = kubernetes.folder("code", CODE_DIR, {"emptyDir": {}})
CODE = f"{CODE_DIR}/repository"
CLONER = "clone-code"  # the container that clones it
# Its arguments are the address, the commit and the folder. A restarted pod keeps the folder. Some
# servers send a commit only with its branch, so the second fetch takes everything.
CLONE = Path(__file__).with_name("clone.sh").read_text(encoding="utf-8")
LAUNCHERS = 10  # the seconds of a pod's grace that torchrun needs after its processes have ended
# The Secret with the key that seals evaluations. `recipe submit` creates one in each namespace.
KEY_SECRET = "recipe-runner"
KEY = "seal-key"  # its name in the Secret
# What restricted-v2 requires of a pod, which gets its user id from the namespace.
POD_SECURITY: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def metadata(plan: Plan, stage: Stage, group: str | None = None) -> Manifest:
    """Labels of a stage's pod, and annotations for Prometheus, for a secondary network and for
    Kueue's topology. group: the name that pods have in common for that topology, if they are
    several sets."""
    fields: dict[str, str | None] = {}
    if stage.machines.nodes > 1:
        fields["attachment"] = plan.site.network.attachment
        if plan.site.topology:
            fields |= {"topology": plan.site.topology, "group": group}
    labels = kubernetes.pod_labels(plan, stage)
    port = str(plan.site.metrics_port)
    return kubernetes.fill_template(
        Path(__file__).with_name("metadata.yaml"), labels=labels, port=port, **fields
    )


def pod(
    plan: Plan,
    meta: Manifest,
    name: str,
    folders: list[Folder],
    machines: Machines | None,
    container_fields: Manifest,
    **other_fields: object,
) -> Manifest:
    """The template of a pod with one container, and one before it that clones its code. machines:
    with the GPU that it needs; None for any. container_fields: as in `kubernetes.container`;
    other_fields: other blanks of `pod.yaml`."""
    fields = {
        **node_placement(plan, machines),
        **other_fields,
        "metadata": meta,
        "volumes": [volume for _, volume in folders],
    }
    fields |= {
        "container": kubernetes.container(plan, name, folders, **container_fields),
        "serviceAccountName": account(plan, folders),
    }
    if plan.code_from_git:
        # No more than the pod's own container, so the pod requests nothing in addition.
        share = {"cpu": "1", "memory": "1Gi"}
        # Otherwise git waits for a user name and password.
        env = as_env_list(recipe_variables(plan) | CACHES | {"GIT_TERMINAL_PROMPT": "0"})
        # Its last words are git's message, if it fails.
        git = {
            "resources": {"requests": share, "limits": share},
            "terminationMessagePolicy": kubernetes.LAST_WORDS,
            "env": env,
        }
        git["command"] = _clone(plan.code_from_git, CLONE)
        # It has the pod's own image, so that no second one is downloaded.
        fields["initContainers"] = [kubernetes.container(plan, CLONER, [CLONED, SCRATCH], **git)]
    return kubernetes.fill_template(
        Path(__file__).with_name("pod.yaml"), securityContext=POD_SECURITY, **fields
    )


def clone_first(plan: Plan, command: list[str]) -> list[str]:
    """A command that clones the code and then becomes the given one, for a job that takes no init
    container."""
    if plan.code_from_git is None:
        return command
    before = "# Never wait for a name and a password.\nexport GIT_TERMINAL_PROMPT=0\n"
    after = '# Leave address, commit and folder out,\nshift 3\n# go back,\ncd /\n# and become the training command.\nexec "$@"\n'
    return [*_clone(plan.code_from_git, f"{before}{CLONE}{after}"), *command]


def _clone(git: ImageCodeFromGit, script: str) -> list[str]:
    return ["/bin/sh", "-c", script, CLONER, git.url, git.commit, CODE]


def code_folders(plan: Plan) -> list[Folder]:
    """The pod's own container can read the code, and cannot change it."""
    if plan.code_from_git:
        return [kubernetes.folder("code", CODE_DIR, {"emptyDir": {}}, readOnly=True)]
    return []


def code_path(plan: Plan) -> dict[str, str]:
    """Makes Python look in the cloned code before it looks in the image."""
    if plan.code_from_git:
        return {"PYTHONPATH": CODE}
    return {}


def mlflow_account(plan: Plan) -> str | None:
    """The service account that may write to OpenShift AI's MLflow, if a stage does."""
    if any(tracking(plan, stage) for stage in plan.stages):
        return account(plan, [TOKEN])
    return None


def account(plan: Plan, folders: list[Folder]) -> str | None:
    """The service account of a pod; None for the namespace's own."""
    return plan.site.service_account or (MLFLOW_ACCOUNT if TOKEN in folders else None)


def grace(stage: Stage) -> int:
    """The seconds that a pod has for its last checkpoint, from SIGTERM to SIGKILL; 600 if no
    estimate says how long."""
    return stage.grace_seconds or 600


def _toleration(taint: OpenshiftTolerations) -> Manifest:
    operator = "Exists" if taint.value is None else "Equal"
    return {"operator": operator} | taint.plain()


def node_placement(plan: Plan, machines: Machines | None) -> Manifest:
    """The machines with the recipe's GPU and labels. A pod without a GPU runs anywhere, and blocks
    no GPU."""
    accepted = [_toleration(taint) for taint in plan.site.tolerations or ()]
    if machines is None or not machines.gpus_per_node:
        if accepted:
            return {"tolerations": accepted}
        return {}
    labels = {"nvidia.com/gpu.product": machines.gpu}
    if plan.site.node_selector:
        labels.update(plan.site.node_selector.plain())
    return {
        "nodeSelector": labels,
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            *accepted,
        ],
    }


def resources(plan: Plan, stage: Stage) -> Manifest:
    """The amounts of a stage's pod, with an RDMA device for each link; none over Ethernet."""
    network = _network(plan, stage)
    if network and network.kind == "rdma":
        return amounts(stage.machines, {network.rdma_resource: network.links or 1})
    return amounts(stage.machines)


def _network(plan: Plan, stage: Stage) -> OpenshiftNetwork | None:
    """The network between a stage's machines; None for a single machine."""
    if stage.machines.nodes > 1:
        return plan.site.network
    return None


def amounts(machines: Machines, other_devices: Manifest | None = None) -> Manifest:
    """Requests and limits. They are equal for GPUs and other devices, which are never shared."""
    promised = machines.requested_memory_gib or machines.memory_gib
    if machines.gpus_per_node:
        gpus = {"nvidia.com/gpu": machines.gpus_per_node}
    else:
        gpus = {}
    devices = {**gpus, **(other_devices or {})}
    return {
        "requests": {
            "cpu": str(machines.requested_cpus or machines.cpus),
            "memory": _quantity(promised),
        }
        | devices,
        "limits": {"cpu": str(machines.cpus), "memory": _quantity(machines.memory_gib)} | devices,
    }


def _quantity(gib: float) -> str:
    """Memory as Kubernetes writes it, a whole number, rounded down."""
    if gib == int(gib):
        return f"{gib:.0f}Gi"
    return f"{int(gib * 1024)}Mi"


def as_text(resources: Manifest) -> Manifest:
    """Amounts as text, because some servers refuse a number in a Job (tried with Kubernetes
    1.20)."""
    resources_as_text = {}
    for part, amounts in resources.items():
        resources_as_text[part] = {name: str(amount) for name, amount in amounts.items()}
    return resources_as_text


def config(plan: Plan, stage: Stage) -> Folder:
    """The folder with a stage's config map."""
    volume = {"configMap": {"name": kubernetes.config_map_name(plan, stage)}}
    return kubernetes.folder("config", plan.place.config_dir, volume, readOnly=True)


def folders(plan: Plan, stage: Stage) -> list[Folder]:
    """The folders of a stage's container."""
    stage_folders = [
        config(plan, stage),
        kubernetes.memory(stage.shm_gib),
        SCRATCH,
        *code_folders(plan),
        *claims(plan),
    ]
    if plan.model_image:
        # As for KServe, the files of a base model in an image are in its `/models`.
        volume = {"image": {"reference": plan.model_image}}
        stage_folders.append(
            kubernetes.folder(
                "base-model", kubernetes.MODEL_DIR, volume, readOnly=True, subPath="models"
            )
        )
    return [*stage_folders, *([TOKEN] if tracking(plan, stage) else [])]


def tracking(plan: Plan, stage: Stage) -> dict[str, str]:
    """The variables with which a stage reports to OpenShift AI's MLflow; none if it reports nowhere
    or elsewhere."""
    elsewhere = (
        plan.site.tracking_secret or kubernetes.version_numbers(plan.site.version) < MLFLOW_SINCE
    )
    if elsewhere or tracker(stage.config) != "mlflow":
        return {}
    return VARIABLES["mlflow"] | {"MLFLOW_WORKSPACE": plan.site.namespace}


def claims(plan: Plan, read_only: bool = False) -> list[Folder]:
    """A claim's volume has the claim's name, unless the pod has another volume of that name."""
    claim_folders = list[Folder]()
    mount_options = {"readOnly": True} if read_only else {}
    for claim in plan.claims:
        volume = {"persistentVolumeClaim": {"claimName": claim.name}}
        if claim.name in _OWN_VOLUMES:
            called = f"{claim.name}-claim"
        else:
            called = claim.name
        claim_folders.append(kubernetes.folder(called, claim.mount, volume, **mount_options))
    return claim_folders


def variables(plan: Plan, stage: Stage, plain: dict[str, str]) -> list[Manifest]:
    """Environment variables of a container. Tokens and keys are references to Secrets; without the
    hub, no hub token."""
    entries = as_env_list(recipe_variables(plan) | plain) + seal_key(plan)
    secret = plan.site.hub_token_secret
    if secret and OFFLINE not in plain:
        entries.append(_from_secret("HF_TOKEN", secret, "token", needed=True))
    secret = plan.site.tracking_secret
    if secret:
        # A Secret has the keys of Weights & Biases or MLflow; the others are missing.
        tracking_keys = ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")
        for name in tracking_keys:
            entries.append(_from_secret(name, secret, name))
    return entries + connection(plan, stage)


def connection(plan: Plan, stage: Stage | None = None) -> list[Manifest]:
    """The keys of the data connection, for pods that read from it or write there: those of stages
    without a GPU, and with a mirror all. stage: None for a pod that only reads or writes the
    mirror."""
    secret = plan.site.connection
    if not secret or not (plan.site.mirror or (stage and not stage.trains)):
        return []
    # A connection to Amazon itself needs no endpoint.
    return [
        _from_secret(name, secret, key, needed=key in REQUIRED) for key, name in CONNECTION.items()
    ]


def _from_secret(variable: str, secret: str, key: str, needed: bool = False) -> Manifest:
    options = {} if needed else {"optional": True}
    return {
        "name": variable,
        "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **options}},
    }


def seal_key(plan: Plan) -> list[Manifest]:
    """The key that seals evaluations, for pods of a plan with gates. The pod itself reports a
    missing key."""
    if plan.has_gates:
        return [_from_secret(SEAL_KEY, KEY_SECRET, KEY)]
    return []


def recipe_variables(plan: Plan) -> dict[str, str]:
    """The recipe's own environment variables, as text."""
    return {name: str(value) for name, value in (plan.site.environment or {}).items()}


def as_env_list(plain: dict[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in plain.items()]


def environment(plan: Plan, stage: Stage) -> dict[str, str]:
    """The stage's environment and the writable folders, without what the operator sets (ranks,
    addresses)."""
    # A stage that prepares data itself needs the hub.
    if (plan.place.prepared or stage.model) and stage.trains:
        offline = {OFFLINE: "1"}
    else:
        offline = {}
    site = plan.site
    ports = {
        "RECIPE_METRICS_PORT": str(site.metrics_port),
        "RECIPE_PROGRESS_PORT": str(site.progress_port),
    }
    # The default of torchrun is 30 s after it has passed on SIGTERM (torch 2.13).
    if stage.trains:
        patience = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace(stage) - LAUNCHERS)}
    else:
        patience = {}
    network = _network(plan, stage)
    if network:
        settings = network.plain()
        nccl = {name: form.format(**settings) for name, form in VARIABLES[network.kind].items()}
    else:
        nccl = {}
    own_variables = offline | patience | nccl | ports | tracking(plan, stage) | code_path(plan)
    return writable(plan) | own_variables | dict(stage.env)


def writable(plan: Plan) -> dict[str, str]:
    """Folders that any user id can write to. The hub's cache is on the first claim, so that it
    persists."""
    claims = plan.claims
    return CACHES | {"HF_HOME": f"{claims[0].mount if claims else HOME}/huggingface"}
