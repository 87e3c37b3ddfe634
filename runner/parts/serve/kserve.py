"""Target kserve: the trained model as an InferenceService (serving.kserve.io/v1beta1), with OpenShift AI's vLLM runtime
or one of its own. KServe appends our arguments to the runtime's; the last one of a name counts."""

from pathlib import Path
from typing import Any

from runner.check.validate import load
from runner.data.object_store import S3, path_of
from runner.parts.jobs import kubernetes, podspec
from runner.parts.jobs.kubernetes import Folder, Manifest
from runner.parts.serve import serving
from runner.parts.serve.serving import ServedModel, Serving, ServingForecast
from runner.plan import Machines, OnClaim, Plan
from runner.recipe.recipe import Recipe
from runner.render import planned
from runner.tools.files import Artifact
from runner.tools.names import content_hash, listed
from runner.tools.problem import Problem, Stop, first_line, worded
from runner.tools.run_files import ADAPTER, BEST_MODEL, SERVED_TEMPLATE
from runner.tools.text import from_template, yaml_text
from runner.tools.vllm import SERVER

NAME = "kserve"
FOLDER = "serve"
# As in the templates beside this file: KServe's container that serves, its port, and its mount of the model.
CONTAINER, PORT, MODELS = "kserve-container", 8080, "/mnt/models"
# The mount of training's results if they are on another claim than the base model; more claims get a number.
TRAINED = "/mnt/trained"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHM_GIB = 2
CONTENT = "recipe-runner/content"

place = kubernetes.place


def named(recipe: Recipe) -> bool:
    return "openshift" in recipe.settings and "serve" in recipe.settings


def emitted(recipe: Recipe) -> list[Artifact]:
    plan, server, _ = served(recipe)
    return render(plan, server)


def served(recipe: Recipe) -> tuple[Plan, Serving, ServingForecast | None]:
    """The plan on the cluster, the server of its trained model, and its needs, None if the model is unknown. It reads
    only recipe and catalog. Raises Stop if the recipe lacks a section, or its model is on no claim."""
    if "serve" not in recipe.settings:
        if recipe.settings.knows("serve"):
            raise Stop(*worded("serve.no-section", recipe=recipe))
        raise Stop(*worded("serve.cannot-have-section", recipe=recipe))
    plan = planned(recipe, NAME)
    return plan, *serving.server_of(recipe, sharing(recipe, plan))


def sharing(recipe: Recipe, plan: Plan | None) -> list[Plan]:
    """A recipe's plan, and those of the other recipes whose adapters its server has. plan: None on this machine, where
    only their files are read. Raises Stop with what keeps the server from having them."""
    found, wrong = [plan] if plan else [], list[Problem]()
    for index, file in enumerate(recipe.settings["serve"].get("recipes") or ()):
        said = ""
        try:
            other = load(recipe.folder / file, look=False)[0]
            if plan:
                found.append(planned(other, NAME))
                said = next(filter(None, (serving.cannot_share(each, found[-1]) for each in found[:-1])), "")
        except Stop as stop:
            said = f"`{file}` cannot be served: {stop.problems[0].message if stop.problems else first_line(stop)}"
        if said:
            wrong.append(recipe.problem(("serve", "recipes", index), said, worded("serve.alone")[0]))
    if wrong:
        raise Stop(wrong)
    return found


def render(plan: Plan, server: Serving) -> list[Artifact]:
    """The InferenceService, and the ServingRuntime if it has one of its own. plan: whole, with a place on a cluster."""
    text = header(plan, server) + yaml_text(service(plan, server))
    files = [Artifact(f"{FOLDER}/inferenceservice.yaml", text)]
    if made := runtime(plan, server):
        files.append(Artifact(f"{FOLDER}/servingruntime.yaml", yaml_text(made)))
    return files


def service(plan: Plan, server: Serving) -> Manifest:
    machines, folders = Machines(1, server.gpus, server.gpu, server.memory_gib, server.cpus), _folders(server)
    # The platform creates a route only for this label.
    route = {"networking.kserve.io/visibility": "exposed"} if server.route else {}
    made = _filled(
        "inferenceservice",
        plan,
        name=kubernetes.job_name(plan),
        labels=_labels(plan) | kubernetes.queue(plan) | route,
        run_dir=plan.place.run_dir,
        service_account=plan.site.get("service_account"),
        pod_security=podspec.POD_SECURITY,
        security=kubernetes.CLOSED,
        runtime=own_runtime(plan) if server.image else server.runtime,
        **_storage(plan, server.source.uri),
        arguments=arguments(server),
        # All files are mounted, so the hub is not needed; and no telemetry.
        env=podspec.listed(podspec.stated(plan) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}),
        resources=podspec.as_text(podspec.amounts(machines)),
        mounts=kubernetes.mounts(folders) or None,
        volumes=kubernetes.volumes(folders) or None,
        **{"nodeSelector": None, "tolerations": None, **podspec.where(plan, machines)},
    )
    beside = [one.content for one in server.source.adapters[1:]]
    content = content_hash([made["spec"], plan.stages[-1].keys.get("", ""), plan.fingerprint, *beside])
    made["metadata"]["annotations"][CONTENT] = content
    # Also on its pods, so that other weights get new pods.
    made["spec"]["predictor"]["annotations"] = {CONTENT: content}
    return made


