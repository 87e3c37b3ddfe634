"""The connection to a cluster: the user's kubeconfig, the kinds of objects that the runner uses,
and plain errors."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import pkgutil
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlencode

from runner.parts.jobs.kubernetes import SHARED, Manifest
from runner.parts.openshift import errors
from runner.parts.openshift.errors import (
    Lost,
    Refused,
    is_recent,
    is_temporary,
    no_api,
    unreachable,
)
from runner.tools import packaged
from runner.tools.problem import Stop
from runner.tools.process import bound_port
from runner.tools.text import printable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

ROOT = "kubernetes"
# Packages that `client_parts` replaces while it imports: the client uses them only for an
# `auth-provider` or a proxy.
LATER: Mapping[str, list[str]] = packaged.toml(__file__, "later.toml")


class Later(ModuleType):
    """A module, or a function or class in one, that is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        # While this object replaces the module, importers only take names from it.
        if sys.modules.get(self.__name__) is self:
            return Later(full_name)
        return pkgutil.resolve_name(full_name)

    def __call__(self, *arguments: object, **options: object) -> Any:
        return pkgutil.resolve_name(self.__name__)(*arguments, **options)


@cache
def client_parts() -> tuple[Any, Any, Any]:
    """The client's kubeconfig reader, its configuration and its connection pool. A later import of
    the client itself still imports all of it. Raises Stop if it is not installed."""
    client_spec = importlib.util.find_spec(ROOT)
    if client_spec is None or not client_spec.submodule_search_locations:
        raise Stop(
            "The cluster commands need a package that is not installed.",
            packaged.install("cluster"),
        )
    home = client_spec.submodule_search_locations[0]
    before = {name: sys.modules.pop(name) for name in _loaded_modules()}
    later = []
    for package, package_parts in LATER.items():
        if package not in sys.modules:
            later.append(package)
            later += [f"{package}.{part}" for part in package_parts]
    sys.modules.update({name: Later(name) for name in later})
    try:
        for name in (ROOT, f"{ROOT}.client", f"{ROOT}.config"):
            bare = sys.modules[name] = ModuleType(name)
            bare.__path__ = [os.path.join(home, *name.split(".")[1:])]
        client = importlib.import_module(f"{ROOT}.client.configuration")
        rest_module = importlib.import_module(f"{ROOT}.client.rest")
        # The names that its kubeconfig reader imports. We do not use the second one.
        vars(sys.modules[f"{ROOT}.client"]).update(
            Configuration=client.Configuration, ApiClient=None
        )
        return importlib.import_module(f"{ROOT}.config.kube_config"), client, rest_module
    finally:
        for name in [*later, *_loaded_modules()]:
            del sys.modules[name]
        sys.modules.update(before)


def _loaded_modules() -> list[str]:
    """The modules of the client that are loaded."""
    return [name for name in sys.modules if name.partition(".")[0] == ROOT]


# Every kind that the runner uses: its group and version, and its name in API paths.
KINDS: Mapping[str, tuple[str, str]] = packaged.toml(__file__, "kinds.toml")
# The older version of a kind that is only read here: Kueue before 0.15.
OLDER = dict.fromkeys(("LocalQueue", "Workload"), "kueue.x-k8s.io/v1beta1")
MANAGER = "recipe-runner"
JSON = "application/json"

Manifests = list[Manifest]
Query = Sequence[tuple[str, Any]]


