"""Forward: a port of a pod as a port of this machine, for TensorBoard."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from runner.parts.openshift.client import Cluster, Connection
from runner.tools.problem import Stop
from runner.tools.process import bound_port

TENSORBOARD = {"app.kubernetes.io/name": "tensorboard"}
# The claim that it is over: a label in runner/parts/openshift/site/tensorboard.yaml.
INSTANCE = "app.kubernetes.io/instance"
TENSORBOARD_PORT = 6006


def tensorboard(cluster: Cluster, namespace: str, claim: str | None) -> str:
    """The name of the pod of the TensorBoard over a claim, or of one that does not say over which. Raises Stop where
    none runs."""
    for pod in cluster.list("Pod", namespace, TENSORBOARD):
        meta = pod["metadata"]
        if pod.get("status", {}).get("phase") == "Running" and meta["labels"].get(INSTANCE, claim) == claim:
            return str(meta["name"])
    over = f" over the claim `{claim}`" if claim else ""
    raise Stop(f"No TensorBoard{over} runs in `{namespace}`.", "`recipe site RECIPE` writes one, for `oc apply -k`.")


def forward(
    cluster: Connection,
    namespace: str,
    pod: str | Callable[[], str],
    port: int,
    local_port: int,
    ready: Callable[[int], None],
) -> None:
    """Passes connections to `local_port` (0: any free one) on to the pod's port, until it is interrupted.

    pod: its name, or what gives the name for each connection. ready: called with the local port once it listens. Raises Stop where the local port is taken.
    """
    with bound_port(local_port) as listener:
        listener.listen()
        ready(listener.getsockname()[1])
        while True:
            here, _ = listener.accept()
            threading.Thread(target=_join, args=(cluster, namespace, pod, port, here), daemon=True).start()


def _join(cluster: Connection, namespace: str, pod: str | Callable[[], str], port: int, here: socket.socket) -> None:
    """Passes bytes both ways until one side closes."""
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes.stream import portforward

    # A client of its own: the library changes the client while it opens the stream.
    core = CoreV1Api(ApiClient(cluster.configuration))
    with here:
        try:
            name = pod if isinstance(pod, str) else pod()
            channel = portforward(core.connect_get_namespaced_pod_portforward, name, namespace, ports=str(port))
        except Exception:
            # The browser shows that nothing came; it may try again. The client ends in an AttributeError where it has got no
            # answer (36.0.3).
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
