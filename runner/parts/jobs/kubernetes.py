"""What all targets for a cluster share: folders, names, labels, config map and claims. `podspec`
has the pod."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from runner import __version__
from runner.check.origins import Computed
from runner.plan import Place, Plan, Stage, tracker
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.recipe.units import gib
from runner.scenarios import planned
from runner.scenarios.shared import common
from runner.tools.files import Artifact, content_hash, in_image
from runner.tools.problem import Stop
from runner.tools.text import label, macros, refuse_unused, template, yaml_text

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# An object of Kubernetes' API, or a part of one. It is never changed in place.
Manifest = Mapping[str, Any]
Folder = tuple[Manifest, Manifest]  # a folder of a container: its mount, and the volume behind it

PIPELINE = "kfp"  # the target of Kubeflow Pipelines, whose runs are the alternative to the driver
CONFIG_DIR = "/etc/recipe-runner"
CODE_DIR = "/opt/recipe-code"  # where a pod clones its code
# The base of a recipe's relative paths: in the image (container/Containerfile), and in a clone of
# this project.
IMAGE_FILES = "/opt/recipe-runner/recipes"
CLONED_FILES = f"{CODE_DIR}/repository/recipes"
MODEL_DIR = "/opt/base-model"  # where pods mount a base model from an image
# The folder of what `recipe submit` sends, below the results folder on the claim.
SENT_FILES = "files"
# Annotations: a hash of everything that a stage's result depends on, and the folder of its results.
KEY = "recipe-runner/key"
RUN_DIR = "recipe-runner/run-dir"
PLANNED = "recipe-runner/planned-"  # the annotations with planned figures begin with this
# The pods' image: a label with its short name, an annotation with its full name.
IMAGE = "recipe-runner/image"
CLAIMS_FILE = "claims.yaml"
CONFIG_FILE = "configmap.yaml"
POLICY_FILE = "networkpolicy.yaml"
# The end of a container's log is the reason for its end, if it leaves no other.
LAST_WORDS = "FallbackToLogsOnError"
# What restricted-v2 requires of a container; and the same for one that writes only to volumes.
CLOSED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CONTAINER_SECURITY: Manifest = {**CLOSED, "readOnlyRootFilesystem": True}
SHARED = "ReadWriteMany"  # the mode of a claim for several machines
SINGLE = "ReadWriteOnce"  # that of one for a single machine
IMAGE_REGISTRY = "image-registry.openshift-image-registry.svc:5000"
# The parts of a checkout that a build does not need. `oc` leaves out only `.git`; an environment
# has 5 to 8 GB.
UNSENT = r"(^|/)(\.git|\.venv|build|runs)(/|$)"
# The targets.
PYTORCHJOB = "pytorchjob"
TRAINJOB = "trainjob"
# From this version of OpenShift AI on, a TrainJob takes `runtimePatches`, and there is no
# PyTorchJob.
PATCHES_SINCE = (3, 6)


def default(version: str) -> str:
    """The target for a cluster of that version of OpenShift AI."""
    if patched(version):
        return TRAINJOB
    return PYTORCHJOB


def is_default_target_of(target: str, recipe: Recipe) -> bool:
    site: Openshift | None = recipe.settings.get("openshift")
    return site is not None and default(site.version) == target


def patched(version: str) -> bool:
    """Whether a TrainJob of that version of OpenShift AI takes `runtimePatches`."""
    return version_numbers(version) >= PATCHES_SINCE


def version_numbers(text: str) -> tuple[int, int]:
    """A version as two numbers, so that 3.10 comes after 3.6."""
    major, minor = text.split(".")
    return int(major), int(minor)


def place(recipe: Recipe) -> Place:
    """The folders of a recipe's pods. Raises Stop if the recipe names no cluster."""
    if "openshift" not in recipe.settings:
        raise Stop(
            f"The recipe `{recipe.name}` has no section `openshift`, so it cannot run on a cluster.",
            "Add the section; `recipes/survival.yaml` has an example.",
        )
    site: Openshift = recipe.settings["openshift"]
    if site.claims:
        first_mount = site.claims[0].mount
    else:
        first_mount = ""
    run_dir = site.output_dir or f"{first_mount}/{recipe.name}"
    embedded = f"/opt/recipe-runner/data/{recipe.name}"
    data_dir = site.data_dir or (embedded if site.data_from == "image" else f"{run_dir}/data")
    files_dirs = {"image": IMAGE_FILES, "git": CLONED_FILES, "claim": f"{run_dir}/{SENT_FILES}"}
    base = recipe.settings.get("model", {}).get("base")
    model_dir = None
    if in_image(base):
        model_dir = MODEL_DIR
    elif (
        recipe.on_claim(run_dir)
        and base is not None
        and not recipe.base_folder
        and not base.startswith("/")
    ):
        # A base model that is downloaded first has a folder that recipes share.
        model_dir = f"{first_mount}/base-models/{label(base)}-{content_hash([base, recipe.model_revision], 8)}"
    return Place(
        config_dir=CONFIG_DIR,
        data_dir=data_dir,
        run_dir=run_dir,
        scratch_dir="/tmp/recipe-runner",
        prepared=recipe.on_claim(data_dir),
        model_dir=model_dir,
        files_dir=files_dirs[site.data_from],
        on_cluster=True,
    )


