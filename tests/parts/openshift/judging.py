"""What a cluster refuses at the door: the schemas of custom resources, Kubernetes' own, and the
operators' rules."""

from __future__ import annotations

import json
import os
import re
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.parts.openshift.admission import unseen

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
KUBERNETES = "1.30"


def full_schemas() -> Path | None:
    """The folder with the whole schemas: `RECIPE_TEST_CRDS`, else `shared/crds` beside the
    checkout; None where there is none."""
    root = Path(__file__).resolve().parents[3]
    given = os.environ.get("RECIPE_TEST_CRDS")
    folder = Path(given) if given else root.parent / "shared" / "crds"
    return folder if folder.is_dir() else None


@cache
def reduced() -> dict[str, dict[str, Any]]:
    """Our reduced schemas by file name: `apiVersion`, `kind`, `schema`, and `full`, the whole one's
    file."""
    found = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in SCHEMAS.glob("*.yaml")}
    assert found, "no reduced schema found"
    return found


def schema_of(manifest: dict[str, Any], version: str = "3.5") -> dict[str, Any] | None:
    """The schema for a custom resource; TrainJob's is the one of that version of OpenShift AI."""
    for name, entry in reduced().items():
        if (entry["apiVersion"], entry["kind"]) != (
            manifest.get("apiVersion"),
            manifest.get("kind"),
        ):
            continue
        if manifest["kind"] != "TrainJob" or name == f"trainjob-{version}":
            return entry["schema"]
    return None


def refusals(manifest: dict[str, Any], version: str = "3.5") -> list[str]:
    """Why a cluster would not take a manifest; empty where it would."""
    schema = schema_of(manifest, version)
    if schema is None:
        return [*core_refusals(manifest), *unseen(manifest)]
    found = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in _validator(manifest["apiVersion"], manifest["kind"], version).iter_errors(
            manifest
        )
    ]
    found += unseen(manifest)
    found += duplicates(manifest, schema)
    # Of custom resources the API takes any DNS subdomain (RFC 1123); what becomes a service's name
    # is a label.
    queue = manifest["kind"] in ("ClusterQueue", "LocalQueue", "ResourceFlavor")
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    allowed = rf"{label}(\.{label})*" if queue else r"[a-z]([-a-z0-9]*[a-z0-9])?"
    if not re.fullmatch(allowed, manifest["metadata"]["name"]):
        found.append(f"metadata.name must be a {'DNS subdomain' if queue else 'DNS-1035 label'}")
    found += {"PyTorchJob": pytorchjob_refusals, "TrainJob": trainjob_refusals}.get(
        manifest["kind"], lambda _: []
    )(manifest)
    return found


@cache
def _validator(api: str, kind: str, version: str) -> Draft202012Validator:
    return Draft202012Validator(closed(schema_of({"apiVersion": api, "kind": kind}, version)))


def closed(node: Any) -> Any:
    """The schema with unknown fields refused, as a server does under server-side apply."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and "additionalProperties" not in node:
        out["additionalProperties"] = False
    return out


def duplicates(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Lists whose entries must differ in a key, and do not."""
    found: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            below = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if isinstance(below, dict):
                found += duplicates(item, below, f"{where}.{key}")
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys")
        seen = [tuple(item.get(key) for key in keys) for item in value] if keys else []
        found += [f"{where}: two entries {entry}" for entry in set(seen) if seen.count(entry) > 1]
        for item in value:
            found += duplicates(item, schema.get("items", {}), where)
    return found


def core_refusals(manifest: dict[str, Any]) -> list[str]:
    return list(_core_refusals(json.dumps(manifest)))


# Of many recipes most manifests are alike.
@lru_cache(10_000)
def _core_refusals(text: str) -> tuple[str, ...]:
    kubernetes_validate = _kubernetes_validate()
    try:
        kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (f"{'.'.join(map(str, error.path))}: {error.message[:300]}",)
    return ()


@cache
def _kubernetes_validate() -> ModuleType:
    """With its schemas in memory: it reads megabytes of them at each judgement."""
    import kubernetes_validate
    from kubernetes_validate import utils

    utils.schema_contents = cache(utils.schema_contents)
    utils.all_versions = cache(utils.all_versions)
    return kubernetes_validate


def pytorchjob_refusals(manifest: dict[str, Any]) -> list[str]:
    """What the operator's webhook refuses (tried with operator 1.9.0), and what Kubernetes would of
    the pods."""
    found = []
    replicas = manifest["spec"].get("pytorchReplicaSpecs", {})
    if set(replicas) - {"Master", "Worker"}:
        found.append(f"pytorchReplicaSpecs has {sorted(replicas)}")
    if replicas.get("Master", {}).get("replicas") != 1:
        found.append("Master must have exactly 1 replica")
    for role, replica in replicas.items():
        host = f"{manifest['metadata']['name']}-{role.lower()}-{replica.get('replicas', 1) - 1}"
        if len(host) > 63:
            found.append(f"{host} is too long for a pod's host name")
        pod = {"apiVersion": "v1", "kind": "Pod", **replica["template"]}
        pod["metadata"] = {"name": "pod", **pod.get("metadata", {})}
        found += [f"{role}: {refusal}" for refusal in core_refusals(pod)]
        if "pytorch" not in [entry["name"] for entry in replica["template"]["spec"]["containers"]]:
            found.append(f"{role} has no container named pytorch")
    return found


def trainjob_refusals(manifest: dict[str, Any]) -> list[str]:
    trainer = manifest["spec"].get("trainer", {})
    env = trainer.get("env") or []
    host = f"{manifest['metadata']['name']}-node-0-{trainer.get('numNodes', 1) - 1}"
    long = [f"{host} is too long for a pod's host name"] if len(host) > 63 else []
    return long + [
        f"trainer.env may not set {entry['name']}"
        for entry in env
        if entry["name"].startswith("PET_")
    ]
