"""A cluster may have addresses of IPv4, of IPv6 or of both: servers in pods answer at each, and we
ask a server at each."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer

import pytest

from runner.parts.jobs import training_metrics
from runner.parts.openshift.client import connect, connect_in_pod
from runner.parts.openshift.file_server import FileServer
from tests.parts.openshift.api import free_port

ADDRESSES = ("127.0.0.1", "[::1]")


def without_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return True
    return False


pytestmark = pytest.mark.skipif(without_ipv6(), reason="this machine has no IPv6")


@contextmanager
def running(server: BaseServer) -> Iterator[None]:
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def answer_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_helper_pod_serves_its_files(tmp_path, address):
    (tmp_path / "file").write_text("rows", encoding="utf-8")
    server = FileServer(("", 0), tmp_path, "word")
    with running(server):
        assert answer_of(f"http://{address}:{server.server_address[1]}/word/file/file") == b"rows"


@pytest.mark.parametrize("address", ADDRESSES)
def test_training_serves_its_figures(monkeypatch, address):
    port = free_port()
    monkeypatch.setenv(training_metrics.METRICS_PORT, str(port))
    assert training_metrics.answer(
        training_metrics.METRICS_PORT, "figures", "text/plain", lambda: "loss 1\n"
    )
    assert answer_of(f"http://{address}:{port}/metrics") == b"loss 1\n"


class Version(BaseHTTPRequestHandler):
    """What a cluster answers."""

    def do_GET(self) -> None:
        body = json.dumps({"major": "1", "minor": "32"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class OnIPv6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def test_a_cluster_whose_address_is_of_ipv6_is_asked(tmp_path: Path, monkeypatch):
    """By a person's kubeconfig, and by a pod."""
    server = OnIPv6(("::1", 0), Version)
    url = f"http://[::1]:{server.server_address[1]}"
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "six"}
    config["clusters"] = [{"name": "six", "cluster": {"server": url}}]
    config["users"] = [{"name": "ann", "user": {"token": "sha256~not-a-real-token"}}]
    config["contexts"] = [
        {"name": "six", "context": {"cluster": "six", "user": "ann", "namespace": "demo"}}
    ]
    (tmp_path / "kubeconfig").write_text(json.dumps(config), "utf-8")
    (tmp_path / "token").write_text("sha256~not-a-real-token", "utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with running(server):
        assert connect().version() == (1, 32)
        assert connect_in_pod(url, tmp_path, "demo").version() == (1, 32)
