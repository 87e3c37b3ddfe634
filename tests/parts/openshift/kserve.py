"""KServe, as far as the tests' API needs it: of an InferenceService a Deployment's pod, with the
object's labels and annotations and the container of its runtime and its own, and another pod when
the object changes; the same of an LLMInferenceService, with the platform's template in place of a
runtime."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.parts.openshift.api import Api

# The platform's runtime, as its template makes it (opendatahub-io/odh-model-controller,
# config/runtimes, v0.21.0).
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
    """The one that serves: the runtime's, the object's own on top; arguments one after the
    other."""
    (of_runtime,) = runtime["spec"]["containers"]
    model = copy.deepcopy(service["spec"]["predictor"]["model"])
    own = {
        key: part
        for key, part in model.items()
        if key not in ("modelFormat", "runtime", "storageUri", "storage")
    }
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
        volumes.append(
            {
                "name": "kserve-pvc-source",
                "persistentVolumeClaim": {"claimName": claim, "readOnly": False},
            }
        )
        mount = {"name": "kserve-pvc-source", "mountPath": "/mnt/models", "readOnly": True}
        serving["volumeMounts"] = [
            *serving.get("volumeMounts", []),
            mount | ({"subPath": path} if path else {}),
        ]
    number = hashlib.sha256(str(service["spec"]).encode()).hexdigest()[:10]
    kept = ("nodeSelector", "tolerations", "securityContext", "serviceAccountName")
    owner = {key: service[key] for key in ("apiVersion", "kind")} | {
        key: meta[key] for key in ("name", "uid")
    }
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


def llm_pod(service: dict[str, Any]) -> dict[str, Any]:
    """The pod of an LLMInferenceService: each address is a volume of its own
    (opendatahub-io/kserve, workload_lora.go)."""
    meta, spec = service["metadata"], service["spec"]
    (main,), template = (
        copy.deepcopy(spec["template"]["containers"]),
        copy.deepcopy(spec["template"]),
    )
    adapters = {
        one["name"]: one["uri"] for one in (spec["model"].get("lora") or {}).get("adapters", ())
    }
    assert spec["model"]["name"] not in adapters, (
        "a validator of KServe refuses two models of one name"
    )
    where = {"kserve-pvc-source": (spec["model"]["uri"], "/mnt/models")}
    where |= {f"lora-pvc-{name}": (uri, f"/mnt/lora/{name}") for name, uri in adapters.items()}
    volumes = []
    for name, (uri, path) in where.items():
        claim, _, folder = uri.removeprefix("pvc://").partition("/")
        mount = {"name": name, "mountPath": path, "readOnly": True} | (
            {"subPath": folder} if folder else {}
        )
        main.setdefault("volumeMounts", []).append(mount)
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    modules = [json.dumps({"name": name, "path": f"/mnt/lora/{name}"}) for name in sorted(adapters)]
    named = [
        "--served-model-name",
        spec["model"]["name"],
        f"publishers/{meta['namespace']}/models/{spec['model']['name']}",
    ]
    lora = ["--enable-lora", "--lora-modules", *modules] if modules else []
    main |= {
        "image": main.get("image", "registry/vllm:1"),
        "command": ["vllm", "serve", "/mnt/models"],
    }
    main["args"] = [*named, "--port=8000", *lora, *main["args"]]
    # The platform's template says where the probe asks.
    main["startupProbe"]["httpGet"] = {"path": "/health", "port": 8000, "scheme": "HTTPS"}
    number = hashlib.sha256(str(spec).encode()).hexdigest()[:10]
    labels = {
        "app.kubernetes.io/name": meta["name"],
        "app.kubernetes.io/component": "llminferenceservice-workload",
    }
    kueue = {key: value for key, value in meta["labels"].items() if "kueue.x-k8s.io" in key}
    owner = {key: service[key] for key in ("apiVersion", "kind")} | {
        key: meta[key] for key in ("name", "uid")
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-kserve-{number}-{meta['generation']}",
            "labels": labels | kueue,
            "annotations": spec.get("annotations", {}),
            "ownerReferences": [owner],
        },
        "spec": template | {"containers": [main], "volumes": volumes},
    }


def operate(api: Api, space: str, service: dict[str, Any]) -> None:
    """What KServe does about an InferenceService that is new or has changed."""
    from tests.parts.openshift.api import No, event

    name, alone = service["metadata"]["name"], service["kind"] == "LLMInferenceService"
    label = "app.kubernetes.io/name" if alone else "serving.kserve.io/inferenceservice"
    if not alone:
        wanted = service["spec"]["predictor"]["model"]["runtime"]
        runtime = api.objects.get(("servingruntimes", space, wanted))
        if runtime is None:
            failure = {
                "reason": "RuntimeNotRecognized",
                "message": "Waiting for runtime to become available",
            }
            service["status"] = {
                "modelStatus": {"transitionStatus": "InvalidSpec", "lastFailureInfo": failure}
            }
            return
    service["status"] = {}
    for key, one in list(api.objects.items()):
        if key[:2] == ("pods", space) and one["metadata"]["labels"].get(label) == name:
            api.delete("pods", space, key[2], {})
    made = llm_pod(service) if alone else pod(runtime, service)
    try:
        api.put("pods", space, made, dry=False)
    except No as no:
        end = "kserve" if alone else "predictor"
        event(
            api,
            space,
            "ReplicaSet",
            f"{name}-{end}-5d4f",
            "FailedCreate",
            f"Error creating: {no.message}",
        )
        return
    api.objects[("pods", space, made["metadata"]["name"])]["status"] = {"phase": "Pending"}
