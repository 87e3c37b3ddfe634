"""Target kserve: the trained model as an InferenceService (serving.kserve.io/v1beta1), with
OpenShift AI's vLLM runtime or one of its own, or as an LLMInferenceService (v1alpha2), which has
its adapters by name and address. KServe appends our arguments to its own; the last one of a name
counts."""

import shlex
from pathlib import Path
from typing import Any

from runner.check.validate import load
from runner.data.object_store import S3, path_of
from runner.parts.jobs import kubernetes, podspec
from runner.parts.serve import serving
from runner.parts.serve.serving import LLM, SERVICE, Serving
from runner.plan import Machines, Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.render import planned
from runner.tools.files import Artifact, content_hash
from runner.tools.problem import Problem, Stop, first_line, listed, worded
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
            raise Stop(*worded("serve.no-section", recipe=recipe))
        raise Stop(*worded("serve.cannot-have-section", recipe=recipe))
    plan = planned(recipe, NAME)
    server = Serving(recipe, sharing(recipe, plan))
    if server.kind == LLM and not server.declarable:
        raise Stop([recipe.problem("serve.kind", *worded("serve.one-claim"))])
    return plan, server


def sharing(recipe: Recipe, plan: Plan | None) -> list[Plan]:
    """A recipe's plan, and those of the other recipes whose adapters its server has. plan: None on
    this machine, where only their files are read. Raises Stop with what keeps the server from
    having them."""
    found = [plan] if plan else []
    wrong = list[Problem]()
    for index, file in enumerate(recipe.settings["serve"].get("recipes") or ()):
        said = ""
        try:
            other = load(recipe.folder / file, look=False)[0]
            if plan:
                found.append(planned(other, NAME))
                said = next(
                    filter(None, (serving.cannot_share(each, found[-1]) for each in found[:-1])), ""
                )
        except Stop as stop:
            said = f"`{file}` cannot be served: {stop.problems[0].message if stop.problems else first_line(stop)}"
        if said:
            wrong.append(
                recipe.problem(("serve", "recipes", index), said, worded("serve.alone")[0])
            )
    if wrong:
        raise Stop(wrong)
    return found


def render(plan: Plan, server: Serving) -> list[Artifact]:
    """The server, and the ServingRuntime if it has one of its own. plan: whole, with a place on a
    cluster."""
    kind = (server.kind or SERVICE).lower()
    words = macros(Path(__file__).with_name("header.jinja"), listed=listed)
    header = str(words.header(plan, server, kind, kubernetes.job_name(plan), server.kind == LLM))
    files = [Artifact(f"{FOLDER}/{kind}.yaml", header + yaml_text(service(plan, server)))]
    made = runtime(plan, server)
    if made:
        files.append(Artifact(f"{FOLDER}/servingruntime.yaml", yaml_text(made)))
    return files


