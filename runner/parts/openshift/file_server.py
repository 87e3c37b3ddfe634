"""File server: the files of one folder over HTTP (`python -m runner.parts.openshift.file_server DIR
[--write]`).

It runs in the short-lived pods of `recipe fetch` and `recipe submit`, behind the cluster's own API.
Other pods may reach its port too, so the address needs a secret word.
"""

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote, urlsplit

from runner.tools import locks
from runner.tools.listening import OnEveryAddress

WORD = "RECIPE_SHARE_WORD"
PORT = "RECIPE_SHARE_PORT"
WRITES = "--write"
CHUNK = 2**20
ALIVE = "alive"  # the request of a command that only shows that it still runs
ALIVE_SECONDS = 60.0  # between two of them
# Without a request for so long, the server ends: more than a restart of the cluster's API takes.
IDLE_SECONDS = 300.0
# HTTP statuses for a piece that does not continue its file, or cannot be written.
MISPLACED = 409
FULL = 507


def listing(root: Path) -> list[dict[str, object]]:
    """Every file below `root` without hidden ones (a half-written one is `.name.partial`): path,
    size in bytes."""
    listed_files = []
    for file in sorted(root.rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        path = file.relative_to(root)
        if not any(part.startswith(".") for part in path.parts):
            listed_files.append({"path": path.as_posix(), "size": file.stat().st_size})
    return listed_files


def digest(file: Path, sign: Callable[[], None] = lambda: None) -> str:
    """SHA-256 of a file, in hexadecimal; calls `sign` regularly, as a sign of life."""
    total = hashlib.sha256()
    with file.open("rb") as data:
        for number, chunk in enumerate(iter(lambda: data.read(CHUNK), b"")):
            total.update(chunk)
            if number % 128 == 127:
                sign()
    return total.hexdigest()


class Piece(NamedTuple):
    """A part of a file."""

    path: str
    digest: str  # SHA-256 of the whole file
    offset: int  # where it begins, in bytes
    length: int  # in bytes


def inside(root: Path, name: str) -> Path:
    """The file `name` below `root`. Raises PermissionError if it would be elsewhere."""
    file = (root / name).resolve()
    if not file.is_relative_to(root.resolve()) or file == root.resolve():
        raise PermissionError(name)
    return file


def partial(file: Path, expected: str) -> Path:
    """The path of a file until it is complete, by its expected hash, so that other content starts a
    new file."""
    return file.with_name(f".{file.name[:200]}.{expected[:16]}.partial")


def state(
    root: Path, files: Mapping[str, tuple[int, str]], sign: Callable[[], None]
) -> dict[str, object]:
    """The bytes received of each expected file (size and SHA-256, by path), -1 for all of it; and
    the free bytes. A complete file gets its name; one with another hash is deleted."""
    received = {}
    for name, (size, expected) in files.items():
        received[name] = _there(inside(root, name), size, expected, sign)
    return {"there": received, "free": shutil.disk_usage(root).free}


def _there(file: Path, size: int, expected: str, sign: Callable[[], None]) -> int:
    half = partial(file, expected)
    with suppress(
        FileNotFoundError
    ):  # Another command that sends the same file has just completed it.
        came = half.stat().st_size
        if came < size:
            return came
        if digest(half, sign) == expected:
            half.replace(file)
            return -1
        half.unlink()
        return 0
    if file.is_file() and digest(file, sign) == expected:
        return -1
    return 0


def take(root: Path, pieces: Iterable[Piece], body: IO[bytes]) -> None:
    """Writes the pieces in a body, one after the other. Raises ValueError if one does not continue
    its file."""
    for piece in pieces:
        file = inside(root, piece.path)
        half = partial(file, piece.digest)
        file.parent.mkdir(parents=True, exist_ok=True)
        data = body.read(piece.length)
        with half.open("ab") as out:
            # Another command may send the same file through a pod of its own.
            locks.wait(out)
            received = out.seek(0, os.SEEK_END)
            if received != piece.offset or len(data) != piece.length:
                raise ValueError(
                    f"{piece.path} has {received} bytes, and what came begins at {piece.offset}"
                )
            out.write(data)


def keep_only(root: Path, names: Iterable[str]) -> None:
    """Deletes all other files: files that were removed from a folder must not be trained on."""
    kept = {inside(root, name) for name in names}
    for file in root.rglob("*"):
        if file.is_file() and file.resolve() not in kept:
            file.unlink(missing_ok=True)


class FileServer(OnEveryAddress, ThreadingHTTPServer):
    """The files below `root`, for requests with the secret `word`. Ends after a while without
    requests, as a killed command deletes no pod. alive: the time of the last request or answer."""

    def __init__(
        self, address: tuple[str, int], root: Path, word: str, writes: bool = False
    ) -> None:
        super().__init__(address, FileHandler)
        self.root = root.resolve()
        self.word = word
        self.writes = writes
        self.alive = time.monotonic()

    def service_actions(self) -> None:
        if time.monotonic() - self.alive > IDLE_SECONDS:
            threading.Thread(target=self.shutdown).start()


class FileHandler(BaseHTTPRequestHandler):
    """Answers GET /WORD/alive, /WORD/list, /WORD/hash/PATH and /WORD/file/PATH (with `Range:
    bytes=N-`); where it writes also POST /WORD/state and /WORD/only with a JSON body, and
    /WORD/pieces, whose first line is JSON and the rest bytes."""

    protocol_version = "HTTP/1.1"
    server: FileServer

    def parse_request(self) -> bool:
        self.server.alive = time.monotonic()
        return super().parse_request()

    def do_GET(self) -> None:
        word, request_path = self._word_and_path()
        verb, _, name = request_path.partition("/")
        if not self._is_secret(word):
            self.send_error(403)
        elif verb == ALIVE:
            self._answer(b"")
        elif verb == "list":
            self._answer(json.dumps(listing(self.server.root)).encode())
        else:
            self._send(verb, (self.server.root / name).resolve())

    def _send(self, verb: str, file: Path) -> None:
        if not file.is_file() or not file.is_relative_to(self.server.root):
            self.send_error(404)
        elif verb == "hash":
            self._signing(lambda sign: {"digest": digest(file, sign)})
        else:
            self._file(file)

    def _word_and_path(self) -> tuple[str, str]:
        """The secret word of a request, and what it asks for."""
        path = unquote(urlsplit(self.path).path)
        word, _, request_path = path.lstrip("/").partition("/")
        return word, request_path

    def _is_secret(self, word: str) -> bool:
        return compare_digest(word.encode(), self.server.word.encode())

    def do_POST(self) -> None:
        word, verb = self._word_and_path()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_secret(word) or not self.server.writes:
            self.send_error(403)
            return
        try:
            if verb == "state":
                self._signing(lambda sign: state(self.server.root, json.loads(body), sign))
                return
            if verb == "pieces":
                head, _, data = body.partition(b"\n")
                pieces = [Piece(**piece) for piece in json.loads(head)]
                take(self.server.root, pieces, BytesIO(data))
            elif verb == "only":
                keep_only(self.server.root, json.loads(body))
            self._answer(b"")
        except ValueError as error:
            self._answer(str(error).encode(), MISPLACED)
        except OSError as error:
            self._answer(str(error).encode(), FULL)

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _signing(self, answer: Callable[[Callable[[], None]], Mapping[str, object]]) -> None:
        """Sends blanks until the answer is ready, because hashing a large file takes longer than
        gateways wait. The status is sent first, so an error is part of the answer (`error`)."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            reply = answer(lambda: self._chunk(b" "))
        except OSError as error:
            reply = {"error": str(error)}
        self._chunk(json.dumps(reply).encode())
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.server.alive = time.monotonic()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _file(self, file: Path) -> None:
        size = file.stat().st_size
        wanted_range = self.headers.get("Range", "bytes=0-")
        offset = wanted_range.removeprefix("bytes=").rstrip("-")
        start = min(size, int(offset or 0))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        with file.open("rb") as data:
            data.seek(start)
            while chunk := data.read(CHUNK):
                self.server.alive = time.monotonic()
                self.wfile.write(chunk)

    def log_message(self, format: str, *args: object) -> None:
        pass  # The secret word is in every address.


def main() -> int:
    root = Path(sys.argv[1])
    word = os.environ[WORD]
    port = int(os.environ.get(PORT, "8080"))
    writes = WRITES in sys.argv
    if writes:
        root.mkdir(parents=True, exist_ok=True)
    if not root.is_dir():
        print(f"There is no folder {root}. The job has written nothing yet.", flush=True)
        return 1
    FileServer(("", port), root, word, writes).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