def connect() -> Cluster:
    """The cluster of the current context of the user's kubeconfig. Raises Stop if there is none."""
    config, client, rest_module = client_parts()
    settings = client.Configuration()
    # Named here, because the client looks at the variable once, when it is imported.
    file = os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(config_file=file, client_configuration=settings)
        _, active_context = config.list_kube_config_contexts(config_file=file)
        context = (active_context or {}).get("context", {})
        pool = rest_module.RESTClientObject(settings).pool_manager
        return Cluster(pool, settings, context.get("namespace", "default"), context.get("user", ""))
    except (config.ConfigException, OSError) as error:
        reason = str(error).splitlines()[0]
        if file or "configuration found" not in reason:
            detail = f": {reason}"
        else:
            detail = "."
        raise Stop(
            f"This machine is not logged in to a cluster{detail}",
            "Log in with `oc login`, or set the variable KUBECONFIG to a kubeconfig file. Without a cluster, use `recipe rehearse` and `recipe run`.",
        ) from None
    except Exception as error:
        # For a file that is not a kubeconfig, the client raises various errors.
        explanation = " ".join(str(error).split()) or type(error).__name__
        raise Stop(
            f"The kubeconfig `{file or '~/.kube/config'}` cannot be read: {explanation}",
            "Log in again with `oc login`, or set the variable KUBECONFIG to another file.",
        ) from None


def connect_in_pod(server: str, keys: Path, namespace: str) -> Cluster:
    """The cluster of this pod, without the official client. keys: the folder of its account's token
    and the authority."""
    import urllib3

    authority = keys / "ca.crt"
    if authority.is_file():
        pool = urllib3.PoolManager(ca_certs=str(authority))
    else:
        pool = urllib3.PoolManager()
    return Cluster(pool, PodLogin(server, keys), namespace)


class Login(Protocol):
    """The official client's configuration, or what replaces it in a pod."""

    @property
    def host(self) -> str:
        """The address of the server."""

    def auth_settings(self) -> Mapping[str, Mapping[str, str]]:
        """The credentials, by their kind: the `key` of the header, and its `value`."""


class PodLogin(NamedTuple):
    """The login of a pod's service account."""

    host: str
    keys: Path  # the folder of the account's token and the authority

    def auth_settings(self) -> Mapping[str, Mapping[str, str]]:
        # Read each time, because a kubelet replaces the token within the hour.
        try:
            token = (self.keys / "token").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Stop(
                f"The pod has no credentials for the cluster: {error.filename}: {error.strerror}.",
                "Mount its service account: `automountServiceAccountToken: true`.",
            ) from None
        return {"token": {"key": "authorization", "value": f"Bearer {token}"}}


class ApiRequest(NamedTuple):
    """A request to the API."""

    method: str
    path: str
    query: Query
    body: object  # bytes, or what becomes JSON; None for none
    content: str  # the type of the body
    headers: Mapping[str, str]  # besides those of every request
    stream: bool  # do not read the answer's body


