"""The connection to a cluster: the user's kubeconfig, a few kinds of objects, and errors in plain words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from runner.cluster.errors import Lost, explain
from runner.problem import Stop

# Every kind that the runner touches: its group and version, and its name in an address.
KINDS = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "Job": ("batch/v1", "jobs"),
    "PyTorchJob": ("kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "LocalQueue": ("kueue.x-k8s.io/v1beta1", "localqueues"),
    "Workload": ("kueue.x-k8s.io/v1beta1", "workloads"),
}
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
        self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int | None = None
    ) -> str | None:
        """A container's log; None where it has not started, or there was no container before it (`previous`)."""

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
    try:
        from kubernetes import client, config
    except ImportError:
        raise Stop(
            "Talking to a cluster needs a package that is not installed.", "pip install 'recipe-runner[cluster]'"
        ) from None
    settings = client.Configuration()
    try:
        # Named here, because the client looks at the variable once, when it is imported.
        file = os.environ.get("KUBECONFIG") or None
        config.load_kube_config(config_file=file, client_configuration=settings)
        _, context = config.list_kube_config_contexts(config_file=file)
    except (config.ConfigException, OSError, ValueError) as error:
        raise Stop(
            f"No cluster is known on this machine: {str(error).splitlines()[0]}",
            "Log in first: `oc login`. Or name a kubeconfig file in the variable KUBECONFIG.",
        ) from None
    # The client would try three times, and a person would wait three times as long for the same sentence.
    settings.retries = False
    namespace = (context or {}).get("context", {}).get("namespace", "default")
    return Connection(client.ApiClient(settings), namespace)


class Connection(Cluster):
    """A Cluster through the official Kubernetes client. client: its `ApiClient`."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    @property
    def server(self) -> str:
        return str(self.client.configuration.host)

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        try:
            return self._json("GET", address(kind, namespace, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise refused.stop(kind, namespace, name) from None

    def list(
        self, kind: str, namespace: str, labels: Mapping[str, str] | None = None, forgiving: bool = False
    ) -> Manifests:
        query = [("labelSelector", ",".join(f"{key}={value}" for key, value in labels.items()))] if labels else []
        try:
            objects: Manifests = self._json("GET", address(kind, namespace), query)["items"]
            return objects
        except Refused as refused:
            if refused.status == 404 or (forgiving and refused.status == 403):
                return []
            raise refused.stop(kind, namespace, "") from None

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
        self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int | None = None
    ) -> str | None:
        query: list[tuple[str, Any]] = [("container", container)]
        query += [("previous", "true")] if previous else []
        query += [("tailLines", tail)] if tail else []
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
        answer: Manifest = json.loads(self.request(method, path, query, body, content).data)
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
        from kubernetes.client import ApiException

        try:
            response: Response = self.client.call_api(
                path,
                method,
                query_params=list(query),
                header_params={"Accept": "application/json", "Content-Type": content, **(headers or {})},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=TIMEOUT_SECONDS,
            )
            if not stream:
                _ = response.data  # which reads it
            return response
        except ApiException as error:
            if not error.status:
                raise Lost(self.server, str(error.reason)) from None
            raise Refused(error.status, _message(error.body) or str(error.reason), self.server) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Lost(self.server, str(error)) from None


def pieces(cluster: Cluster, response: Response, size: int) -> Iterator[bytes]:
    """The body of a response that was asked for with `stream`, as it comes. Raises Lost where the connection breaks."""
    import urllib3

    try:
        yield from response.stream(size)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Lost(cluster.server, str(error)) from None


class Refused(Exception):
    """The cluster said no. status: of HTTP; message: the cluster's own words."""

    def __init__(self, status: int, message: str, server: str) -> None:
        self.status, self.message, self.server = status, message, server
        super().__init__(message)

    def stop(self, kind: str, namespace: str, name: str) -> Stop:
        return explain(self.status, self.message, kind, namespace, name, self.server)


def address(kind: str, namespace: str, name: str | None = None) -> str:
    """Where the API has an object, or all of its kind."""
    version, plural = KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _message(body: Any) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        return str(json.loads(text).get("message", ""))
    except (ValueError, AttributeError):
        return text.strip()