def service(plan: Plan, server: Serving, trained_by: str = "") -> kubernetes.Manifest:
    """The server's object, an InferenceService unless it is of another kind. trained_by: the jobs
    that wrote its weights."""
    machines = Machines(1, server.gpus, server.gpu, server.memory_gib, server.cpus)
    folders = _folders(server)
    source = server.source
    alone = server.kind == LLM
    storage = None
    if source.uri.startswith(S3) and not alone:
        # The connection with its keys, by whose name the platform knows it (KServe's
        # `storage-config`).
        bucket, _, path = path_of(source.uri).partition("/")
        storage = {
            "key": plan.site["connection"],
            "path": path,
            "parameters": {"type": "s3", "bucket": bucket},
        }
    # The platform creates a route only for this label; an LLMInferenceService always has the
    # platform's gateway.
    if server.route and not alone:
        route = {"networking.kserve.io/visibility": "exposed"}
    else:
        route = {}
    declared = [
        {"name": one.name, "uri": one.results.below(ADAPTER).uri} for one in source.adapters
    ]
    fields = {
        **podspec.node_placement(plan, machines),
        "name": kubernetes.job_name(plan),
        "labels": _labels(plan) | kubernetes.queue(plan) | route,
        "run_dir": plan.place.run_dir,
        "serviceAccountName": plan.site.get("service_account"),
        "podSecurityContext": podspec.POD_SECURITY,
        "containerSecurityContext": kubernetes.CLOSED,
        "args": arguments(server, plan.site["namespace"]),
        # All files are mounted, so the hub is not needed; and no telemetry.
        "env": podspec.as_env_list(
            podspec.recipe_variables(plan) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        ),
        "resources": podspec.as_text(podspec.amounts(machines)),
    }
    if alone:
        # An LLMInferenceService's command passes them through a shell once more.
        fields["args"] = [shlex.quote(argument) for argument in fields["args"]]
        fields |= {
            "uri": source.uri,
            "base_name": server.base_name or server.name,
            "image": server.image,
        }
        if server.image:
            fields["imagePullPolicy"] = kubernetes.pull(server.image)
        else:
            fields["imagePullPolicy"] = None
        if declared:
            fields["lora"] = {"adapters": declared}
        else:
            fields["lora"] = None
    else:
        if server.image:
            fields["runtime"] = own_runtime(plan)
        else:
            fields["runtime"] = server.runtime
        fields |= {"storageUri": None if storage else source.uri, "storage": storage}
        fields["volumeMounts"] = [mount for mount, _ in folders] or None
        fields["volumes"] = [volume for _, volume in folders] or None
    made = _filled((server.kind or SERVICE).lower(), plan, **fields)
    beside = [one.content for one in source.adapters[1:]]
    content = content_hash(
        [made["spec"], plan.stages[-1].keys.get("", ""), plan.fingerprint, *beside]
    )
    marks = {CONTENT: content} | ({TRAINED_BY: trained_by} if trained_by else {})
    # Also on its pods, so that other weights get new pods.
    of_pods = made["spec"].get("predictor", made["spec"])
    for annotated in (made["metadata"], of_pods):
        annotated["annotations"] = annotated.get("annotations", {}) | marks
    return made


def _filled(kind: str, plan: Plan, **words: Any) -> kubernetes.Manifest:
    file = Path(__file__).with_name(f"{kind}.yaml")
    return kubernetes.fill_template(
        file, namespace=plan.site["namespace"], recipe=plan.name, **words
    )


def _labels(plan: Plan) -> dict[str, str]:
    return kubernetes.labels(plan, plan.stages[-1]) | {"opendatahub.io/dashboard": "true"}


def arguments(server: Serving, namespace: str = "") -> list[str]:
    """vLLM's arguments. With adapters, vLLM loads the base model, and all models get training's
    template, end token and tokenizer. namespace: of an LLMInferenceService."""
    source = server.source
    adapters = server.source.adapters
    alone = server.kind == LLM
    mounts = {each.claim: (mount_of(index), each) for index, each in enumerate(source.mounted)}
    trained = dict[str, str]()
    for one in adapters:
        mount, above = mounts[one.results.claim]
        trained[one.name] = f"{mount}/{one.results.path_from(above)}".rstrip("/")
    homes = (
        f"{ADAPTERS}/{name}" if alone else f"{folder}/{BEST_MODEL}"
        for name, folder in trained.items()
    )
    modules = [f"{name}={folder}/{ADAPTER}" for name, folder in trained.items()]
    known = {"share": serving.GPU_SHARE, "template": SERVED_TEMPLATE, "mount": MODELS}
    words = macros(Path(__file__).with_name("arguments.jinja"), **known)
    return str(words.arguments(server, next(homes, MODELS), modules, alone, namespace)).splitlines()


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
    found = list[kubernetes.Folder]()
    for index, each in enumerate(server.source.mounted[1:], 1):
        mount = mount_of(index)
        if each.path:
            path = {"subPath": each.path}
        else:
            path = {}
        claim = {"persistentVolumeClaim": {"claimName": each.claim, "readOnly": True}}
        found.append(kubernetes.folder(Path(mount).name, mount, claim, **path, readOnly=True))
    return [*found, *([kubernetes.memory(gib=2)] if server.gpus > 1 else [])]