class Cluster:
    """A cluster. Every method raises Stop if the cluster refuses, and TryAgain if it does not
    answer; `request` alone raises Refused, with the status and the cluster's own words. Requests
    are retried after 429, 5xx and broken connections, as kubectl does it. pool: connections of
    urllib3; configuration: the official client's, with the server and the credentials; namespace,
    user: those of the kubeconfig's current context."""

    def __init__(
        self, pool: PoolManager, configuration: Login, namespace: str, user: str = ""
    ) -> None:
        self.pool = pool
        self.configuration = configuration
        self.namespace = namespace
        self.user = user
        # The cluster's clock minus this machine's, from its last answer.
        self.ahead = timedelta()
        # When each kind of request was answered last, by `_kind_of`.
        self.answered: dict[tuple[str, ...], float] = {}
        self.hasty = False  # requests are tried once only
        self.begun = False  # this command has changed something
        self.ready = False  # the server is ready

    def once(self) -> Cluster:
        """A copy for a caller that repeats requests itself, and shows problems meanwhile."""
        hasty_copy = copy.copy(self)
        hasty_copy.hasty = True
        return hasty_copy

    @property
    def server(self) -> str:
        return str(self.configuration.host)

    def now(self) -> datetime:
        """The time by the cluster's clock, which stamps its objects and logs."""
        return datetime.now(UTC) + self.ahead

    def person(self) -> str:
        """The cluster's name of this user; the kubeconfig's name if it does not answer (before
        Kubernetes 1.28)."""
        api = "authentication.k8s.io/v1"
        review_kind = "SelfSubjectReview"
        try:
            answer = self._json(
                "POST",
                f"/apis/{api}/selfsubjectreviews",
                body={"apiVersion": api, "kind": review_kind},
            )
            return str(answer["status"]["userInfo"]["username"])
        except Refused as refused:
            if refused.status == 401 or is_temporary(refused.status):
                raise refused.stop(review_kind, "", "") from None
            # `oc login` names a user NAME/SERVER.
            return self.user.partition("/")[0]

    def get(
        self, object_kind: str, namespace: str, name: str, forgiving: bool = False
    ) -> Manifest | None:
        """The object, or None without such an object or kind; if `forgiving`, an empty one where
        this user may not look."""
        try:
            return self._read(object_kind, namespace, name)
        except Refused as refused:
            if _is_absent(refused, object_kind):
                return None
            if forgiving and refused.status == 403:
                return {}
            raise refused.stop(object_kind, namespace, name) from None

    def list(
        self,
        object_kind: str,
        namespace: str,
        labels: Mapping[str, str] | None = None,
        forgiving: bool = False,
    ) -> Manifests:
        """All objects with these labels; none of an unknown kind or, if `forgiving`, where this
        user may not look."""
        query = []
        if labels:
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            query.append(("labelSelector", selector))
        hidden = 403 if forgiving else None
        with _about(
            object_kind,
            namespace,
            "",
            lambda refused: _is_absent(refused, object_kind) or refused.status == hidden,
        ):
            return list(self._read(object_kind, namespace, None, query).get("items") or ())
        return []

    def version(self) -> tuple[int, int]:
        """The version of its Kubernetes, as two numbers; an unreadable one counts as old."""
        facts = self._json("GET", "/version")
        return _leading_number(facts.get("major")), _leading_number(facts.get("minor"))

    def require_namespace(self, namespace: str) -> None:
        """Raises Stop if the namespace does not exist. A cluster lists nothing in a missing one."""
        with _about("Namespace", namespace, "", lambda refused: refused.status != 404):
            self._json("GET", address("Namespace", "", namespace))

    def knows(self, object_kind: str, namespace: str, usable: bool = False) -> bool:
        """Whether the cluster has a kind. usable: and this user may list it."""
        try:
            return bool(self._read(object_kind, namespace, None))
        except Refused as refused:
            return not refused.no_kind and not (usable and refused.status == 403)

    def _read(
        self, object_kind: str, namespace: str, name: str | None, query: Query = ()
    ) -> Manifest:
        try:
            return self._json("GET", address(object_kind, namespace, name), query)
        except Refused as refused:
            if refused.status != 404 or object_kind not in OLDER:
                raise
            return self._json(
                "GET", address(object_kind, namespace, name, OLDER[object_kind]), query
            )

    def apply(self, manifest: Manifest, dry_run: bool = False) -> Manifest:
        """Server-side apply; with `dry_run` the cluster only checks the object. The result is empty
        for a NetworkPolicy that this person may not create, because sites of earlier releases lack
        that permission."""
        query = [*_changes(dry_run), ("force", "true")]
        object_kind = manifest["kind"]
        meta = manifest["metadata"]
        where = object_kind, meta["namespace"], meta["name"]
        with _about(
            *where, lambda refused: (object_kind, refused.status) == ("NetworkPolicy", 403)
        ):
            return self._json(
                "PATCH",
                address(*where),
                query,
                body=manifest,
                content="application/apply-patch+yaml",
            )
        return {}

    def create(self, manifest: Manifest, dry_run: bool = False) -> bool:
        """Creates an object; False if its name is taken, unless by an earlier attempt of ours
        without an answer."""
        object_kind = manifest["kind"]
        meta = manifest["metadata"]
        try:
            self._json(
                "POST", address(object_kind, meta["namespace"]), _changes(dry_run), body=manifest
            )
        except Refused as refused:
            if refused.status == 409 and not refused.busy:
                return refused.repeated
            raise refused.stop(object_kind, meta["namespace"], meta["name"]) from None
        return True

    def patch(self, object_kind: str, namespace: str, name: str, change: Manifest) -> None:
        with _about(object_kind, namespace, name, lambda refused: False):
            self.request(
                "PATCH",
                address(object_kind, namespace, name),
                body=change,
                content="application/merge-patch+json",
            )

    def delete(
        self,
        object_kind: str,
        namespace: str,
        name: str,
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> bool:
        """Deletes an object and what belongs to it; False if it was not there. uid: of the only
        object to delete."""
        # The object remains until all its dependents have ended.
        options: dict[str, object] = {"propagationPolicy": "Foreground"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._json("DELETE", address(object_kind, namespace, name), body=options)
        except Refused as refused:
            is_another = uid and refused.status == 409 and not refused.busy
            if is_another or _is_absent(refused, object_kind):
                return refused.repeated
            raise refused.stop(object_kind, namespace, name) from None
        return True

    def log(
        self, namespace: str, pod: str, container: str, **settings: str | int | None
    ) -> str | None:
        """A container's log; None if it has not started, or there is no previous container
        (`previous`). settings: of the API: `tailLines`; `timestamps`, which begin each
        line; `sinceTime`, of the first line."""
        query: list[tuple[str, str | int]] = [("container", container)]
        for key, value in settings.items():
            if value is True:
                query.append((key, "true"))
            elif value:
                query.append((key, value))
        path = f"{address('Pod', namespace, pod)}/log"
        with _about("Pod", namespace, pod, lambda refused: refused.status in (400, 404)):
            response = self.request("GET", path, query)
            return response.data.decode(errors="replace")
        return None

    def _json(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: object = None,
        content: str = JSON,
    ) -> Manifest:
        data = self.request(method, path, query, body=body, content=content).data
        with suppress(ValueError):
            if isinstance(answer := json.loads(data), dict):
                return answer
        raise no_api(self.server, data)

    def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        body: object = None,
        content: str = JSON,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """One request, repeated while the server is busy. The rest is as in ApiRequest. Raises
        Refused, or Lost."""
        request = ApiRequest(method, path, query, body, content, headers or {}, stream)
        begun = time.monotonic()
        unsure = False
        doubted = False
        is_reported = False
        while True:
            try:
                answer = self._ask(request)
                self.begun |= (
                    method != "GET" and "/namespaces/" in path and ("dryRun", "All") not in query
                )
                return answer
            except (Lost, Refused) as trouble:
                trouble.repeated = unsure
                if trouble.doubtful and not doubted:
                    doubted = True
                    continue
                passed = time.monotonic() - begun
                wait = max(errors.PAUSE_SECONDS, trouble.after)
                if not self._may_pass(trouble) or passed + wait > self._patience:
                    raise
                if passed > errors.SILENT_SECONDS and not is_reported:
                    is_reported = True
                    message = f"{trouble.said} Trying again for {self._patience:.0f} seconds."
                    print(printable(message), file=sys.stderr, flush=True)
                unsure = unsure or trouble.status != 429
                time.sleep(wait)

    @property
    def _patience(self) -> float:
        """For how many seconds a request is repeated."""
        if self.begun:
            return errors.PATIENCE_SECONDS
        return errors.PROMPT_SECONDS

    def _may_pass(self, trouble: Lost | Refused) -> bool:
        """Whether it is useful to repeat a request. If nothing was ever reached, it is not: a VPN
        is off, or the address is wrong."""
        if self.hasty:
            return False
        return trouble.own or (isinstance(trouble, Lost) and bool(self.answered))

    def _ask(self, request: ApiRequest) -> BaseHTTPResponse:
        import urllib3

        url = f"{self.server}{request.path}"
        if request.query:
            url += f"?{urlencode(request.query)}"
        body = request.body
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body)
        headers = {"Accept": JSON, "Content-Type": request.content, "User-Agent": MANAGER}
        headers |= request.headers
        # Read each time, because a credential program replaces expired credentials.
        headers |= {who["key"]: who["value"] for who in self.configuration.auth_settings().values()}
        try:
            response: BaseHTTPResponse = self.pool.request(
                request.method,
                url,
                body=body,
                headers=headers,
                # A redirect leads to a login page; repeating would only delay the same message.
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=10, read=60),
            )
            with suppress(ValueError, TypeError):  # of a proxy's own answer
                self.ahead = parsedate_to_datetime(response.headers.get("Date", "")) - datetime.now(
                    UTC
                )
            if not request.stream or response.status >= 300:
                _ = response.data  # which reads it
            if response.status < 300:
                self.answered[_kind_of(request.method, request.path)] = time.monotonic()
                return response
            raise self._refusal(request.method, request.path, response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self.server, error) from None

    def _refusal(self, method: str, path: str, response: BaseHTTPResponse) -> Exception:
        """The meaning of a refusal; one from a starting server counts as 503."""
        page = response.data.lstrip()[:20].lower().startswith((b"<!doctype html", b"<html"))
        if response.status < 400 or (
            page and not is_temporary(response.status) and "/proxy/" not in path
        ):
            return no_api(self.server, response.data)
        text = response.data.decode(errors="replace")
        try:
            message = str(json.loads(text).get("message", ""))
        except (ValueError, AttributeError):
            message = " ".join(re.sub("<[^>]*>", " ", text).split())
        message = message or f"HTTP {response.status}"
        after = response.headers.get("Retry-After", "")
        wait_seconds = 0.0
        if after.isdecimal():
            wait_seconds = float(after)
        refused = Refused(response.status, message, self.server, wait_seconds)
        allowed = is_recent(self.answered.get(_kind_of(method, path), -math.inf))
        if refused.of_start and (allowed or (refused.no_kind and not self.ready)):
            # Without a login, because a starting server may not know its users.
            ready = self.pool.request(
                "GET", f"{self.server}/readyz", retries=False, redirect=False, timeout=10.0
            )
            refused.doubtful = self.ready = ready.status != 403 and not is_temporary(ready.status)
            if not self.ready:
                return Refused(503, f"it is restarting: {message}", self.server)
        return refused


