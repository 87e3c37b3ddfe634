"""Target kserve: the trained model behind OpenAI's API, as an InferenceService (serving.kserve.io/v1beta1) with
OpenShift AI's vLLM runtime or a ServingRuntime of its own. KServe appends our arguments to the runtime's; the last one
of a name counts."""

from runner.parts.jobs import kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.serve import serving
from runner.parts.serve.serving import Serving, ServingForecast
from runner.plan import Machines, Plan
from runner.recipe.recipe import Recipe
from runner.render import planned
from runner.tools.files import Artifact
from runner.tools.names import content_hash
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_MODEL, SERVED_TEMPLATE
from runner.tools.text import yaml_text
from runner.tools.vllm import SERVER

NAME = "kserve"
FOLDER = "serve"
# KServe's name of the container that serves, and the model format of the platform's vLLM runtimes.
CONTAINER, FORMAT = "kserve-container", "vLLM"
PORT = 8080
# KServe's mount of the model, and the mount of training's results if they are on another claim than the base model.
MODELS, TRAINED = "/mnt/models", "/mnt/trained"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Before the first answer, vLLM reads the weights from a network disk, compiles and records graphs.
START_MINUTES, PROBE_SECONDS = 60, 10
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
        raise Stop(
            f"The recipe `{recipe.name}` has no section `serve`.",
            "Write `serve: {}`, or more settings: `context`, `concurrency`."
            if recipe.settings.knows("serve")
            else "Recipes of this scenario train no language model, so they cannot have this section.",
        )
    plan = planned(recipe, NAME)
    return plan, *serving.server_of(recipe, plan)


def render(plan: Plan, server: Serving) -> list[Artifact]:
    """The InferenceService, and the ServingRuntime if it has one of its own. plan: whole, with a place on a cluster."""
    text = header(plan, server) + yaml_text(service(plan, server))
    files = [Artifact(f"{FOLDER}/inferenceservice.yaml", text)]
    if made := runtime(plan, server):
        files.append(Artifact(f"{FOLDER}/servingruntime.yaml", yaml_text(made)))
    return files


def service(plan: Plan, server: Serving) -> Manifest:
    spec = {"predictor": _predictor(plan, server)}
    content = {CONTENT: content_hash([spec, plan.stages[-1].keys.get("", ""), plan.fingerprint])}
    # Also on its pods, so that a server of other weights is another pod.
    spec["predictor"]["annotations"] = content
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": kubernetes.job_name(plan),
            "namespace": plan.site["namespace"],
            "labels": _labels(plan)
            | kubernetes.queue(plan)
            # The platform creates a route only for this label.
            | ({"networking.kserve.io/visibility": "exposed"} if server.route else {}),
            "annotations": {
                "openshift.io/display-name": plan.name,
                "recipe-runner/recipe": plan.name,
                "recipe-runner/run-dir": plan.place.run_dir,
                **content,
                # Deployments, which wait for a GPU without limit, and not Knative. Newer versions also accept this name.
                "serving.kserve.io/deploymentMode": "RawDeployment",
                # The platform's proxy then asks the cluster whether the user may `get` this object.
                "security.opendatahub.io/enable-auth": "true",
            },
        },
        "spec": spec,
    }


def _labels(plan: Plan) -> dict[str, str]:
    return kubernetes.labels(plan, plan.stages[-1]) | {"opendatahub.io/dashboard": "true"}


def _predictor(plan: Plan, server: Serving) -> Manifest:
    account, machines = (
        plan.site.get("service_account"),
        Machines(1, server.gpus, server.gpu, server.memory_gib, server.cpus),
    )
    volumes, mounts = _volumes(server)
    return {
        "minReplicas": 1,
        "maxReplicas": 1,
        # A second server beside the first would need as many GPUs again.
        "deploymentStrategy": {"type": "Recreate"},
        **({"serviceAccountName": account} if account else {}),
        **podspec.where(plan, machines),
        "securityContext": podspec.POD_SECURITY,
        "model": {
            "name": CONTAINER,
            "modelFormat": {"name": FORMAT},
            "runtime": own_runtime(plan) if server.image else server.runtime,
            "storageUri": server.source.uri,
            "args": arguments(server),
            # All files are mounted; and no telemetry.
            "env": podspec.listed(podspec.stated(plan) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}),
            "resources": podspec.as_text(podspec.amounts(machines)),
            # Its root stays writable, because the platform's image decides where vLLM writes.
            "securityContext": kubernetes.CLOSED,
            **_probes(),
            **({"volumeMounts": mounts} if mounts else {}),
        },
        **({"volumes": volumes} if volumes else {}),
    }