def job_name(plan: Plan) -> str:
    return plan.site.job_name or plan.name


def new_object(
    api_version: str,
    object_kind: str,
    plan: Plan,
    name: str,
    marks: Manifest,
    **other_parts: object,
) -> Manifest:
    """An object in the plan's namespace. marks: its labels and annotations; other_parts:
    for example its `spec`."""
    meta = {"name": name, "namespace": plan.site.namespace, **marks}
    return {"apiVersion": api_version, "kind": object_kind, "metadata": meta, **other_parts}


def job(api_version: str, object_kind: str, spec: Manifest, plan: Plan, stage: Stage) -> Manifest:
    """The object from which an operator creates pods. spec: what that operator needs."""
    # `recipe status` compares the planned figures with the real ones.
    foreseen = {
        # The same text before and after JSON, which turns 103718 into 103718.0.
        f"{PLANNED}{figure.replace('_', '-')}": gib(amount)
        if figure.endswith("memory")
        else f"{amount:.12g}"
        for figure, amount in stage.needs.items()
    }
    # OpenShift AI's dashboard shows a training job as its own by these. A connection's name has its
    # namespace in front (opendatahub-operator, connections of a Notebook).
    dashboard_notes = dict[str, str]()
    profile = plan.site.hardware_profile
    if profile:
        dashboard_notes["opendatahub.io/hardware-profile-name"] = profile.name
        dashboard_notes["opendatahub.io/hardware-profile-namespace"] = profile.namespace
    names = plan.site.connections
    if names:
        dashboard_notes["opendatahub.io/connections"] = ",".join(
            f"{plan.site.namespace}/{name}" for name in names
        )
    notes = origin(spec, plan, stage) | foreseen | dashboard_notes
    marks = {"labels": pod_labels(plan, stage) | queue(plan), "annotations": notes}
    return new_object(api_version, object_kind, plan, job_name(plan), marks, spec=spec)


def queue(plan: Plan) -> dict[str, str]:
    """The label that puts a job into a Kueue queue."""
    if plan.site.queue:
        return {"kueue.x-k8s.io/queue-name": plan.site.queue}
    return {}


def origin(spec: Manifest, plan: Plan, stage: Stage) -> dict[str, str]:
    """Annotations of a job: its recipe, its results, and a hash of its content, which changes with
    the recipe."""
    return {
        "recipe-runner/recipe": plan.name,
        "recipe-runner/stage": stage.name,
        "recipe-runner/content": content_hash([spec, plan.fingerprint]),
        RUN_DIR: plan.place.run_dir,
        IMAGE: image(plan),
        **({KEY: stage.keys[""]} if stage.keys else {}),
    }