def pieces(cluster: Cluster, response: BaseHTTPResponse, size: int) -> Iterator[bytes]:
    """The body of a response that was requested with `stream`. Raises Lost if the connection
    breaks."""
    import urllib3

    try:
        yield from response.stream(size)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise unreachable(cluster.server, error) from None


@contextmanager
def _about(
    object_kind: str, namespace: str, name: str, accepted: Callable[[Refused], bool]
) -> Iterator[None]:
    """Raises Stop for a refusal in the block, about this object. One that the caller accepts ends
    the block."""
    try:
        yield
    except Refused as refused:
        if not accepted(refused):
            raise refused.stop(object_kind, namespace, name) from None


def _changes(dry_run: bool) -> list[tuple[str, Any]]:
    query = [("fieldManager", MANAGER), ("fieldValidation", "Strict")]
    if dry_run:
        query.append(("dryRun", "All"))
    return query


def _leading_number(version: object) -> int:
    """The number that a part of a version begins with; 0 without one."""
    digits = re.match(r"\d+", str(version or ""))
    if digits:
        return int(digits[0])
    return 0


def _is_absent(refused: Refused, object_kind: str) -> bool:
    """Whether the cluster has no such object, or no such kind (only for kinds that operators
    install)."""
    if refused.status != 404:
        return False
    return not refused.no_kind or "." in KINDS[object_kind][0]


