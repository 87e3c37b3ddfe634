"""Answering: what training says of itself over HTTP while it runs, read by the cluster's own tools."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def answer(variable: str, what: str, kind: str, say: Callable[[], str]) -> bool:
    """Answers `/metrics` with what `say` gives, at the port that an environment variable names, for as long as the process
    lives. False where none is named, or it is in use, which is no reason to stop.

    what: is not served then, in words; kind: the answer's content type.
    """
    port = os.environ.get(variable, "")
    if not port.isdigit():
        return False
    try:
        server = ThreadingHTTPServer(("", int(port)), _handler(kind, say))
    except (OSError, OverflowError) as error:
        print(f"{what} not served: port {port}: {getattr(error, 'strerror', None) or error}", flush=True)
        return False
    threading.Thread(target=server.serve_forever, name=variable.lower(), daemon=True).start()
    return True


def _handler(kind: str, say: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = say().encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line every few seconds would bury training's own

    return Handler