def build_command(name: str = "recipe-runner", namespace: str = "") -> str:
    """The command that builds the image `name` from a checkout. namespace: empty for the current
    one of `oc`."""
    if namespace:
        space = f" --namespace {namespace}"
    else:
        space = ""
    return f"oc start-build {name}{space} --from-dir=. --exclude='{UNSENT}' --follow"


def image(plan: Plan) -> str:
    """The recipe's image, or else the one that the site builds in the namespace, with this version
    as its tag."""
    return plan.site.image or f"{IMAGE_REGISTRY}/{plan.site.namespace}/recipe-runner:{__version__}"


def pull(image: str) -> str | None:
    """When pods pull an image: a tag may move to another one, a digest (`NAME@sha256:…`) does
    not."""
    if "@" not in image:
        return "Always"
    return None


def container(plan: Plan, name: str, folders: list[Folder], **fields: object) -> Manifest:
    """A container of the plan's image, which writes only to volumes. fields: the other blanks
    of `container.yaml`."""
    return fill_template(
        Path(__file__).with_name("container.yaml"),
        name=name,
        image=image(plan),
        imagePullPolicy=pull(image(plan)),
        volumeMounts=[mount for mount, _ in folders],
        securityContext=CONTAINER_SECURITY,
        **fields,
    )


def folder(name: str, path: str, volume: Manifest, **mount_options: object) -> Folder:
    """A folder of a container. volume: without its name; mount_options: other settings of the
    mount."""
    return {"name": name, "mountPath": path, **mount_options}, {"name": name, **volume}


def memory(gib: int) -> Folder:
    """Shared memory. Its default is 64 MB, too little for NCCL and data loaders. It is part of the
    pod's memory."""
    return folder("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": f"{gib}Gi"}})


def fill_template(template: Path, /, **fields: object) -> Manifest:
    """An object from a YAML template: each `$NAME` becomes the field of that name, and each
    `$NAME?` too, if there is one. Keys whose field is None or missing disappear. Raises TypeError
    for a field that the template has no place for, and for a `$NAME` without a field: either would
    disappear without a message."""
    places: set[str] = set()
    required: set[str] = set()

    def fill(value: object) -> Any:
        if isinstance(value, dict):
            entries = {key: fill(entry) for key, entry in value.items()}
            return {key: entry for key, entry in entries.items() if entry is not None}
        if isinstance(value, list):
            return [fill(entry) for entry in value]
        if isinstance(value, str) and value.startswith("$"):
            name = value[1:].removesuffix("?")
            places.add(name)
            if not value.endswith("?"):
                required.add(name)
            return fields.get(name)
        return value

    manifest: Manifest = fill(yaml.safe_load(template.read_text(encoding="utf-8")))
    refuse_unused(template, fields, places)
    forgotten = sorted(required - set(fields))
    if forgotten:
        raise TypeError(f"{template.name} needs {', '.join(forgotten)}")
    return manifest


def labels(plan: Plan, stage: Stage) -> dict[str, str]:
    """Labels that identify the recipe of every object on the cluster."""
    return {
        "app.kubernetes.io/name": label(plan.name),
        "app.kubernetes.io/managed-by": "recipe-runner",
        "recipe-runner/scenario": label(plan.scenario),
        "recipe-runner/stage": label(stage.name),
        "recipe-runner/fingerprint": plan.fingerprint,
    }


def pod_labels(plan: Plan, stage: Stage) -> dict[str, str]:
    """Labels of jobs and pods: those of every object, and the image's name with its tag or the
    start of its digest."""
    name, _, digest = image(plan).rpartition("/")[2].partition("@")
    return labels(plan, stage) | {IMAGE: label(f"{name}-{digest[:19]}" if digest else name)}


def config_map_name(plan: Plan, stage: Stage) -> str:
    """The name depends on the content: a changed config is another map, and a running job keeps its
    own."""
    return f"{job_name(plan)}-{content_hash([[file.path, file.text] for file in stage.files])}"