def address(object_kind: str, namespace: str, name: str | None = None, older: str = "") -> str:
    """The API path of an object, or of all of its kind. namespace: or empty; older: an older group
    and version."""
    version, plural = KINDS[object_kind]
    version = older or version
    if "/" in version:
        path = f"/apis/{version}"
    else:
        path = f"/api/{version}"
    if namespace:
        path += f"/namespaces/{namespace}"
    path += f"/{plural}"
    if name:
        path += f"/{name}"
    return path


def _kind_of(method: str, path: str) -> tuple[str, ...]:
    """What one permission covers: the verb, the kind and the subresource, without names."""
    before, _, object_path = path.partition("/namespaces/")
    parts = [*object_path.split("/"), "", "", "", ""]
    space, plural, name, subresource = parts[:4]
    scope = "one" if name else "all"
    return (method, before, space, plural, scope, subresource)


TENSORBOARD = {"app.kubernetes.io/name": "tensorboard"}
# The label with the claim whose curves it shows (site/tensorboard.yaml).
INSTANCE = "app.kubernetes.io/instance"
TENSORBOARD_PORT = 6006


def tensorboard(cluster: Cluster, namespace: str, claim: str | None) -> str:
    """The name of the TensorBoard pod for a claim, or of one without a claim's label. Raises Stop
    if none runs."""
    for pod in cluster.list("Pod", namespace, TENSORBOARD):
        meta = pod["metadata"]
        if (
            pod.get("status", {}).get("phase") == "Running"
            and meta["labels"].get(INSTANCE, claim) == claim
        ):
            return str(meta["name"])
    if claim:
        over = f" for the claim `{claim}`"
    else:
        over = ""
    if claim:
        existing_claim = cluster.get("PersistentVolumeClaim", namespace, claim)
    else:
        existing_claim = None
    if not existing_claim:
        cluster.require_namespace(namespace)
    if existing_claim and SHARED not in existing_claim["spec"].get("accessModes", ()):
        raise Stop(
            f"No TensorBoard{over} runs in `{namespace}`.",
            f"The claim can be used by one machine at a time. While no job runs, `oc scale deployment/tensorboard-{claim} --namespace {namespace} --replicas=1` starts TensorBoard, and `oc scale deployment/tensorboard-{claim} --namespace {namespace} --replicas=0` frees the claim again. `recipe fetch RECIPE` downloads the run's page with its curves.",
        )
    raise Stop(
        f"No TensorBoard{over} runs in `{namespace}`.",
        "`recipe site RECIPE` generates one for `oc apply -k`.",
    )


