"""Target kserve: the trained model as an InferenceService (serving.kserve.io/v1beta1), with
OpenShift AI's vLLM runtime or one of its own, or as an LLMInferenceService (v1alpha2), which has
its adapters by name and address. KServe appends our arguments to its own; the last one of a name
counts."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.check.validate import load
from runner.data.object_store import S3, path_of
from runner.parts.jobs import kubernetes, podspec
from runner.parts.serve import serving
from runner.parts.serve.serving import LLM, SERVICE, Serving
from runner.plan import Machines, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import planned
from runner.tools.files import Artifact, content_hash
from runner.tools.problem import Problem, Stop, first_line, listed
from runner.tools.run_files import ADAPTER, BEST_MODEL, SERVED_TEMPLATE
from runner.tools.text import macros, yaml_text
from runner.tools.vllm import SERVER

NAME = "kserve"
FOLDER = "serve"
# As in the template beside this file: the port of an InferenceService, and KServe's mounts of a
# model and of adapters.
PORT, MODELS, ADAPTERS = 8080, "/mnt/models", "/mnt/lora"
# The mount of training's results if they are on another claim than the base model; more claims get
# a number.
TRAINED = "/mnt/trained"
CONTENT = "recipe-runner/content"
# The training jobs that wrote the weights. After another training, the server starts again.
TRAINED_BY = "recipe-runner/trained-by"

place = kubernetes.place


def named(recipe: Recipe) -> bool:
    return "openshift" in recipe.settings and "serve" in recipe.settings


def emitted(recipe: Recipe) -> list[Artifact]:
    return render(*served(recipe))


def served(recipe: Recipe) -> tuple[Plan, Serving]:
    """The plan on the cluster, and the server of its trained model. It reads only recipe and
    catalog. Raises Stop if the recipe lacks a section, its model is on no claim, or the recipe's
    kind of server cannot have it."""
    if "serve" not in recipe.settings:
        if recipe.settings.knows("serve"):
            raise Stop(
                f"The recipe `{recipe.name}` has no section `serve`.",
                "Write `serve: {}`, or more settings: `context`, `concurrency`.",
            )
        raise Stop(
            f"The recipe `{recipe.name}` has no section `serve`.",
            "Recipes of this scenario train no language model, so they cannot have this section.",
        )
    plan = planned(recipe, NAME)
    server = Serving(recipe, sharing(recipe, plan))
    if server.kind == LLM and not server.declarable:
        raise Stop(
            [
                recipe.problem(
                    "serve.kind",
                    "An LLMInferenceService needs a claim for the base model and for each adapter. Two of them are on one claim.",
                    "Write `kind: InferenceService`, which mounts a claim once, or another `openshift.output_dir`.",
                )
            ]
        )
    return plan, server


def sharing(recipe: Recipe, plan: Plan | None) -> list[Plan]:
    """A recipe's plan, and those of the other recipes whose adapters its server has. plan: None on
    this machine, where only their files are read. Raises Stop with what keeps the server from
    having them."""
    plans = [plan] if plan else []
    problems: list[Problem] = []
    for index, file in enumerate(recipe.settings["serve"].get("recipes") or ()):
        obstacle = ""
        try:
            sharing_recipe = load(recipe.folder / file, look=False)[0]
            if plan:
                sharing_plan = planned(sharing_recipe, NAME)
                obstacle = _first_obstacle(plans, sharing_plan)
                plans.append(sharing_plan)
        except Stop as stop:
            reason = stop.problems[0].message if stop.problems else first_line(stop)
            obstacle = f"`{file}` cannot be served: {reason}"
        if obstacle:
            problems.append(
                recipe.problem(
                    ("serve", "recipes", index),
                    obstacle,
                    "Delete the line; `recipe serve` of that recipe starts a server of its own.",
                )
            )
    if problems:
        raise Stop(problems)
    return plans


def _first_obstacle(plans: Sequence[Plan], sharing_plan: Plan) -> str:
    """Why a plan's adapter cannot be beside those of the others; empty if it can."""
    for plan in plans:
        obstacle = serving.cannot_share(plan, sharing_plan)
        if obstacle:
            return obstacle
    return ""


