"""Share: shows one folder's files over HTTP to whoever knows the word (`python -m runner.entrypoints.file_server DIR`).

It runs in the short-lived pod that `recipe fetch` starts, and is reached through the cluster's own API alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

WORD = "RECIPE_SHARE_WORD"
PORT = "RECIPE_SHARE_PORT"
CHUNK = 2**20


def listing(root: Path) -> list[dict[str, object]]:
    """Every file below `root`: path, size in bytes. Half-written ones (`.name.partial`) are left out."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return [
        {"path": str(file.relative_to(root)), "size": file.stat().st_size}
        for file in files
        if not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]


def digest(file: Path, sign: Callable[[], None] = lambda: None) -> str:
    """SHA-256 of a file, in hexadecimal; `sign` is called now and then on the way."""
    total = hashlib.sha256()
    with file.open("rb") as data:
        for number, chunk in enumerate(iter(lambda: data.read(CHUNK), b"")):
            total.update(chunk)
            if number % 128 == 127:
                sign()
    return total.hexdigest()


def handler(root: Path, word: str) -> type[BaseHTTPRequestHandler]:
    """Answers /WORD/list, /WORD/hash/PATH and /WORD/file/PATH (with `Range: bytes=N-`)."""
    root = root.resolve()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            given, _, rest = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            verb, _, name = rest.partition("/")
            if given != word:
                self.send_error(403)
            elif verb == "list":
                self._answer(json.dumps(listing(root)).encode())
            elif (file := (root / name).resolve()).is_file() and file.is_relative_to(root):
                self._hash(file) if verb == "hash" else self._file(file)
            else:
                self.send_error(404)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _hash(self, file: Path) -> None:
            """The hash behind blanks: a large file takes longer than the gateways between are willing to wait."""
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk(digest(file, sign=lambda: self._chunk(b" ")).encode())
            self._chunk(b"")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _file(self, file: Path) -> None:
            size = file.stat().st_size
            start = min(size, int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-") or 0))
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            with file.open("rb") as data:
                data.seek(start)
                while chunk := data.read(CHUNK):
                    self.wfile.write(chunk)

        def log_message(self, format: str, *args: object) -> None:
            pass  # the word stands in every address

    return Handler


def main() -> int:
    root, word, port = Path(sys.argv[1]), os.environ[WORD], int(os.environ.get(PORT, "8080"))
    if not root.is_dir():
        print(f"There is no folder {root}.", flush=True)
        return 1
    ThreadingHTTPServer(("", port), handler(root, word)).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
