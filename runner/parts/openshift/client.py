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
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from runner.parts.jobs.kubernetes import SHARED, Manifest
from runner.parts.openshift import errors
from runner.parts.openshift.errors import Lost, Refused, no_api, passes, recent, unreachable
from runner.tools import packaged
from runner.tools.problem import Stop, worded
from runner.tools.process import bound_port
from runner.tools.text import printable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

ROOT = "kubernetes"
# Packages that `client_parts` replaces while it imports: the client uses them only for an
# `auth-provider` or a proxy.
LATER: Mapping[str, list[str]] = packaged.toml(__file__, "later.toml")


class Later(ModuleType):
    """A module, or a function or class in one, that is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        # While this object replaces the module, importers only take names from it.
        if sys.modules.get(self.__name__) is self:
            return Later(whole)
        return pkgutil.resolve_name(whole)

    def __call__(self, *given: Any, **how: Any) -> Any:
        return pkgutil.resolve_name(self.__name__)(*given, **how)


@cache
def client_parts() -> tuple[Any, Any, Any]:
    """The client's kubeconfig reader, its configuration and its connection pool. A later import of
    the client itself still imports all of it. Raises Stop if it is not installed."""
    found = importlib.util.find_spec(ROOT)
    if found is None or not found.submodule_search_locations:
        raise Stop(
            "The cluster commands need a package that is not installed.",
            packaged.install("cluster"),
        )
    home = found.submodule_search_locations[0]
    before = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] == ROOT
    }
    lacking = [package for package in LATER if package not in sys.modules]
    later = [
        name
        for package in lacking
        for name in (package, *(f"{package}.{part}" for part in LATER[package]))
    ]
    for name in before:
        del sys.modules[name]
    sys.modules.update({name: Later(name) for name in later})
    try:
        for name in (ROOT, f"{ROOT}.client", f"{ROOT}.config"):
            bare = sys.modules[name] = ModuleType(name)
            bare.__path__ = [os.path.join(home, *name.split(".")[1:])]
        client = importlib.import_module(f"{ROOT}.client.configuration")
        rest = importlib.import_module(f"{ROOT}.client.rest")
        # The names that its kubeconfig reader imports. We do not use the second one.
        vars(sys.modules[f"{ROOT}.client"]).update(
            Configuration=client.Configuration, ApiClient=None
        )
        return importlib.import_module(f"{ROOT}.config.kube_config"), client, rest
    finally:
        for name in [*later, *(name for name in sys.modules if name.partition(".")[0] == ROOT)]:
            del sys.modules[name]
        sys.modules.update(before)


# Every kind that the runner uses: its group and version, and its name in API paths.
KINDS: Mapping[str, tuple[str, str]] = packaged.toml(__file__, "kinds.toml")
# The older version of a kind that is only read here: Kueue before 0.15.
OLDER = dict.fromkeys(("LocalQueue", "Workload"), "kueue.x-k8s.io/v1beta1")
MANAGER, JSON = "recipe-runner", "application/json"

Manifests = list[Manifest]
Query = Sequence[tuple[str, Any]]


def connect() -> Cluster:
    """The cluster of the current context of the user's kubeconfig. Raises Stop if there is none."""
    config, client, rest = client_parts()
    settings = client.Configuration()
    # Named here, because the client looks at the variable once, when it is imported.
    file = os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(config_file=file, client_configuration=settings)
        _, named = config.list_kube_config_contexts(config_file=file)
        context = (named or {}).get("context", {})
        pool = rest.RESTClientObject(settings).pool_manager
        return Cluster(pool, settings, context.get("namespace", "default"), context.get("user", ""))
    except (config.ConfigException, OSError) as error:
        why = str(error).splitlines()[0]
        if file or "configuration found" not in why:
            known = f": {why}"
        else:
            known = "."
        raise Stop(*worded("openshift.not-logged-in", known=known)) from None
    except Exception as error:
        # For a file that is not a kubeconfig, the client raises various errors.
        said = " ".join(str(error).split()) or type(error).__name__
        raise Stop(
            *worded("openshift.unreadable-kubeconfig", file=file or "~/.kube/config", said=said)
        ) from None


def connect_in_pod(server: str, keys: Path, namespace: str) -> Cluster:
    """The cluster of this pod, without the official client. keys: the folder of its account's token
    and the authority."""
    import urllib3

    def login() -> dict[str, dict[str, str]]:
        # Read each time, because a kubelet replaces the token within the hour.
        try:
            token = (keys / "token").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Stop(*worded("openshift.no-credentials", error=error)) from None
        return {"token": {"key": "authorization", "value": f"Bearer {token}"}}

    authority = keys / "ca.crt"
    if authority.is_file():
        pool = urllib3.PoolManager(ca_certs=str(authority))
    else:
        pool = urllib3.PoolManager()
    return Cluster(pool, SimpleNamespace(host=server, auth_settings=login), namespace)


