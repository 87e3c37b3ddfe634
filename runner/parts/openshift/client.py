"""The connection to a cluster: the user's kubeconfig, a few kinds of objects, and errors in plain words."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

from runner.parts.openshift.client_parts import client_parts
from runner.parts.openshift.errors import Refused, no_api, passes, recent, unreachable
from runner.tools.problem import Stop

# Every kind that the runner touches: its group and version, and its name in an address.
KINDS = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Secret": ("v1", "secrets"),
    "Job": ("batch/v1", "jobs"),
    "PyTorchJob": ("kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "InferenceService": ("serving.kserve.io/v1beta1", "inferenceservices"),
    "ServingRuntime": ("serving.kserve.io/v1alpha1", "servingruntimes"),
    "LocalQueue": ("kueue.x-k8s.io/v1beta2", "localqueues"),
    "Workload": ("kueue.x-k8s.io/v1beta2", "workloads"),
    "Workflow": ("argoproj.io/v1alpha1", "workflows"),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses"),
}
# The form in which an older cluster has a kind that is only read here: Kueue before 0.15.
OLDER = dict.fromkeys(("LocalQueue", "Workload"), "kueue.x-k8s.io/v1beta1")
MANAGER = "recipe-runner"
TIMEOUT_SECONDS = (10, 60)

# An object of the cluster, as Kubernetes defines it.
Manifest = dict[str, Any]
Manifests = list[Manifest]
Query = Sequence[tuple[str, Any]]


class Response(Protocol):
    """An answer of HTTP. data: the whole body, where it was not asked for with `stream`."""

    status: int
    data: bytes

    def stream(self, size: int) -> Iterator[bytes]: ...


class Cluster(Protocol):
    """What the commands ask of a cluster. Every method raises Stop in plain words where the cluster refuses, and TryAgain
    where it does not answer; `request` alone raises Refused instead, with the status and the cluster's own words.

    server: its address; namespace: the one of the kubeconfig's current context.
    """

    namespace: str

    @property
    def server(self) -> str: ...

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None where there is none of that name, or no such kind."""

    def list(
        self, kind: str, namespace: str, labels: Mapping[str, str] | None = None, forgiving: bool = False
    ) -> Manifests:
        """All objects with these labels; none where the cluster does not know the kind.

        forgiving: none, too, where this user may not see them.
        """

    def apply(self, manifest: Mapping[str, Any], dry_run: bool = False) -> Manifest:
        """Server-side apply; with `dry_run` the cluster judges and keeps nothing."""

    def create(self, manifest: Mapping[str, Any], dry_run: bool = False) -> Manifest: ...

    def delete(self, kind: str, namespace: str, name: str, grace_seconds: int | None = None) -> bool:
        """Deletes an object and what belongs to it; False where it was not there."""

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        tail: int | None = None,
        stamped: bool = False,
    ) -> str | None:
        """A container's log; None where it has not started, or there was no container before it (`previous`). stamped: whether
        each line begins with the time at which it was written."""

    def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Response:
        """One request; its body is read unless `stream`."""


def connect() -> Connection:
    """The cluster of the current context of the user's kubeconfig. Raises Stop where there is none."""
    config, client, rest = client_parts()
    settings = client.Configuration()
    # Named here, because the client looks at the variable once, when it is imported.
    file = os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(config_file=file, client_configuration=settings)
        _, context = config.list_kube_config_contexts(config_file=file)
        namespace = (context or {}).get("context", {}).get("namespace", "default")
        return Connection(rest.RESTClientObject(settings).pool_manager, settings, namespace)
    except (config.ConfigException, OSError) as error:
        raise Stop(
            f"No cluster is known on this machine: {str(error).splitlines()[0]}",
            "Log in first: `oc login`. Or name a kubeconfig file in the variable KUBECONFIG.",
        ) from None
    except Exception as error:
        # The client stumbles over what is no kubeconfig in as many ways as there are.
        said = " ".join(str(error).split()) or type(error).__name__
        raise Stop(
            f"The kubeconfig `{file or '~/.kube/config'}` cannot be read: {said}",
            "Log in again, which writes it: `oc login`. Or name another file in the variable KUBECONFIG.",
        ) from None