def _storage(plan: Plan, uri: str) -> Manifest:
    """The source of the model, and of S3 the connection with its keys, by whose name the platform knows it (KServe's
    `storage-config`)."""
    if not uri.startswith(S3):
        return {"uri": uri, "storage": None}
    bucket, _, path = path_of(uri).partition("/")
    known = {"key": plan.site["connection"], "path": path, "parameters": {"type": "s3", "bucket": bucket}}
    return {"uri": None, "storage": known}


def _filled(kind: str, plan: Plan, **words: Any) -> Manifest:
    file = Path(__file__).with_name(f"{kind}.yaml")
    return kubernetes.filled(file, namespace=plan.site["namespace"], recipe=plan.name, **words)


def _labels(plan: Plan) -> dict[str, str]:
    return kubernetes.labels(plan, plan.stages[-1]) | {"opendatahub.io/dashboard": "true"}


def arguments(server: Serving) -> list[str]:
    """vLLM's arguments, the same for 0.21 and 0.32. With adapters, vLLM loads the base model, and all models get
    training's template, end token and tokenizer."""
    source = server.source
    adapters = source.adapters
    called = [one.base_name for one in adapters] or [server.name]
    results = [pod_path(source, one.results) for one in adapters]
    whole = f"{results[0]}/{BEST_MODEL}" if results else MODELS
    said = [
        *([f"--model={MODELS}/{source.model}"] if source.model else []),
        *(["--served-model-name", *called] if len(called) > 1 else [f"--served-model-name={called[0]}"]),
        f"--dtype={DTYPES[server.precision]}",
        f"--max-model-len={server.context}",
        f"--max-num-seqs={server.concurrency}",
        f"--gpu-memory-utilization={serving.GPU_SHARE:g}",
        f"--tensor-parallel-size={server.gpus}",
        *([f"--chat-template={whole}/{SERVED_TEMPLATE}"] if source.template else []),
        *(["--trust-remote-code"] if server.trust_remote_code else []),
    ]
    if not adapters:
        return said
    said += [f"--tokenizer={whole}", f"--generation-config={whole}"]
    said += ["--enable-lora", f"--max-lora-rank={source.room_for_rank}"]
    modules = [f"{one.name}={folder}/{ADAPTER}" for one, folder in zip(adapters, results, strict=True)]
    if len(modules) == 1:
        return [*said, f"--lora-modules={modules[0]}"]
    return [*said, f"--max-loras={len(modules)}", "--lora-modules", *modules]


def mount_of(index: int) -> str:
    """The pod's path of the folder of that number in `ServedModel.mounted`."""
    return MODELS if index == 0 else TRAINED if index == 1 else f"{TRAINED}-{index}"


def pod_path(source: ServedModel, folder: OnClaim) -> str:
    index, above = next((at, each) for at, each in enumerate(source.mounted) if each.claim == folder.claim)
    return f"{mount_of(index)}/{folder.path_from(above)}".rstrip("/")


def own_runtime(plan: Plan) -> str:
    """The name of the recipe's own runtime, even if it has none."""
    return f"{kubernetes.job_name(plan)}-vllm"


def runtime(plan: Plan, server: Serving) -> Manifest | None:
    """The recipe's own ServingRuntime; None if the server uses the platform's."""
    if not server.image:
        return None
    return _filled(
        "servingruntime",
        plan,
        name=own_runtime(plan),
        labels=_labels(plan),
        title=f"vLLM for {plan.name}",
        image=server.image,
        pull=None if "@" in server.image else "Always",
        module=SERVER,
        env=podspec.listed(podspec.CACHES | {"HF_HOME": f"{podspec.HOME}/huggingface"}),
    )


def _folders(server: Serving) -> list[Folder]:
    """The folders that KServe does not mount: results beside a base model, and shared memory of GPUs."""
    found = list[Folder]()
    for index, each in enumerate(server.source.mounted[1:], 1):
        mount, path = mount_of(index), {"subPath": each.path} if each.path else {}
        claim = {"persistentVolumeClaim": {"claimName": each.claim, "readOnly": True}}
        found.append(kubernetes.folder(Path(mount).name, mount, claim, **path, readOnly=True))
    return [*found, *([kubernetes.memory(SHM_GIB)] if server.gpus > 1 else [])]


def header(plan: Plan, server: Serving) -> str:
    """The first lines of the InferenceService's file, for people."""
    words = {"recipe": plan.name, "fingerprint": plan.fingerprint, "gpus": server.gpus, "gpu": server.gpu}
    words |= {"name": kubernetes.job_name(plan), "namespace": plan.site["namespace"], "folder": FOLDER}
    words |= {"concurrency": server.concurrency, "context": f"{server.context:,}", "runtime": server.runtime}
    trained = listed([one.name for one in server.source.adapters] or [server.name], "or")
    models = trained + (f", and `{server.base_name}` as it was before" if server.base_name else "")
    head, for_platform = from_template(Path(__file__).with_name("header.txt"), models=models, **words).split("\n\n")
    return f"{head}\n" if server.image else f"{head}\n{for_platform}"