def render(plan: Plan, server: Serving) -> list[Artifact]:
    """The server, and the ServingRuntime if it has one of its own. plan: whole, with a place on a
    cluster."""
    server_kind = (server.kind or SERVICE).lower()
    template = macros(Path(__file__).with_name("header.jinja"), listed=listed)
    header = str(
        template.header(plan, server, server_kind, kubernetes.job_name(plan), server.kind == LLM)
    )
    files = [Artifact(f"{FOLDER}/{server_kind}.yaml", header + yaml_text(service(plan, server)))]
    runtime_manifest = runtime(plan, server)
    if runtime_manifest:
        files.append(Artifact(f"{FOLDER}/servingruntime.yaml", yaml_text(runtime_manifest)))
    return files


def service(plan: Plan, server: Serving, trained_by: str = "") -> kubernetes.Manifest:
    """The server's object, an InferenceService unless it is of another kind. trained_by: the jobs
    that wrote its weights."""
    if server.kind == LLM:
        fields = _llm_fields(plan, server)
    else:
        fields = _service_fields(plan, server)
    manifest = _filled((server.kind or SERVICE).lower(), plan, **fields)
    other_contents = [adapter.content for adapter in server.source.adapters[1:]]
    content = content_hash(
        [manifest["spec"], plan.stages[-1].keys.get("", ""), plan.fingerprint, *other_contents]
    )
    annotations = {CONTENT: content}
    if trained_by:
        annotations[TRAINED_BY] = trained_by
    # Also on its pods, so that other weights get new pods.
    pod_template = manifest["spec"].get("predictor", manifest["spec"])
    for annotated in (manifest["metadata"], pod_template):
        annotated["annotations"] = annotated.get("annotations", {}) | annotations
    return manifest


def _fields(plan: Plan, server: Serving) -> dict[str, Any]:
    """What both kinds of a server have."""
    machines = Machines(1, server.gpus, server.gpu, server.memory_gib, server.cpus)
    # All files are mounted, so the hub is not needed; and no telemetry.
    environment = podspec.recipe_variables(plan) | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return {
        **podspec.node_placement(plan, machines),
        "name": kubernetes.job_name(plan),
        "labels": _labels(plan) | kubernetes.queue(plan),
        "run_dir": plan.place.run_dir,
        "serviceAccountName": plan.site.service_account,
        "podSecurityContext": podspec.POD_SECURITY,
        "containerSecurityContext": kubernetes.CLOSED,
        "args": arguments(server, plan.site.namespace),
        "env": podspec.as_env_list(environment),
        "resources": podspec.as_text(podspec.amounts(machines)),
    }


def _llm_fields(plan: Plan, server: Serving) -> dict[str, Any]:
    fields = _fields(plan, server)
    # An LLMInferenceService's command passes them through a shell once more.
    fields["args"] = [shlex.quote(argument) for argument in fields["args"]]
    fields["uri"] = server.source.uri
    fields["base_name"] = server.base_name or server.name
    fields["image"] = server.image
    fields["imagePullPolicy"] = kubernetes.pull(server.image) if server.image else None
    adapters = []
    for adapter in server.source.adapters:
        adapters.append({"name": adapter.name, "uri": adapter.results.below(ADAPTER).uri})
    fields["lora"] = {"adapters": adapters} if adapters else None
    return fields


def _service_fields(plan: Plan, server: Serving) -> dict[str, Any]:
    fields = _fields(plan, server)
    # The platform creates a route only for this label; an LLMInferenceService always has the
    # platform's gateway.
    if server.route:
        fields["labels"]["networking.kserve.io/visibility"] = "exposed"
    fields["runtime"] = own_runtime(plan) if server.image else server.runtime
    fields["storage"] = _storage(plan, server.source.uri)
    fields["storageUri"] = None if fields["storage"] else server.source.uri
    folders = _folders(server)
    fields["volumeMounts"] = [mount for mount, _ in folders] or None
    fields["volumes"] = [volume for _, volume in folders] or None
    return fields


