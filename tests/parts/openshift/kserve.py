"""KServe, as far as the tests' API needs it: of an InferenceService a Deployment's pod, with the object's labels and annotations and
the container of its runtime and its own, and another pod when the object changes."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.parts.openshift.api import Api

# The platform's runtime, as its template makes it (opendatahub-io/odh-model-controller, config/runtimes, v0.21.0).
PLATFORM = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "ServingRuntime",
    "metadata": {"name": "vllm-cuda-runtime"},
    "spec": {
        "multiModel": False,
        "supportedModelFormats": [{"name": "vLLM", "autoSelect": True}],
        "containers": [
            {
                "name": "kserve-container",
                "image": "registry/vllm:1",
                "command": ["python", "-m", "vllm.entrypoints.openai.api_server"],
                "args": ["--port=8080", "--model=/mnt/models", "--served-model-name={{.Name}}"],
                "env": [{"name": "HF_HOME", "value": "/tmp/hf_home"}],
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            }
        ],
    },
}


def container(runtime: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """The one that serves: the runtime's, the object's own on top; arguments one after the other."""
    (of_runtime,) = runtime["spec"]["containers"]
    model = copy.deepcopy(service["spec"]["predictor"]["model"])
    own = {key: part for key, part in model.items() if key not in ("modelFormat", "runtime", "storageUri", "storage")}
    args = [*of_runtime["args"], *own["args"]]
    named = [arg.replace("{{.Name}}", service["metadata"]["name"]) for arg in args]
    env = {entry["name"]: entry for entry in [*of_runtime.get("env", []), *own["env"]]}
    return copy.deepcopy(of_runtime) | own | {"args": named, "env": list(env.values())}


def pod(runtime: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    meta, predictor = service["metadata"], service["spec"]["predictor"]
    serving, volumes = container(runtime, service), copy.deepcopy(predictor.get("volumes") or [])
    uri = predictor["model"].get("storageUri", "")  # from S3 it downloads before the server starts
    if uri.startswith("pvc://"):
        claim, _, path = uri.removeprefix("pvc://").partition("/")
        volumes.append({"name": "kserve-pvc-source", "persistentVolumeClaim": {"claimName": claim, "readOnly": False}})
        mount = {"name": "kserve-pvc-source", "mountPath": "/mnt/models", "readOnly": True}
        serving["volumeMounts"] = [*serving.get("volumeMounts", []), mount | ({"subPath": path} if path else {})]
    number = hashlib.sha256(str(service["spec"]).encode()).hexdigest()[:10]
    kept = ("nodeSelector", "tolerations", "securityContext", "serviceAccountName")
    owner = {key: service[key] for key in ("apiVersion", "kind")} | {key: meta[key] for key in ("name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-predictor-{number}-{meta['generation']}",
            "labels": meta["labels"] | {"serving.kserve.io/inferenceservice": meta["name"]},
            "annotations": meta["annotations"] | predictor.get("annotations", {}),
            "ownerReferences": [owner],
        },
        "spec": {key: predictor[key] for key in kept if key in predictor}
        | {"containers": [serving], "volumes": volumes},
    }


def operate(api: Api, space: str, service: dict[str, Any]) -> None:
    """What KServe does about an InferenceService that is new or has changed."""
    from tests.parts.openshift.api import No, event

    name, wanted = service["metadata"]["name"], service["spec"]["predictor"]["model"]["runtime"]
    runtime = api.objects.get(("servingruntimes", space, wanted))
    if runtime is None:
        failure = {"reason": "RuntimeNotRecognized", "message": "Waiting for runtime to become available"}
        service["status"] = {"modelStatus": {"transitionStatus": "InvalidSpec", "lastFailureInfo": failure}}
        return
    service["status"] = {}
    for key, one in list(api.objects.items()):
        if key[:2] == ("pods", space) and one["metadata"]["labels"].get("serving.kserve.io/inferenceservice") == name:
            api.delete("pods", space, key[2], {})
    made = pod(runtime, service)
    try:
        api.put("pods", space, made, dry=False)
    except No as no:
        event(api, space, "ReplicaSet", f"{name}-predictor-5d4f", "FailedCreate", f"Error creating: {no.message}")
        return
    api.objects[("pods", space, made["metadata"]["name"])]["status"] = {"phase": "Pending"}