def arguments(server: Serving) -> list[str]:
    """vLLM's arguments, the same for 0.21 and 0.32. With an adapter, vLLM loads the base model, and both models get
    training's template, end token and tokenizer."""
    base = server.base_name or server.name
    said = [
        *([f"--model={MODELS}/{server.source.model}"] if server.source.model else []),
        f"--served-model-name={base}",
        f"--dtype={DTYPES[server.precision]}",
        f"--max-model-len={server.context}",
        f"--max-num-seqs={server.concurrency}",
        f"--gpu-memory-utilization={serving.GPU_SHARE:g}",
        f"--tensor-parallel-size={server.gpus}",
    ]
    # The pod's path of the result of the stage with the adapter.
    below = server.source.results_below
    results = TRAINED if below is None else f"{MODELS}/{below}".rstrip("/")
    whole = f"{results}/{BEST_MODEL}" if server.source.rank else MODELS
    if server.source.template:
        said.append(f"--chat-template={whole}/{SERVED_TEMPLATE}")
    if server.trust_remote_code:
        said.append("--trust-remote-code")
    if server.source.rank:
        said += [
            f"--tokenizer={whole}",
            f"--generation-config={whole}",
            "--enable-lora",
            f"--max-lora-rank={server.source.room_for_rank}",
            f"--lora-modules={server.name}={results}/{ADAPTER}",
        ]
    return said


def own_runtime(plan: Plan) -> str:
    """The name of the recipe's own runtime, even if it has none."""
    return f"{kubernetes.job_name(plan)}-vllm"


def runtime(plan: Plan, server: Serving) -> Manifest | None:
    """The recipe's own ServingRuntime, with the content of the platform's; None if the server uses that one."""
    if not server.image:
        return None
    movable = {"imagePullPolicy": "Always"} if "@" not in server.image else {}
    container = {
        "name": CONTAINER,
        "image": server.image,
        **movable,
        "command": ["python", "-m", SERVER],
        "args": [f"--port={PORT}", f"--model={MODELS}"],
        "env": podspec.listed(podspec.CACHES | {"HF_HOME": f"{podspec.HOME}/huggingface"}),
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {
            "name": own_runtime(plan),
            "namespace": plan.site["namespace"],
            "labels": _labels(plan),
            "annotations": {"openshift.io/display-name": f"vLLM for {plan.name}", "recipe-runner/recipe": plan.name},
        },
        "spec": {
            "annotations": {"prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"},
            "multiModel": False,
            # The platform must not choose it for another model.
            "supportedModelFormats": [{"name": FORMAT, "autoSelect": False}],
            "containers": [container],
        },
    }


def _probes() -> Manifest:
    """vLLM answers `/health` once it accepts requests, and no longer if its engine is dead."""
    asked = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": PROBE_SECONDS, "timeoutSeconds": 5}
    return {
        "startupProbe": asked | {"failureThreshold": START_MINUTES * 60 // PROBE_SECONDS},
        "readinessProbe": asked | {"failureThreshold": 3},
        "livenessProbe": asked | {"failureThreshold": 6},
    }


def _volumes(server: Serving) -> tuple[list[Manifest], list[Manifest]]:
    """The volumes that KServe does not mount: results beside a base model, and shared memory of GPUs; and their
    mounts."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    source = server.source
    if source.rank and source.results and source.results_below is None:
        path = {"subPath": source.results.path} if source.results.path else {}
        claim = {"claimName": source.results.claim, "readOnly": True}
        volumes.append({"name": "trained", "persistentVolumeClaim": claim})
        mounts.append({"name": "trained", "mountPath": TRAINED, **path, "readOnly": True})
    if server.gpus > 1:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


def header(plan: Plan, server: Serving) -> str:
    """The first lines of the InferenceService's file, for people."""
    name, space = kubernetes.job_name(plan), plan.site["namespace"]
    asked = f"`{server.name}`" + (f", and `{server.base_name}` as it was before" if server.base_name else "")
    lines = [
        f"Made by recipe-runner from the recipe `{plan.name}` ({plan.fingerprint}): {server.gpus} × {server.gpu}. Change the "
        "recipe and render again.",
        f"`recipe serve RECIPE --cluster` sends it and connects its port to your machine; manually: oc apply -f {FOLDER}/",
        f"Requests name the model {asked}; up to {server.concurrency} at a time, of {server.context:,} tokens each.",
        f"Its address in the cluster is https://{name}-predictor.{space}.svc.cluster.local:8443/v1, with a token in the header:",
        "  Authorization: Bearer $(oc whoami -t)",
        f"Whoever may `get` the object inferenceservices/{name} is answered; the role `recipe-user` of `recipe site` has that.",
    ]
    if not server.image:
        lines.append(
            f"The runtime `{server.runtime}` is the platform's. Where the namespace has none of that name, the platform's template "
            "makes it:"
        )
        lines.append(f"  oc process -n redhat-ods-applications {server.runtime}-template | oc apply -n {space} -f -")
    return "".join(f"# {line}\n" for line in lines)