class Connection(Cluster):
    """A Cluster through the official Kubernetes client.

    pool: its connections, of urllib3; configuration: its own, with the server and who asks.
    """

    def __init__(self, pool: Any, configuration: Any, namespace: str) -> None:
        self.pool, self.configuration = pool, configuration
        self.namespace = namespace
        # When each kind of request was answered last, by `_kind_of`.
        self.answered: dict[tuple[str, ...], float] = {}

    @property
    def server(self) -> str:
        return str(self.configuration.host)

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        try:
            return self._read(kind, namespace, name)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise refused.stop(kind, namespace, name) from None

    def list(
        self, kind: str, namespace: str, labels: Mapping[str, str] | None = None, forgiving: bool = False
    ) -> Manifests:
        query = [("labelSelector", ",".join(f"{key}={value}" for key, value in labels.items()))] if labels else []
        try:
            objects: Manifests = self._read(kind, namespace, None, query).get("items") or []
            return objects
        except Refused as refused:
            if refused.status == 404 or (forgiving and refused.status == 403):
                return []
            raise refused.stop(kind, namespace, "") from None

    def _read(self, kind: str, namespace: str, name: str | None, query: Query = ()) -> Manifest:
        try:
            return self._json("GET", address(kind, namespace, name), query)
        except Refused as refused:
            if refused.status != 404 or kind not in OLDER:
                raise
            return self._json("GET", address(kind, namespace, name, OLDER[kind]), query)

    def apply(self, manifest: Mapping[str, Any], dry_run: bool = False) -> Manifest:
        query = [("fieldManager", MANAGER), ("force", "true"), ("fieldValidation", "Strict")]
        query += [("dryRun", "All")] if dry_run else []
        return self._change("PATCH", manifest, query, "application/apply-patch+yaml")

    def create(self, manifest: Mapping[str, Any], dry_run: bool = False) -> Manifest:
        query = [("fieldManager", MANAGER), *([("dryRun", "All")] if dry_run else [])]
        return self._change("POST", manifest, query, "application/json")

    def _change(self, method: str, manifest: Mapping[str, Any], query: Query, content: str) -> Manifest:
        kind, meta = manifest["kind"], manifest["metadata"]
        name = meta["name"] if method == "PATCH" else None
        try:
            return self._json(method, address(kind, meta["namespace"], name), query, manifest, content)
        except Refused as refused:
            raise refused.stop(kind, meta["namespace"], meta["name"]) from None

    def delete(self, kind: str, namespace: str, name: str, grace_seconds: int | None = None) -> bool:
        # It stays until all that belongs to it has ended.
        query: list[tuple[str, Any]] = [("propagationPolicy", "Foreground")]
        query += [("gracePeriodSeconds", grace_seconds)] if grace_seconds is not None else []
        try:
            self._json("DELETE", address(kind, namespace, name), query)
        except Refused as refused:
            if refused.status == 404:
                return False
            raise refused.stop(kind, namespace, name) from None
        return True

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        tail: int | None = None,
        stamped: bool = False,
    ) -> str | None:
        query: list[tuple[str, Any]] = [("container", container)]
        query += [("previous", "true")] if previous else []
        query += [("tailLines", tail)] if tail else []
        query += [("timestamps", "true")] if stamped else []
        try:
            response = self.request("GET", f"{address('Pod', namespace, pod)}/log", query)
        except Refused as refused:
            if refused.status in (400, 404):
                return None
            raise refused.stop("Pod", namespace, pod) from None
        return response.data.decode(errors="replace")

    def _json(
        self, method: str, path: str, query: Query = (), body: Any = None, content: str = "application/json"
    ) -> Manifest:
        data = self.request(method, path, query, body, content).data
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise no_api(self.server, data)
        return answer

    def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Response:
        import urllib3

        given = {"Accept": "application/json", "Content-Type": content, "User-Agent": MANAGER, **(headers or {})}
        # Asked each time, because one that a program of the person's gives is made anew when it is too old.
        given |= {who["key"]: who["value"] for who in self.configuration.auth_settings().values()}
        try:
            response: Response = self.pool.request(
                method,
                f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=body if body is None or isinstance(body, bytes) else json.dumps(body),
                headers=given,
                # A page to log in is no answer, and a person would wait three times as long for the same sentence.
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=TIMEOUT_SECONDS[0], read=TIMEOUT_SECONDS[1]),
            )
            if not stream or response.status >= 300:
                _ = response.data  # which reads it
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self.server, error) from None
        if response.status < 300:
            self.answered[_kind_of(method, path)] = time.monotonic()
            return response
        raise self._refusal(method, path, response)

    def _refusal(self, method: str, path: str, response: Response) -> Exception:
        """What a server's no means; that of one that starts is as good as 503."""
        page = response.data.lstrip()[:20].lower().startswith((b"<!doctype html", b"<html"))
        if response.status < 400 or (page and not passes(response.status) and "/proxy/" not in path):
            return no_api(self.server, response.data)
        refused = Refused(response.status, _message(response.data) or f"HTTP {response.status}", self.server)
        if refused.of_start and recent(self.answered.get(_kind_of(method, path), -math.inf)):
            return Refused(503, f"it starts anew, and says for now: {refused.message}", self.server)
        return refused


def pieces(cluster: Cluster, response: Response, size: int) -> Iterator[bytes]:
    """The body of a response that was asked for with `stream`, as it comes. Raises Lost where the connection breaks."""
    import urllib3

    try:
        yield from response.stream(size)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise unreachable(cluster.server, error) from None


def address(kind: str, namespace: str, name: str | None = None, older: str = "") -> str:
    """Where the API has an object, or all of its kind. namespace: empty for a kind that lies in none; older: the group and
    version to go by in place of the kind's own."""
    version, plural = KINDS[kind]
    version = older or version
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    space = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{space}/{plural}" + (f"/{name}" if name else "")


def _kind_of(method: str, path: str) -> tuple[str, ...]:
    """What a right is given for: the verb, the kind and what is below an object, whatever that is called."""
    before, _, rest = path.partition("/namespaces/")
    space, plural, name, below = (*rest.split("/"), "", "", "", "")[:4]
    return (method, before, space, plural, "one" if name else "all", below)


def _message(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text).get("message", ""))
    except (ValueError, AttributeError):
        return " ".join(re.sub("<[^>]*>", " ", text).split())
