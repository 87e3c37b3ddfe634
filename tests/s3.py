"""An S3 server on this machine (moto's), and a line to it that can be cut."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from runner.data import object_store

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Server:
    """url: of the server; line: of a proxy before it, which `cut` after so many bytes from the
    client; None: never."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self.moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.moto.start()
        host, port = self.moto.get_host_and_port()
        self.url, self.cut = f"http://{host}:{port}", None
        urllib.request.urlopen(
            f"{self.url}/moto-api/reset", b""
        ).read()  # all servers of a process share their buckets
        self.proxy = socket.create_server(("127.0.0.1", 0))
        self.line = f"http://127.0.0.1:{self.proxy.getsockname()[1]}"
        self.port = port
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self) -> None:
        with suppress(OSError):  # the end
            while True:
                client, _ = self.proxy.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                for source, target, counted in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pass_on, args=(source, target, counted), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted and self.cut is not None:
                    self.cut -= len(data)
                    if self.cut < 0:
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def put(self, path: str, content: bytes | str) -> None:
        """Writes an object, `BUCKET/NAME`; makes the bucket if there is none."""
        store, bucket = self.store(), path.partition("/")[0]
        if not store.exists(bucket):
            store.call_s3("create_bucket", Bucket=bucket)
        store.pipe_file(path, content.encode() if isinstance(content, str) else content)

    def store(self):
        import s3fs

        client = {"key": "key", "secret": "secret", "client_kwargs": {"region_name": "us-east-1"}}
        fresh = {"skip_instance_cache": True, "use_listings_cache": False}
        return s3fs.S3FileSystem(endpoint_url=self.url, **client, **fresh)

    def guard(self, on: bool) -> None:
        """Whether the server looks at keys, and knows none."""
        from moto import settings

        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0 if on else float("inf")

    def stop(self) -> None:
        self.proxy.close()
        self.moto.stop()


@contextmanager
def started() -> Iterator[Server]:
    """The server, with a bucket `team`; this process has its address and keys."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [
            name
            for name in os.environ
            if name.lower().endswith("_proxy") or name.startswith("AWS_")
        ]:
            patch.delenv(name)
        server = Server()
        for name, value in {**KEYS, "AWS_ENDPOINT_URL_S3": server.url}.items():
            patch.setenv(name, value)
        forget()
        server.put("team/readme", "")
        yield server
        server.stop()


def forget() -> None:
    """What this process knows of addresses, as another process would not."""
    object_store.local.cache_clear()
    object_store.version.cache_clear()
