"""Target kserve: the trained model behind OpenAI's API, as an InferenceService (serving.kserve.io/v1beta1) of OpenShift AI's
vLLM runtimes, or of a ServingRuntime of its own.

Arguments are those of vLLM's server, appended to the runtime's own by KServe; of one that is given twice the last one counts.
"""

from __future__ import annotations

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
from runner.tools.run_files import SERVED_TEMPLATE
from runner.tools.text import yaml_text
from runner.tools.vllm import SERVER

NAME = "kserve"
FOLDER = "serve"
SERVICE_FILE, RUNTIME_FILE = "inferenceservice.yaml", "servingruntime.yaml"
# What KServe looks for: the container that serves, and the format that the platform's vLLM runtimes say they take.
CONTAINER, FORMAT = "kserve-container", "vLLM"
PORT = 8080
# Where KServe mounts the model, and where the results of training are mounted that are on another claim than the base model.
MODELS, TRAINED = "/mnt/models", "/mnt/trained"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Weights are read from a network's disk, compiled and recorded before the first answer.
START_MINUTES, PROBE_SECONDS = 60, 10
SHM_GIB = 2
CONTENT = "recipe-runner/content"

# It serves what the recipe's pods have left.
place = kubernetes.place


def named(recipe: Recipe) -> bool:
    return "openshift" in recipe.settings and "serve" in recipe.settings


def emitted(recipe: Recipe) -> list[Artifact]:
    plan, server, _ = served(recipe)
    return render(plan, server)


def served(recipe: Recipe) -> tuple[Plan, Serving, ServingForecast | None]:
    """The plan on the cluster, and the server of what it trains; and what that needs, None if its model is unknown.
    Only recipe and catalog are asked.

    Raises Stop if the recipe lacks a section, or its model is on no claim.
    """
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
    """The InferenceService, and the ServingRuntime where the platform's is not used. plan: whole, with a place on a cluster."""
    files = [Artifact(f"{FOLDER}/{SERVICE_FILE}", header(plan, server) + yaml_text(service(plan, server)))]
    if made := runtime(plan, server):
        files.append(Artifact(f"{FOLDER}/{RUNTIME_FILE}", yaml_text(made)))
    return files


def service_name(plan: Plan) -> str:
    return kubernetes.job_name(plan)


def service(plan: Plan, server: Serving) -> Manifest:
    """The InferenceService."""
    spec = {"predictor": _predictor(plan, server)}
    content = {CONTENT: content_hash([spec, plan.stages[-1].keys.get("", ""), plan.fingerprint])}
    # On its pods too, so that a server of other weights is another pod.
    spec["predictor"]["annotations"] = content
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": service_name(plan),
            "namespace": plan.site["namespace"],
            "labels": _labels(plan)
            | kubernetes.queue(plan)
            # The platform makes a route for this label alone.
            | ({"networking.kserve.io/visibility": "exposed"} if server.route else {}),
            "annotations": {
                "openshift.io/display-name": plan.name,
                "recipe-runner/recipe": plan.name,
                "recipe-runner/run-dir": plan.place.run_dir,
                **content,
                # Deployments, which wait for a GPU as long as it takes, and no Knative. Newer versions say `Standard`, and take
                # this name too.
                "serving.kserve.io/deploymentMode": "RawDeployment",
                # The platform then puts a proxy before the port, which asks the cluster who may `get` this very object.
                "security.opendatahub.io/enable-auth": "true",
            },
        },
        "spec": spec,
    }


def _labels(plan: Plan) -> dict[str, str]:
    return kubernetes.labels(plan, plan.stages[-1]) | {"opendatahub.io/dashboard": "true"}


