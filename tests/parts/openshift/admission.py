"""What Kubernetes' API server refuses beyond its schemas, which say only of what kind each field
is: names, labels, mounts, ports, sizes. Sources: pkg/apis/core/validation and
apimachinery/pkg/util/validation of Kubernetes 1.30."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
SUBDOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
ENV = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?\Z")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(m|k|Ki|Mi|Gi|Ti|Pi|M|G|T|P|)\Z")
UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
MIB = 2**20


def unseen(manifest: dict[str, Any]) -> list[str]:
    """Why an API server would not take a manifest that its schema lets through; empty where it
    would."""
    return [*metadata(manifest["metadata"], manifest["kind"]), *inside(manifest, manifest["kind"])]


def metadata(meta: dict[str, Any], what: str) -> Iterator[str]:
    if "name" in meta and not SUBDOMAIN.match(meta["name"]):
        yield f"{what}: `{meta['name']}` is no name"
    if "namespace" in meta and not LABEL.match(meta["namespace"]):
        yield f"{what}: `{meta['namespace']}` is no namespace"
    for kind in ("labels", "annotations"):
        for key, value in (meta.get(kind) or {}).items():
            if not qualified(key):
                yield f"{what}: `{key}` is no key of {kind}"
            if kind == "labels" and not LABEL_VALUE.match(value):
                yield f"{what}: `{value}` is no label"
    if (
        sum(
            len(key) + len(value.encode()) for key, value in (meta.get("annotations") or {}).items()
        )
        > 256 * 1024
    ):
        yield f"{what}: annotations of more than 256 KiB"


def qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(NAME_PART.match(name)) and (not slash or bool(SUBDOMAIN.match(prefix)))


def inside(node: Any, what: str) -> Iterator[str]:
    """What is wrong with pods, claims, maps and jobs wherever they stand in a manifest."""
    if isinstance(node, list):
        for item in node:
            yield from inside(item, what)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("metadata"), dict) and what != "ConfigMap" and "kind" not in node:
        yield from metadata(node["metadata"], what)
    if isinstance(node.get("containers"), list):
        yield from pod(node, what)
    if what == "ConfigMap":
        yield from config_map(node)
        return
    if (
        what == "PersistentVolumeClaim"
        and "storageClassName" in node
        and not SUBDOMAIN.match(node["storageClassName"])
    ):
        yield f"`{node['storageClassName']}` is no storage class"
    if (
        node.get("activeDeadlineSeconds") is not None
        and not 0 < node["activeDeadlineSeconds"] < 2**31
    ):
        yield f"{what}: activeDeadlineSeconds is {node['activeDeadlineSeconds']}"
    for name in ("requests", "limits"):
        for key, value in (
            (node.get(name) or {}).items() if isinstance(node.get(name), dict) else ()
        ):
            if not qualified(key):
                yield f"{what}: `{key}` is no resource"
            elif not amount(value) > 0:
                yield f"{what}: {value} of {key}"
            elif name == "requests" and amount(value) > amount(
                (node.get("limits") or {}).get(key, value)
            ):
                yield f"{what}: more {key} is requested than its limit"
    for value in node.values():
        yield from inside(value, what)


def amount(value: Any) -> float:
    found = QUANTITY.match(str(value))
    return float(found[1]) * UNITS[found[2]] if found else -1


def config_map(node: dict[str, Any]) -> Iterator[str]:
    data = node.get("data") or {}
    yield from (f"`{key}` is no key of a ConfigMap" for key in data if not CONFIG_KEY.match(key))
    if (size := sum(len(key) + len(text.encode()) for key, text in data.items())) > MIB:
        yield f"a ConfigMap of {size:,} bytes"


def pod(spec: dict[str, Any], what: str) -> Iterator[str]:
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    for names in (volumes, [container["name"] for container in containers]):
        yield from (
            f"{what}: two are called `{name}`"
            for name, count in Counter(names).items()
            if count > 1
        )
        yield from (
            f"{what}: `{name}` is no name in a pod" for name in names if not LABEL.match(name)
        )
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not qualified(key) or not LABEL_VALUE.match(value):
            yield f"{what}: no machine has the label {key}={value}"
    for container in containers:
        image = container.get("image")
        if (image is not None and image.strip() != image) or image == "":
            yield f"{what}: `{image}` is no image"
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts") or ()]
        yield from (
            f"{what}: two mounts at `{path}`"
            for path, count in Counter(mounts).items()
            if count > 1
        )
        yield from (
            f"{what}: `{path}` cannot be mounted"
            for path in mounts
            if ":" in path or not path.startswith("/")
        )
        for mount in container.get("volumeMounts") or ():
            if volumes and mount["name"] not in volumes:
                yield f"{what}: no volume `{mount['name']}`"
        env = [entry["name"] for entry in container.get("env") or ()]
        yield from (f"{what}: `{name}` is no variable" for name in env if not ENV.match(name))
        yield from (
            f"{what}: two variables {name}" for name, count in Counter(env).items() if count > 1
        )
        ports = container.get("ports") or ()
        for port in ports:
            if not 0 < port["containerPort"] < 65536 or not PORT_NAME.match(port.get("name", "a")):
                yield f"{what}: {port} is no port"
        for key in ("containerPort", "name"):
            counts = Counter(port.get(key) for port in ports)
            yield from (
                f"{what}: two ports {value}"
                for value, count in counts.items()
                if value and count > 1
            )