def _storage(plan: Plan, uri: str) -> dict[str, Any] | None:
    """The connection with the keys of an object store, by whose name the platform knows it
    (KServe's `storage-config`); None for a model on a claim."""
    if not uri.startswith(S3):
        return None
    bucket, _, path = path_of(uri).partition("/")
    return {
        "key": plan.site.connection,
        "path": path,
        "parameters": {"type": "s3", "bucket": bucket},
    }


def _filled(template_name: str, plan: Plan, **fields: object) -> kubernetes.Manifest:
    file = Path(__file__).with_name(f"{template_name}.yaml")
    return kubernetes.fill_template(file, namespace=plan.site.namespace, recipe=plan.name, **fields)


def _labels(plan: Plan) -> dict[str, str]:
    return kubernetes.labels(plan, plan.stages[-1]) | {"opendatahub.io/dashboard": "true"}


def arguments(server: Serving, namespace: str = "") -> list[str]:
    """vLLM's arguments. With adapters, vLLM loads the base model, and all models get training's
    template, end token and tokenizer. namespace: of an LLMInferenceService."""
    source = server.source
    alone = server.kind == LLM
    mounts = {
        mounted.claim: (mount_of(index), mounted) for index, mounted in enumerate(source.mounted)
    }
    folders: dict[str, str] = {}  # of the trained stages, by the adapter's name
    for adapter in source.adapters:
        mount, mounted = mounts[adapter.results.claim]
        folders[adapter.name] = f"{mount}/{adapter.results.path_from(mounted)}".rstrip("/")
    home = MODELS
    if source.adapters:
        name = source.adapters[0].name
        home = f"{ADAPTERS}/{name}" if alone else f"{folders[name]}/{BEST_MODEL}"
    modules = [f"{name}={folder}/{ADAPTER}" for name, folder in folders.items()]
    template = macros(
        Path(__file__).with_name("arguments.jinja"),
        share=serving.GPU_SHARE,
        template=SERVED_TEMPLATE,
        mount=MODELS,
    )
    return str(template.arguments(server, home, modules, alone, namespace)).splitlines()


def mount_of(index: int) -> str:
    """The pod's path of the folder of that number in `ServedModel.mounted`."""
    if index == 0:
        return MODELS
    if index == 1:
        return TRAINED
    return f"{TRAINED}-{index}"


def own_runtime(plan: Plan) -> str:
    """The name of the recipe's own runtime, even if it has none."""
    return f"{kubernetes.job_name(plan)}-vllm"


def runtime(plan: Plan, server: Serving) -> kubernetes.Manifest | None:
    """The recipe's own ServingRuntime; None if the server uses the platform's, or is of a kind that
    has none."""
    if not server.image or server.kind == LLM:
        return None
    return _filled(
        "servingruntime",
        plan,
        name=own_runtime(plan),
        labels=_labels(plan),
        title=f"vLLM for {plan.name}",
        image=server.image,
        imagePullPolicy=kubernetes.pull(server.image),
        module=SERVER,
        env=podspec.as_env_list(podspec.CACHES | {"HF_HOME": f"{podspec.HOME}/huggingface"}),
    )


def _folders(server: Serving) -> list[kubernetes.Folder]:
    """The folders that KServe does not mount: results beside a base model, and shared memory of
    GPUs."""
    folders: list[kubernetes.Folder] = []
    for index, mounted in enumerate(server.source.mounted[1:], 1):
        mount = mount_of(index)
        if mounted.path:
            path = {"subPath": mounted.path}
        else:
            path = {}
        claim = {"persistentVolumeClaim": {"claimName": mounted.claim, "readOnly": True}}
        folders.append(kubernetes.folder(Path(mount).name, mount, claim, **path, readOnly=True))
    if server.gpus > 1:
        folders.append(kubernetes.memory(gib=2))
    return folders
