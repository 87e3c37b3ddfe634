"""A small Kubernetes API on this machine: a real HTTP server that the real client talks to.

It keeps objects in memory and refuses what `judging` refuses. Beside it stand a training operator
that makes a PyTorchJob's pods (or says why it cannot), KServe (`kserve`), and a kubelet that really
starts the helper pods of `recipe fetch` and `promote`.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.parts.openshift import kserve
from tests.parts.openshift.judging import refusals

ROOT = Path(__file__).resolve().parents[3]
KINDS = {
    "configmaps": ("v1", "ConfigMap"),
    "events": ("v1", "Event"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "pods": ("v1", "Pod"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "secrets": ("v1", "Secret"),
    "jobs": ("batch/v1", "Job"),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "inferenceservices": ("serving.kserve.io/v1beta1", "InferenceService"),
    "llminferenceservices": ("serving.kserve.io/v1alpha2", "LLMInferenceService"),
    "servingruntimes": ("serving.kserve.io/v1alpha1", "ServingRuntime"),
    "localqueues": ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
    "workloads": ("kueue.x-k8s.io/v1beta2", "Workload"),
    "workflows": ("argoproj.io/v1alpha1", "Workflow"),
}
# The token of the tests themselves, who may do everything; anybody else may do what the site's role
# allows.
TESTS = "sha256~the-tests-own"
ROLES = {
    one["metadata"]["name"]: one["rules"]
    for one in yaml.safe_load_all(
        (ROOT / "openshift/lyric-professor/access.yaml").read_text("utf-8")
    )
    if one["kind"] == "Role"
}
# Which every person who has logged in may ask.
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
# The keys of service accounts that have a role of their own, each of its own name.
KEY_OF = {"recipe-driver": "sha256~the-drivers-own"}
ADDRESS = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))/namespaces/(?P<space>[^/]+)/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/:]+)(?::(?P<port>\d+))?)?(?:/(?P<sub>[a-z]+)(?P<rest>/.*)?)?$"
)


# What servers say of themselves with these statuses.
BUSY = {
    429: "Too many requests, please try again later.",
    401: "Unauthorized",
    # Before a server that starts has read who may do what, and which kinds there are.
    403: 'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "a"',
    404: "404 page not found",
    500: "etcdserver: request timed out",
    502: "Bad Gateway",
    503: "apiserver is shutting down",
    504: "Timeout: request did not complete within the allotted duration",
}


class No(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message
        super().__init__(message)


def storage_class(name: str, provisioner: str, default: bool = False) -> dict[str, Any]:
    """A kind of storage, which every user of OpenShift may see."""
    noted = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": noted}, "provisioner": provisioner}


@dataclass
class Fault:
    """One request of the commands that goes wrong. at: which one, from now on, 0 for the next;
    kind: a status, `reset` or `cut` for a connection that ends without an answer; done: whether the
    server has carried it out by then; lasts: whether every later request goes wrong too; seen: how
    many requests there were."""

    at: int
    kind: int | str
    done: bool = False
    lasts: bool = False
    seen: int = 0

    def hits(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.at or (self.lasts and self.seen > self.at)


class Api:
    """namespaces: those that exist; version: of OpenShift AI; mounts: folders of this machine
    behind pods' mounts.

    faults: requests that end without an answer before one is answered again; fault: what `Fault`
    says of it; lost_answers: pieces of files that arrive in a pod without an answer; busy: statuses
    that the next requests are answered with, those of `busy_at` alone where it names a part of
    their path; says: in these words; page: what all are answered with by a proxy before the server;
    missing: plurals the server does not know; kueue: the version of Kueue's kinds; queues: those
    that the site has made in every namespace; storage: the cluster's classes; quota, forbidden:
    texts with which pods, or everything, are refused; refused_parts: the same for pods of a
    `recipe-runner/part`; accounts: the service accounts that the site has made; watchers: who is
    told of every new object, with its plural and namespace; ending_seconds: how long pods take to
    end, and what owns them to be gone; requests: what was asked, `VERB path`; people: who each
    token is of; of all others it is Ann; clock: how many seconds it is ahead of this machine's.
    """

    def __init__(self, namespace: str, version: str = "3.5", nodes: bool = True) -> None:
        self.namespaces = {namespace}
        # Whether kubelets run pods, and Jobs end by themselves.
        self.nodes = nodes
        self.version = version
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.logs: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.mounts: dict[str, Path] = {}
        self.ports: dict[tuple[str, int], int] = {}
        self.processes: list[subprocess.Popen] = []
        self.uids = itertools.count()
        self.faults = self.lost_answers = 0
        self.fault: Fault | None = None
        self.retry_after = ""
        self.busy: list[int] = []
        self.busy_at = self.says = ""
        self.page = b""
        self.cut_after: int | None = None
        self.missing: set[str] = set()
        self.kueue = "v1beta2"
        self.queues = ["default"]
        self.storage = [
            storage_class("shared", "openshift-storage.cephfs.csi.ceph.com", default=True)
        ]
        self.forbidden = ""
        self.quota = ""
        self.ending_seconds = 0.0
        self.refused_parts: dict[str, str] = {}
        self.accounts = ["recipe-driver", "recipe-runner"]
        self.watchers: list[Callable[[str, str, dict[str, Any]], None]] = []
        self.requests: list[str] = []
        self.people: dict[str, str] = {}
        self.clock = 0.0
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def served(self, plural: str) -> str:
        """The group and version under which the server has a kind."""
        return KINDS[plural][0].replace("x-k8s.io/v1beta2", f"x-k8s.io/{self.kueue}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(
        self, path: Path, namespace: str, token: str = "sha256~not-a-real-token", who: str = "ann"
    ) -> Path:
        """who: the name that the file gives the user, as `oc login` does."""
        name = f"{who}/{self.url.removeprefix('http://')}"
        cluster = {"name": "tests", "cluster": {"server": self.url}}
        context = {
            "name": "tests",
            "context": {"cluster": "tests", "user": name, "namespace": namespace},
        }
        user = {"name": name, "user": {"token": token}}
        value = {"apiVersion": "v1", "kind": "Config", "current-context": "tests"}
        path.write_text(
            yaml.safe_dump(value | {"clusters": [cluster], "contexts": [context], "users": [user]})
        )
        return path

    # What a server does.

    def admit(self, manifest: dict[str, Any], plural: str, space: str) -> None:
        version, kind = self.served(plural), KINDS[plural][1]
        if (manifest.get("apiVersion"), manifest.get("kind")) != (version, kind):
            raise No(400, f"the object provided is not a {version} {kind}")
        if self.forbidden:
            raise No(403, self.forbidden)
        if space not in self.namespaces:
            raise No(404, f'namespaces "{space}" not found')
        if kind not in ("Event", "Workload", "Workflow") and (
            found := refusals(manifest, self.version)
        ):
            raise No(422, f'{kind} "{manifest["metadata"]["name"]}" is invalid: {"; ".join(found)}')
        gpus = "nvidia.com/gpu" in json.dumps(manifest.get("spec")) or kind == "TrainJob"
        if (
            self.quota
            and kind in ("Pod", "Job", "PyTorchJob", "TrainJob")
            and (gpus or "gpu" not in self.quota)
        ):
            raise No(403, f'{plural} "{manifest["metadata"]["name"]}" is forbidden: {self.quota}')

        part = (manifest["metadata"].get("labels") or {}).get("recipe-runner/part")
        if kind == "Pod" and (text := self.refused_parts.get(part)):
            raise No(403, f'{plural} "{manifest["metadata"]["name"]}" is forbidden: {text}')

    def put(self, plural: str, space: str, manifest: dict[str, Any], dry: bool) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        self.admit(manifest, plural, space)
        with self.lock:
            known = self.objects.get((plural, space, name))
            if known:
                self._immutable(known, manifest)
            meta = (known or {}).get("metadata", {})
            fresh = copy.deepcopy(manifest)
            fresh["metadata"] = {
                "uid": f"uid-{next(self.uids)}",
                "creationTimestamp": stamp(),
                "resourceVersion": "1",
                "generation": 1,
                **{
                    key: meta[key]
                    for key in (
                        "uid",
                        "creationTimestamp",
                        "deletionTimestamp",
                        "generation",
                        "resourceVersion",
                    )
                    if key in meta
                },
                **manifest["metadata"],
                "namespace": space,
            }
            if known:
                fresh["status"] = known.get("status", {})
                if fresh != known:
                    fresh["metadata"]["resourceVersion"] = str(
                        int(fresh["metadata"]["resourceVersion"]) + 1
                    )
                if fresh.get("spec") != known.get("spec"):
                    fresh["metadata"]["generation"] += 1
            if not dry:
                self.objects[(plural, space, name)] = fresh
        if not known and not dry:
            self.made(plural, space, fresh)
        if (
            plural in ("inferenceservices", "llminferenceservices")
            and not dry
            and fresh["spec"] != (known or {}).get("spec")
        ):
            kserve.operate(self, space, fresh)
        return fresh

    @staticmethod
    def _immutable(known: dict[str, Any], manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if (
            manifest["kind"] == "ConfigMap"
            and known.get("immutable")
            and known["data"] != manifest["data"]
        ):
            raise No(
                422,
                f'ConfigMap "{name}" is invalid: data: Forbidden: field is immutable when `immutable` is set',
            )
        # A TrainJob is, too, by a webhook of OpenShift AI since August 2026, except for pausing it.
        before, after = ({**one.get("spec", {}), "suspend": None} for one in (known, manifest))
        if manifest["kind"] in ("Job", "PersistentVolumeClaim", "TrainJob") and before != after:
            raise No(
                422, f'{manifest["kind"]} "{name}" is invalid: spec: Forbidden: field is immutable'
            )

    def made(self, plural: str, space: str, manifest: dict[str, Any]) -> None:
        """What operators and kubelets do about a new object."""
        for watch in self.watchers:
            watch(plural, space, manifest)
        if plural == "pytorchjobs":
            operate(self, space, manifest)
        if not self.nodes:
            return
        if plural == "jobs" and manifest["metadata"]["name"].endswith("-model"):
            # The hub is near.
            manifest["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        part = manifest["metadata"].get("labels", {}).get("recipe-runner/part")
        if plural == "pods" and part in ("fetch", "send"):
            start_share(self, space, manifest)
        if plural == "pods" and part in ("promote", "look"):
            threading.Thread(
                target=run_to_its_end, args=(self, space, manifest), daemon=True
            ).start()

    def delete(self, plural: str, space: str, name: str, options: dict[str, Any]) -> None:
        """In the background an object goes at once, in the foreground after all that it owns."""
        with self.lock:
            if (known := self.objects.get((plural, space, name))) is None:
                raise No(404, f'{plural} "{name}" not found')
            uid = known["metadata"]["uid"]
            if (meant := options.get("preconditions", {}).get("uid", uid)) != uid:
                raise No(
                    409,
                    f'Operation cannot be fulfilled on {plural} "{name}": the UID {meant} does not match {uid}',
                )
            going = {
                key: value["metadata"]["uid"]
                for key, value in self.objects.items()
                if any(
                    owner["uid"] == uid for owner in value["metadata"].get("ownerReferences") or []
                )
            }
            if options.get("propagationPolicy") == "Foreground":
                going[(plural, space, name)] = uid
            else:
                del self.objects[(plural, space, name)]
            for key in going:
                self.objects[key]["metadata"].setdefault("deletionTimestamp", stamp())
        if self.ending_seconds and options.get("gracePeriodSeconds") != 0:
            threading.Timer(self.ending_seconds, self.gone, (going,)).start()
        else:
            self.gone(going)

    def gone(self, going: dict[tuple[str, str, str], str]) -> None:
        with self.lock:
            for key, uid in going.items():
                if key in self.objects and self.objects[key]["metadata"]["uid"] == uid:
                    del self.objects[key]

    def select(self, plural: str, space: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        with self.lock:
            found = [
                value
                for (kind, where, _), value in sorted(self.objects.items())
                if (kind, where) == (plural, space)
            ]
        return [
            # Items of a list do not say what they are.
            {key: part for key, part in value.items() if key not in ("kind", "apiVersion")}
            for value in found
            if all(
                (value["metadata"].get("labels") or {}).get(key) == item
                for key, item in wanted.items()
            )
        ]


def without_nodes(api: Api, verb: str, path: str, body: bytes) -> dict[str, Any] | None:
    """What else the tests ask of a cluster that they do not make themselves."""
    if path == "/version":
        return {"major": "1", "minor": "32"}
    if path.endswith("/validatingwebhookconfigurations"):
        return {"items": [{"webhooks": [{"rules": [{"resources": ["pytorchjobs"]}]}]}]}
    if path.endswith("/serviceaccounts"):
        return {"items": [{"metadata": {"name": "default"}}]}
    if path == "/api/v1/namespaces" and verb == "POST":
        api.namespaces.add(json.loads(body)["metadata"]["name"])
        return {"kind": "Namespace"}
    if verb == "DELETE" and (space := re.fullmatch("/api/v1/namespaces/([^/]+)", path)):
        api.namespaces.discard(space[1])
        return {"kind": "Status"}
    return None


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def operate(api: Api, space: str, job: dict[str, Any]) -> None:
    """The training operator: pods for a PyTorchJob, or an event where a pod would be refused, and
    nothing in the job."""
    name = job["metadata"]["name"]
    for role, replica in job["spec"]["pytorchReplicaSpecs"].items():
        for index in range(replica["replicas"]):
            spec = copy.deepcopy(replica["template"]["spec"]) | {
                "restartPolicy": replica.get("restartPolicy", "Never")
            }
            labels = {
                **replica["template"]["metadata"].get("labels", {}),
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": role.lower(),
                "training.kubeflow.org/replica-index": str(index),
            }
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{role.lower()}-{index}",
                    "labels": labels,
                    "ownerReferences": [
                        {
                            "apiVersion": job["apiVersion"],
                            "kind": "PyTorchJob",
                            "name": name,
                            "uid": job["metadata"]["uid"],
                        }
                    ],
                },
                "spec": spec,
            }
            if refusal := pod_refusal(spec):
                event(
                    api,
                    space,
                    "PyTorchJob",
                    name,
                    "FailedCreatePod",
                    f"Error creating: Pod is invalid: {refusal}",
                )
                return
            try:
                api.put("pods", space, pod, dry=False)
            except No as no:
                event(
                    api,
                    space,
                    "PyTorchJob",
                    name,
                    "FailedCreatePod",
                    f"Error creating: {no.message}",
                )
                return
            api.objects[("pods", space, pod["metadata"]["name"])]["status"] = {"phase": "Pending"}


def pod_refusal(spec: dict[str, Any]) -> str:
    """What only a pod is refused for: a volume nobody defined, GPU requests that differ from
    limits, a wrong policy."""
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in volumes:
                return f'spec.containers[0].volumeMounts: Not found: "{mount["name"]}"'
        resources = container.get("resources", {})
        gpus = [resources.get(part, {}).get("nvidia.com/gpu") for part in ("requests", "limits")]
        if gpus[0] != gpus[1]:
            return "nvidia.com/gpu: must be equal to limit"
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never", "ExitCode"):
        return f'spec.restartPolicy: Unsupported value: "{spec["restartPolicy"]}"'
    return ""


def event(api: Api, space: str, kind: str, name: str, reason: str, message: str) -> None:
    number = next(api.uids)
    plural = next((plural for plural, (_, known) in KINDS.items() if known == kind), "")
    uid = api.objects.get((plural, space, name), {"metadata": {}})["metadata"].get("uid", "")
    api.objects[("events", space, f"{name}.{number}")] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{number}", "namespace": space},
        "involvedObject": {"kind": kind, "name": name, "namespace": space, "uid": uid},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": stamp(),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_share(api: Api, space: str, pod: dict[str, Any]) -> None:
    """The kubelet: the helper's own command as a process, its mounts as folders, and then the pod
    is ready."""
    (container,) = pod["spec"]["containers"]
    command = [mapped(api, part) for part in container["command"]]
    port = free_port()
    env = {entry["name"]: entry["value"] for entry in container["env"]} | {
        "RECIPE_SHARE_PORT": str(port)
    }
    name = pod["metadata"]["name"]
    process = subprocess.Popen(
        [sys.executable, *command[1:]],
        env=env | {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    api.processes.append(process)
    api.ports[(name, container["ports"][0]["containerPort"])] = port
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if process.poll() is not None:
            api.logs[(name, "now")] = [
                (stamp(), line) for line in process.stdout.read().decode().splitlines()
            ]
            api.objects[("pods", space, name)]["status"] = {"phase": "Failed"}
            return
        time.sleep(0.05)
    api.objects[("pods", space, name)]["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }


def value_of(api: Api, space: str, entry: dict[str, Any]) -> str:
    """A variable of a container, be it written there or in a Secret that may be missing."""
    if "value" in entry:
        return entry["value"]
    named = entry["valueFrom"]["secretKeyRef"]
    assert named["optional"]
    return (
        api.objects.get(("secrets", space, named["name"]), {})
        .get("stringData", {})
        .get(named["key"], "")
    )


def run_to_its_end(api: Api, space: str, pod: dict[str, Any]) -> None:
    """The kubelet, for a pod that runs once: its own command as a process, its config map's files
    in a folder."""
    (container,) = pod["spec"]["containers"]
    name, mounts = pod["metadata"]["name"], dict(api.mounts)
    with tempfile.TemporaryDirectory() as scratch:
        for volume in pod["spec"]["volumes"]:
            if "configMap" not in volume:
                continue
            folder = Path(scratch) / volume["name"]
            folder.mkdir()
            for file, text in api.objects[("configmaps", space, volume["configMap"]["name"])][
                "data"
            ].items():
                (folder / file).write_text(mapped(api, text), encoding="utf-8")
            (path,) = [
                mount["mountPath"]
                for mount in container["volumeMounts"]
                if mount["name"] == volume["name"]
            ]
            mounts[path] = folder
        command = [
            reduce(lambda word, one: word.replace(one, str(mounts[one])), mounts, part)
            for part in container["command"]
        ]
        done = subprocess.run(
            [sys.executable, *command[1:]],
            env={entry["name"]: value_of(api, space, entry) for entry in container["env"]}
            | {
                "PYTHONPATH": str(ROOT),
                "PATH": os.environ["PATH"],
                "HOME": scratch,
                "TMPDIR": scratch,
            },
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    api.logs[(name, "now")] = [(stamp(), line) for line in done.stdout.decode().splitlines()]
    with api.lock:
        if ("pods", space, name) in api.objects:
            ended = "Succeeded" if done.returncode == 0 else "Failed"
            api.objects[("pods", space, name)]["status"] = {"phase": ended}


def mapped(api: Api, text: str) -> str:
    for mount, folder in api.mounts.items():
        text = text.replace(mount, str(folder))
    return text


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else each answer waits 40 ms for the client to acknowledge its head.
        disable_nagle_algorithm = True

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + api.clock)

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            own = self.headers.get("Authorization") == f"Bearer {TESTS}"
            self.lost: int | str | None = None
            if parts.path == "/readyz":
                # What anybody may ask, and what answers last when a server starts.
                starts = api.faults or (api.busy and not api.busy_at)
                self.send(
                    500 if starts else 200,
                    b"[-]poststarthook failed" if starts else b"ok",
                    "text/plain",
                )
                return
            if api.fault and not own and api.fault.hits():
                if not api.fault.done:
                    return self.lose(api.fault.kind)
                self.lost = api.fault.kind
            api.requests.append(
                f"{self.command} {parts.path}{'?dryRun' if 'dryRun' in query else ''}"
            )
            if api.faults > 0:
                api.faults -= 1
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            try:
                if api.busy and api.busy_at in parts.path and not own:
                    status = api.busy.pop(0)
                    raise No(status, api.says or BUSY[status])
                if api.page and not own:
                    self.send(200, api.page, "text/html")
                    return
                if not self.headers.get("Authorization", "").startswith("Bearer "):
                    raise No(401, "Unauthorized")
                if (
                    parts.path == "/apis/storage.k8s.io/v1/storageclasses"
                    and "storageclasses" not in api.missing
                ):
                    self.send(
                        200, json.dumps({"kind": "StorageClassList", "items": api.storage}).encode()
                    )
                    return
                if not api.nodes and (found := without_nodes(api, self.command, parts.path, body)):
                    self.send(200, json.dumps(found).encode())
                    return
                if (
                    space := re.fullmatch("/api/v1/namespaces/([^/]+)", parts.path)
                ) and self.command == "GET":
                    if space[1] not in api.namespaces:
                        raise No(404, f'namespaces "{space[1]}" not found')
                    self.send(
                        200,
                        json.dumps({"kind": "Namespace", "metadata": {"name": space[1]}}).encode(),
                    )
                    return
                if parts.path == WHO_AM_I and "selfsubjectreviews" not in api.missing:
                    token = self.headers["Authorization"].removeprefix("Bearer ")
                    user = {"username": api.people.get(token, "ann")}
                    self.send(
                        201,
                        json.dumps(
                            {"kind": "SelfSubjectReview", "status": {"userInfo": user}}
                        ).encode(),
                    )
                    return
                match = ADDRESS.match(parts.path)
                if not match or match["plural"] in api.missing or match["plural"] not in KINDS:
                    raise No(404, "404 page not found")
                if (match["core"] or match["group"]) != api.served(match["plural"]):
                    raise No(404, "404 page not found")
                if not own:
                    self.permit(match)
                self.answer(match, query, body)
            except No as no:
                status = {
                    "kind": "Status",
                    "status": "Failure",
                    "code": no.status,
                    "message": no.message,
                }
                self.send(no.status, json.dumps(status).encode())
            except Exception as error:
                # A mistake of this server must not look like a lost connection.
                self.send(
                    500, json.dumps({"message": f"the tests' own API failed: {error!r}"}).encode()
                )
                raise

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any

        def permit(self, match: re.Match) -> None:
            """What the roles in the site's access.yaml say; server-side apply of something new is
            `create` too."""
            key = self.headers["Authorization"].removeprefix("Bearer ")
            who = next((account for account, own in KEY_OF.items() if own == key), "recipe-user")
            plural, name = match["plural"], match["name"]
            verbs = {
                "GET": {"get"} if name else {"list"},
                "POST": {"create"},
                "DELETE": {"delete"},
                "PATCH": {"patch"}
                | (set() if (plural, match["space"], name) in api.objects else {"create"}),
            }[self.command]
            resource = f"{plural}/{match['sub']}" if match["sub"] else plural
            group = (match["group"] or "").partition("/")[0]
            held = {
                verb
                for rule in ROLES[who]
                if group in rule["apiGroups"] and resource in rule["resources"]
                for verb in rule["verbs"]
            }
            if not verbs <= held:
                raise No(
                    403,
                    f'{resource} is forbidden: User "ann" cannot {"/".join(verbs - held)} "{group}" {resource}',
                )

        def answer(self, match: re.Match, query: dict[str, str], body: bytes) -> None:
            space, plural, name, sub = match["space"], match["plural"], match["name"], match["sub"]
            if sub == "proxy":
                self.proxy(name, int(match["port"]), match["rest"] or "/", body)
            elif sub == "portforward":
                self.port_forward(name, int(query["ports"]))
            elif sub == "log":
                self.log_of(space, name, query)
            elif self.command == "GET" and plural in ("localqueues", "serviceaccounts"):
                known = api.queues if plural == "localqueues" else api.accounts
                found = [{"metadata": {"name": one, "namespace": space}} for one in known]
                if name and name not in known:
                    raise No(404, f'{plural} "{name}" not found')
                self.send(
                    200, json.dumps(found[known.index(name)] if name else {"items": found}).encode()
                )
            elif self.command == "GET" and name is None:
                items = api.select(plural, space, query.get("labelSelector", ""))
                self.send(200, json.dumps({"kind": "List", "items": items}).encode())
            elif self.command == "GET":
                if (plural, space, name) not in api.objects:
                    raise No(404, f'{plural} "{name}" not found')
                self.send(200, json.dumps(api.objects[(plural, space, name)]).encode())
            elif self.command == "DELETE":
                api.delete(plural, space, name, json.loads(body or b"{}"))
                self.send(200, b'{"kind": "Status", "status": "Success"}')
            elif sub == "status":
                merge(api.objects[(plural, space, name)], json.loads(body))
                self.send(200, json.dumps(api.objects[(plural, space, name)]).encode())
            else:
                self.write(plural, space, name, query, json.loads(body))

        def write(
            self, plural: str, space: str, name: str | None, query: dict[str, str], manifest: Any
        ) -> None:
            if (
                self.command == "POST"
                and (plural, space, manifest["metadata"]["name"]) in api.objects
            ):
                raise No(409, f'{plural} "{manifest["metadata"]["name"]}" already exists')
            if (
                self.command == "PATCH"
                and self.headers["Content-Type"] == "application/merge-patch+json"
            ):
                if (plural, space, name) not in api.objects:
                    raise No(404, f'{plural} "{name}" not found')
                merge(api.objects[(plural, space, name)], manifest)
                self.send(200, json.dumps(api.objects[(plural, space, name)]).encode())
                return
            if self.command == "PATCH":
                if (
                    self.headers["Content-Type"] != "application/apply-patch+yaml"
                    or "fieldManager" not in query
                ):
                    raise No(415, "only server-side apply is known here")
                if manifest["metadata"]["name"] != name:
                    raise No(400, "the name in the object and in the address differ")
            made = api.put(plural, space, manifest, dry="dryRun" in query)
            self.send(201, json.dumps(made).encode())

        def log_of(self, space: str, name: str, query: dict[str, str]) -> None:
            if ("pods", space, name) not in api.objects:
                raise No(404, f'pods "{name}" not found')
            lines = api.logs.get((name, "previous" if query.get("previous") == "true" else "now"))
            if (
                lines is None
                and "previous" not in query
                and not api.objects[("pods", space, name)]["spec"].get("nodeName")
            ):
                # What a server answers for a pod that has no machine yet.
                self.send(204, b"")
                return
            if lines is None:
                raise No(
                    400, f'container "{query["container"]}" in pod "{name}" is waiting to start'
                )
            # A server compares whole seconds, so lines of the last second come again.
            kept = [line for line in lines if line[0][:19] >= query.get("sinceTime", "")[:19]]
            kept = kept[-int(query["tailLines"]) :] if "tailLines" in query else kept
            stamped = query.get("timestamps") == "true"
            text = "".join(f"{at} {line}\n" if stamped else f"{line}\n" for at, line in kept)
            self.send(200, text.encode(), "text/plain")

        def proxy(self, name: str, port: int, rest: str, sent: bytes) -> None:
            if (name, port) not in api.ports:
                raise No(503, "no endpoints available")
            headers = {key: value for key, value in self.headers.items() if key == "Range"}
            where = f"http://127.0.0.1:{api.ports[(name, port)]}{rest}"
            request = urllib.request.Request(
                where,
                headers=headers,
                data=sent if self.command == "POST" else None,
                method=self.command,
            )
            try:
                with urllib.request.urlopen(request) as found:
                    status, body = found.status, found.read()
            except urllib.error.HTTPError as error:
                raise No(error.code, error.read().decode() or "the pod refused") from None
            if self.command == "POST" and rest.endswith("/pieces") and api.lost_answers > 0:
                # It has arrived, and nobody is told.
                api.lost_answers -= 1
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if api.cut_after is not None and "/file/" in rest and len(body) > api.cut_after:
                body, announced, api.cut_after = body[: api.cut_after], len(body), None
                self.send_response(status)
                self.send_header("Content-Length", str(announced))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send(status, body)

        def port_forward(self, name: str, port: int) -> None:
            """The websocket of a port-forward: channel 0 data, channel 1 errors, each begun by the
            port's number."""
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header(
                "Sec-WebSocket-Accept",
                base64.b64encode(hashlib.sha1(key.encode()).digest()).decode(),
            )
            self.send_header(
                "Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"].split(",")[0]
            )
            self.end_headers()
            self.close_connection = True
            there = socket.create_connection(("127.0.0.1", api.ports[(name, port)]))
            for channel in (0, 1):
                self.frame(bytes([channel]) + port.to_bytes(2, "little"))
            threading.Thread(target=self.back, args=(there,), daemon=True).start()
            while (data := self.read_frame()) is not None:
                if data[:1] == b"\0":
                    there.sendall(data[1:])
            there.close()

        def back(self, there: socket.socket) -> None:
            try:
                while data := there.recv(65536):
                    self.frame(b"\0" + data)
                self.connection.sendall(b"\x88\x00")
            except OSError:
                pass

        def frame(self, data: bytes) -> None:
            size = len(data)
            if size < 126:
                head = bytes([0x82, size])
            else:
                head = (
                    b"\x82\x7e" + size.to_bytes(2, "big")
                    if size < 65536
                    else b"\x82\x7f" + size.to_bytes(8, "big")
                )
            self.connection.sendall(head + data)

        def read_frame(self) -> bytes | None:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 0x0F == 8:
                return None
            size = head[1] & 0x7F
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            return bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(size)))

        def lose(self, kind: int | str) -> None:
            """The answer of a fault."""
            self.lost = None
            if isinstance(kind, int):
                self.send(kind, json.dumps({"kind": "Status", "message": BUSY[kind]}).encode())
                return
            self.close_connection = True
            if kind == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                # It ends with a reset when it is closed so.
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                os.close(self.connection.detach())

        def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
            if self.lost is not None:
                return self.lose(self.lost)
            self.send_response(status)
            if api.retry_after and status in (429, 503):
                self.send_header("Retry-After", api.retry_after)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """A JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value