def forward(
    cluster: Cluster,
    namespace: str,
    pod: Callable[[], str],
    port: int,
    local_port: int,
    ready: Callable[[int], None],
) -> None:
    """Passes connections to `local_port` (0: any free one) on to the pod's port, until it is
    interrupted. pod: gives its name for each connection; ready: gets the local port. Raises Stop if
    that is in use."""
    with bound_port(local_port) as listener:
        listener.listen()
        ready(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            threading.Thread(
                target=_join, args=(cluster, namespace, pod, port, connection), daemon=True
            ).start()


def _join(
    cluster: Cluster, namespace: str, pod: Callable[[], str], port: int, connection: socket.socket
) -> None:
    """Passes bytes both ways until one side closes."""
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes.stream import portforward

    # A client of its own: the library changes the client while it opens the stream.
    core = CoreV1Api(ApiClient(cluster.configuration))
    with connection:
        try:
            channel = portforward(
                core.connect_get_namespaced_pod_portforward, pod(), namespace, ports=str(port)
            )
        except Exception:
            # The browser shows the failure, and can retry. Without an answer the client raises
            # AttributeError (36.0.3).
            return
        pod_socket = channel.socket(port)
        back = threading.Thread(target=_pump, args=(pod_socket, connection), daemon=True)
        back.start()
        _pump(connection, pod_socket)
        back.join()
        channel.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