class Cluster:
    """A cluster. Every method raises Stop if the cluster refuses, and TryAgain if it does not
    answer; `request` alone raises Refused, with the status and the cluster's own words. Requests
    are retried after 429, 5xx and broken connections, as kubectl does it. pool: connections of
    urllib3; configuration: the official client's, with the server and the credentials; namespace,
    user: those of the kubeconfig's current context."""

    def __init__(self, pool: Any, configuration: Any, namespace: str, user: str = "") -> None:
        self.pool = pool
        self.configuration = configuration
        self.namespace = namespace
        self.user = user
        # The cluster's clock minus this machine's, from its last answer.
        self.ahead = timedelta()
        # When each kind of request was answered last, by `_kind_of`.
        self.answered: dict[tuple[str, ...], float] = {}
        # Whether requests are tried once only; whether this command has changed something; whether
        # the server is ready.
        self.hasty = self.begun = self.ready = False

    def once(self) -> Cluster:
        """A copy for a caller that repeats requests itself, and shows problems meanwhile."""
        other = copy.copy(self)
        other.hasty = True
        return other

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
        kind = "SelfSubjectReview"
        try:
            answer = self._json(
                "POST", f"/apis/{api}/selfsubjectreviews", body={"apiVersion": api, "kind": kind}
            )
            return str(answer["status"]["userInfo"]["username"])
        except Refused as refused:
            if refused.status == 401 or passes(refused.status):
                raise refused.stop(kind, "", "") from None
            # `oc login` names a user NAME/SERVER.
            return self.user.partition("/")[0]

    def get(self, kind: str, namespace: str, name: str, forgiving: bool = False) -> Manifest | None:
        """The object, or None without such an object or kind; if `forgiving`, an empty one where
        this user may not look."""
        try:
            return self._read(kind, namespace, name)
        except Refused as refused:
            if _absent(refused, kind):
                return None
            if forgiving and refused.status == 403:
                return {}
            raise refused.stop(kind, namespace, name) from None

    def list(
        self,
        kind: str,
        namespace: str,
        labels: Mapping[str, str] | None = None,
        forgiving: bool = False,
    ) -> Manifests:
        """All objects with these labels; none of an unknown kind or, if `forgiving`, where this
        user may not look."""
        if labels:
            query = [("labelSelector", ",".join(f"{key}={value}" for key, value in labels.items()))]
        else:
            query = []
        hidden = 403 if forgiving else None
        with _about(
            kind, namespace, "", lambda refused: _absent(refused, kind) or refused.status == hidden
        ):
            return list(self._read(kind, namespace, None, query).get("items") or ())
        return []

    def version(self) -> tuple[int, int]:
        """The version of its Kubernetes, as two numbers; an unreadable one counts as old."""
        facts = self._json("GET", "/version")
        numbers = [re.match(r"\d+", str(facts.get(name, ""))) for name in ("major", "minor")]
        major, minor = (int(number[0]) if number else 0 for number in numbers)
        return major, minor

    def require_namespace(self, namespace: str) -> None:
        """Raises Stop if the namespace does not exist. A cluster lists nothing in a missing one."""
        with _about("Namespace", namespace, "", lambda refused: refused.status != 404):
            self._json("GET", address("Namespace", "", namespace))

    def knows(self, kind: str, namespace: str, usable: bool = False) -> bool:
        """Whether the cluster has a kind. usable: and this user may list it."""
        try:
            return bool(self._read(kind, namespace, None))
        except Refused as refused:
            return not refused.no_kind and not (usable and refused.status == 403)

    def _read(self, kind: str, namespace: str, name: str | None, query: Query = ()) -> Manifest:
        try:
            return self._json("GET", address(kind, namespace, name), query)
        except Refused as refused:
            if refused.status != 404 or kind not in OLDER:
                raise
            return self._json("GET", address(kind, namespace, name, OLDER[kind]), query)

    def apply(self, manifest: Manifest, dry_run: bool = False) -> Manifest:
        """Server-side apply; with `dry_run` the cluster only checks the object. The result is empty
        for a NetworkPolicy that this person may not create, because sites of earlier releases lack
        that permission."""
        query = [*_changes(dry_run), ("force", "true")]
        kind = manifest["kind"]
        meta = manifest["metadata"]
        where = kind, meta["namespace"], meta["name"]
        with _about(*where, lambda refused: (kind, refused.status) == ("NetworkPolicy", 403)):
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
        kind = manifest["kind"]
        meta = manifest["metadata"]
        try:
            self._json("POST", address(kind, meta["namespace"]), _changes(dry_run), body=manifest)
        except Refused as refused:
            if refused.status == 409 and not refused.busy:
                return refused.repeated
            raise refused.stop(kind, meta["namespace"], meta["name"]) from None
        return True

    def patch(self, kind: str, namespace: str, name: str, change: Manifest) -> None:
        with _about(kind, namespace, name, lambda refused: False):
            self.request(
                "PATCH",
                address(kind, namespace, name),
                body=change,
                content="application/merge-patch+json",
            )

    def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", grace_seconds: int | None = None
    ) -> bool:
        """Deletes an object and what belongs to it; False if it was not there. uid: of the only
        object to delete."""
        # The object remains until all its dependents have ended.
        options: dict[str, object] = {"propagationPolicy": "Foreground"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        options |= {"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else {}
        try:
            self._json("DELETE", address(kind, namespace, name), body=options)
        except Refused as refused:
            if _absent(refused, kind) or (uid and refused.status == 409 and not refused.busy):
                return refused.repeated
            raise refused.stop(kind, namespace, name) from None
        return True

    def log(self, namespace: str, pod: str, container: str, **how: str | int | None) -> str | None:
        """A container's log; None if it has not started, or there is no previous container
        (`previous`). how: settings of the API: `tailLines`; `timestamps`, which begin each line;
        `sinceTime`, of the first line."""
        query = [
            (key, str(value).lower() if value is True else value)
            for key, value in how.items()
            if value
        ]
        path = f"{address('Pod', namespace, pod)}/log"
        with _about("Pod", namespace, pod, lambda refused: refused.status in (400, 404)):
            return self.request("GET", path, [("container", container), *query]).data.decode(
                errors="replace"
            )
        return None

    def _json(self, method: str, path: str, query: Query = (), **how: Any) -> Manifest:
        data = self.request(method, path, query, **how).data
        with suppress(ValueError):
            if isinstance(answer := json.loads(data), dict):
                return answer
        raise no_api(self.server, data)

    def request(self, method: str, path: str, query: Query = (), **how: Any) -> BaseHTTPResponse:
        """One request, repeated while the server is busy. how: its `body`, bytes or what becomes
        JSON, with the type `content`; `headers`; `stream`: do not read the answer's body. Raises
        Refused, or Lost."""
        begun = time.monotonic()
        unsure = False
        doubted = False
        told = False
        while True:
            try:
                answer = self._ask(method, path, query, **how)
                self.begun |= (
                    method != "GET" and "/namespaces/" in path and ("dryRun", "All") not in query
                )
                return answer
            except (Lost, Refused) as trouble:
                trouble.repeated = unsure
                if trouble.doubtful and not doubted:
                    doubted = True
                    continue
                if self.begun:
                    patience = errors.PATIENCE_SECONDS
                else:
                    patience = errors.PROMPT_SECONDS
                passed = time.monotonic() - begun
                wait = max(errors.PAUSE_SECONDS, trouble.after)
                # If nothing was ever reached, waiting is useless: a VPN is off, or the address is
                # wrong.
                passes = trouble.own or (isinstance(trouble, Lost) and self.answered)
                if self.hasty or not passes or passed + wait > patience:
                    raise
                if passed > errors.SILENT_SECONDS and not told:
                    told = True
                    said = printable(f"{trouble.said} Trying again for {patience:.0f} seconds.")
                    print(said, file=sys.stderr, flush=True)
                unsure = unsure or trouble.status != 429
                time.sleep(wait)

    def _ask(
        self, method: str, path: str, query: Query, body: Any = None, **how: Any
    ) -> BaseHTTPResponse:
        import urllib3

        given = {"Accept": JSON, "Content-Type": how.get("content", JSON), "User-Agent": MANAGER}
        given |= how.get("headers") or {}
        # Read each time, because a credential program replaces expired credentials.
        given |= {who["key"]: who["value"] for who in self.configuration.auth_settings().values()}
        try:
            response: BaseHTTPResponse = self.pool.request(
                method,
                f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=body if body is None or isinstance(body, bytes) else json.dumps(body),
                headers=given,
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
            if not how.get("stream") or response.status >= 300:
                _ = response.data  # which reads it
            if response.status < 300:
                self.answered[_kind_of(method, path)] = time.monotonic()
                return response
            raise self._refusal(method, path, response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self.server, error) from None

    def _refusal(self, method: str, path: str, response: BaseHTTPResponse) -> Exception:
        """The meaning of a refusal; one from a starting server counts as 503."""
        page = response.data.lstrip()[:20].lower().startswith((b"<!doctype html", b"<html"))
        if response.status < 400 or (
            page and not passes(response.status) and "/proxy/" not in path
        ):
            return no_api(self.server, response.data)
        text = response.data.decode(errors="replace")
        try:
            said = str(json.loads(text).get("message", ""))
        except (ValueError, AttributeError):
            said = " ".join(re.sub("<[^>]*>", " ", text).split())
        said = said or f"HTTP {response.status}"
        after = response.headers.get("Retry-After", "")
        refused = Refused(
            response.status, said, self.server, float(after) if after.isdecimal() else 0.0
        )
        allowed = recent(self.answered.get(_kind_of(method, path), -math.inf))
        if refused.of_start and (allowed or (refused.no_kind and not self.ready)):
            # Without a login, because a starting server may not know its users.
            ready = self.pool.request(
                "GET", f"{self.server}/readyz", retries=False, redirect=False, timeout=10.0
            )
            refused.doubtful = self.ready = ready.status != 403 and not passes(ready.status)
            if not self.ready:
                return Refused(503, f"it is restarting: {said}", self.server)
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
    kind: str, namespace: str, name: str, accepted: Callable[[Refused], bool]
) -> Iterator[None]:
    """Raises Stop for a refusal in the block, about this object. One that the caller accepts ends
    the block."""
    try:
        yield
    except Refused as refused:
        if not accepted(refused):
            raise refused.stop(kind, namespace, name) from None


def _changes(dry_run: bool) -> list[tuple[str, Any]]:
    return [
        ("fieldManager", MANAGER),
        ("fieldValidation", "Strict"),
        *([("dryRun", "All")] if dry_run else []),
    ]


def _absent(refused: Refused, kind: str) -> bool:
    """Whether the cluster has no such object, or no such kind (only for kinds that operators
    install)."""
    return refused.status == 404 and not (refused.no_kind and "." not in KINDS[kind][0])


def address(kind: str, namespace: str, name: str | None = None, older: str = "") -> str:
    """The API path of an object, or of all of its kind. namespace: or empty; older: an older group
    and version."""
    version = older or KINDS[kind][0]
    plural = KINDS[kind][1]
    if "/" not in version:
        root = f"/api/{version}"
    else:
        root = f"/apis/{version}"
    if namespace:
        space = f"/namespaces/{namespace}"
    else:
        space = ""
    return f"{root}{space}/{plural}" + (f"/{name}" if name else "")


def _kind_of(method: str, path: str) -> tuple[str, ...]:
    """What one permission covers: the verb, the kind and the subresource, without names."""
    before, _, rest = path.partition("/namespaces/")
    space, plural, name, below = (*rest.split("/"), "", "", "", "")[:4]
    return (method, before, space, plural, "one" if name else "all", below)


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
        there = cluster.get("PersistentVolumeClaim", namespace, claim)
    else:
        there = None
    if not there:
        cluster.require_namespace(namespace)
    if there and SHARED not in there["spec"].get("accessModes", ()):
        raise Stop(
            *worded("openshift.tensorboard-of-one", over=over, namespace=namespace, claim=claim)
        )
    raise Stop(*worded("openshift.no-tensorboard", over=over, namespace=namespace))


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
            here, _ = listener.accept()
            threading.Thread(
                target=_join, args=(cluster, namespace, pod, port, here), daemon=True
            ).start()


def _join(
    cluster: Cluster, namespace: str, pod: Callable[[], str], port: int, here: socket.socket
) -> None:
    """Passes bytes both ways until one side closes."""
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes.stream import portforward

    # A client of its own: the library changes the client while it opens the stream.
    core = CoreV1Api(ApiClient(cluster.configuration))
    with here:
        try:
            channel = portforward(
                core.connect_get_namespaced_pod_portforward, pod(), namespace, ports=str(port)
            )
        except Exception:
            # The browser shows the failure, and can retry. Without an answer the client raises
            # AttributeError (36.0.3).
            return
        there = channel.socket(port)
        back = threading.Thread(target=_pump, args=(there, here), daemon=True)
        back.start()
        _pump(here, there)
        back.join()
        channel.close()


def _pump(source: Any, sink: Any) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