def _predictor(plan: Plan, server: Serving) -> Manifest:
    account = plan.site.get("service_account")
    volumes = _volumes(server)
    return {
        "minReplicas": 1,
        "maxReplicas": 1,
        # A second one beside the first would need as many GPUs again.
        "deploymentStrategy": {"type": "Recreate"},
        **({"serviceAccountName": account} if account else {}),
        **podspec.where(plan, _machines(server)),
        "securityContext": podspec.POD_SECURITY,
        "model": {
            "name": CONTAINER,
            "modelFormat": {"name": FORMAT},
            "runtime": runtime_name(plan, server),
            "storageUri": server.source.uri,
            "args": arguments(server),
            # All that it needs is mounted, and it sends no telemetry.
            "env": podspec.listed(podspec.stated(plan) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}),
            "resources": podspec.as_text(_resources(server)),
            # Where vLLM of the platform's image writes is not ours to say, so its root stays writable.
            "securityContext": kubernetes.CLOSED,
            **_probes(),
            **({"volumeMounts": _mounts(server)} if volumes else {}),
        },
        **({"volumes": volumes} if volumes else {}),
    }


def arguments(server: Serving) -> list[str]:
    """vLLM's arguments, as 0.21 and 0.32 both have them. With an adapter the base model is the one that is loaded, and template,
    end token and tokenizer are those of training for both."""
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
    whole = serving.model_folder(_results(server)) if server.source.rank else MODELS
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
            f"--lora-modules={server.name}={serving.adapter_folder(_results(server))}",
        ]
    return said


def _results(server: Serving) -> str:
    """The pod's path of the result of the stage with the adapter."""
    return TRAINED if server.source.results_below is None else f"{MODELS}/{server.source.results_below}".rstrip("/")


def runtime_name(plan: Plan, server: Serving) -> str:
    return own_runtime(plan) if server.image else server.runtime


def own_runtime(plan: Plan) -> str:
    """The name of a runtime of the recipe's own, whether it has one or not."""
    return f"{service_name(plan)}-vllm"


def runtime(plan: Plan, server: Serving) -> Manifest | None:
    """A ServingRuntime of the recipe's own, with what the platform's says; None if that is used."""
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
            "name": runtime_name(plan, server),
            "namespace": plan.site["namespace"],
            "labels": _labels(plan),
            "annotations": {"openshift.io/display-name": f"vLLM for {plan.name}", "recipe-runner/recipe": plan.name},
        },
        "spec": {
            "annotations": {"prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"},
            "multiModel": False,
            # Never chosen automatically for another model.
            "supportedModelFormats": [{"name": FORMAT, "autoSelect": False}],
            "containers": [container],
        },
    }


def _machines(server: Serving) -> Machines:
    return Machines(1, server.gpus, server.gpu, server.memory_gib, server.cpus)


def _resources(server: Serving) -> Manifest:
    return podspec.amounts(_machines(server))


def _probes() -> Manifest:
    """vLLM answers `/health` when it can answer requests, and no more when its engine is dead."""
    asked = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": PROBE_SECONDS, "timeoutSeconds": 5}
    return {
        "startupProbe": asked | {"failureThreshold": START_MINUTES * 60 // PROBE_SECONDS},
        "readinessProbe": asked | {"failureThreshold": 3},
        "livenessProbe": asked | {"failureThreshold": 6},
    }


def _volumes(server: Serving) -> list[Manifest]:
    """What KServe does not mount itself: the results beside a base model, and memory that processes of several GPUs share."""
    found: list[Manifest] = []
    if server.source.rank and server.source.results and server.source.results_below is None:
        claim = {"claimName": server.source.results.claim, "readOnly": True}
        found.append({"name": "trained", "persistentVolumeClaim": claim})
    if server.gpus > 1:
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}})
    return found


def _mounts(server: Serving) -> list[Manifest]:
    found: list[Manifest] = []
    if server.source.rank and server.source.results and server.source.results_below is None:
        path = {"subPath": server.source.results.path} if server.source.results.path else {}
        found.append({"name": "trained", "mountPath": TRAINED, **path, "readOnly": True})
    if server.gpus > 1:
        found.append({"name": "shm", "mountPath": "/dev/shm"})
    return found


def header(plan: Plan, server: Serving) -> str:
    """The first lines of the InferenceService's file, for people."""
    name, space = service_name(plan), plan.site["namespace"]
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