def is_config_map_of(name: str, plan: Plan) -> bool:
    """Whether a plan of one stage may have such a config map, with any content."""
    return (
        re.fullmatch(rf"{re.escape(job_name(plan))}-[0-9a-f]{{{len(content_hash(''))}}}", name)
        is not None
    )


def config_map(plan: Plan, stage: Stage) -> Artifact:
    marks = {"labels": labels(plan, stage)}
    data = {file.path: file.text for file in stage.files}
    name = config_map_name(plan, stage)
    return Artifact(
        CONFIG_FILE,
        yaml_text(new_object("v1", "ConfigMap", plan, name, marks, immutable=True, data=data)),
    )


def most_machines(plans: Iterable[Plan]) -> int:
    """The machines that mount the claims of these plans at the same time."""
    return max(
        nodes
        for plan in plans
        for nodes in (plan.most_nodes, *(stage.machines.nodes for stage in plan.stages))
    )


def claim_mode(plans: Iterable[Plan]) -> str:
    if most_machines(plans) > 1:
        return SHARED
    return SINGLE


def claims(plan: Plan) -> Artifact:
    documents = []
    for claim in plan.claims:
        document = fill_template(
            Path(__file__).with_name("claim.yaml"),
            name=claim.name,
            namespace=plan.site.namespace,
            mode=claim_mode([plan]),
            storageClassName=claim.storage_class,
            size=f"{plan.claim_gib(claim.name)}Gi",
        )
        documents.append(document)
    return Artifact(CLAIMS_FILE, "---\n".join(map(yaml_text, documents)))


def files(
    plan: Plan, stage: Stage, name: str, text: str, comment: str = "", policy: str = ""
) -> list[Artifact]:
    """The files of a job: claims, config map, network policy, its own, and a kustomization for `oc
    apply -k FOLDER`. name, text: of the job's own file; comment: for the kustomization, which
    leaves out the claims: a claim of that name may be larger, and a cluster refuses to change its
    size and mode."""
    header = macros(Path(__file__).with_name("header.jinja"))  # the lines for people
    job_file = Artifact(
        name, header.header(plan, stage.machines, tracker(stage.config) == "mlflow") + text
    )
    needed = (claims(plan), config_map(plan, stage), Artifact(POLICY_FILE, policy), job_file)
    written = [file for file in needed if file.text]
    resources = [file.path for file in written if file.path != CLAIMS_FILE]
    fields = {
        "name": plan.name,
        "comment": comment,
        "resources": resources,
        "claims": len(resources) < len(written),
    }
    listing = template(Path(__file__).with_name("kustomization.yaml.jinja")).render(
        fields, file=CLAIMS_FILE
    )
    return [*written, Artifact("kustomization.yaml", listing)]


def computed(recipe: Recipe) -> Iterator[tuple[Path_, Computed]]:
    """The values of settings under `openshift` that the recipe leaves out."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    plan = planned(recipe, default(site.version))
    pods = common.machines(recipe, plan.place)
    from_machines = "what `machines` leave for pods, within `limits`"
    same = "what is requested"
    values: dict[Path_, Computed] = {
        ("job_name",): Computed(recipe.name, "the recipe's name"),
        ("image",): Computed(image(plan), "the namespace's own"),
        ("data_dir",): Computed(plan.place.data_dir, "where prepared data is"),
        ("output_dir",): Computed(plan.place.run_dir, "on the first claim"),
        ("requests", "memory"): Computed(f"{pods.requested_memory_gib:g} GiB", from_machines),
        ("requests", "cpus"): Computed(pods.requested_cpus, from_machines),
        ("limits", "memory"): Computed(f"{pods.memory_gib:g} GiB", same),
        ("limits", "cpus"): Computed(pods.cpus, same),
    }
    for index, claim in enumerate(plan.claims):
        size = plan.claim_gib(claim.name)
        values["claims", index, "size_gib"] = Computed(
            size, "what the plan needs there, with some reserve"
        )
    for path, value in values.items():
        if recipe.document.lookup(("openshift", *path)) is None:
            yield ("openshift", *path), value
