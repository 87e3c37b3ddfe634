"""The Hugging Face hub, played on this machine: what huggingface_hub 1.17.0 and datasets 4.8.4 ask
of it, answered as it does.

A second address plays the storage of large files, to which the hub redirects and which refuses
whoever shows it a token."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlencode

import yaml

COMMIT = "c0ffee" * 6 + "c0ff"
LARGE = (
    ".safetensors",
    ".parquet",
    ".bin",
    ".zst",
)  # what repositories keep in git's large file storage
PAGE = 2  # entries on one page of a list; the real hub has 1,000

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Repository:
    """Files at one commit. branches: the names that lead to it. gated: whether files need a token
    of somebody with access."""

    files: Files
    commit: str = COMMIT
    branches: tuple[str, ...] = ("main",)
    gated: bool = False

    def has(self, revision: str) -> bool:
        return revision in (self.commit, *self.branches)


@dataclass
class Hub:
    """models, datasets: repositories, or only their files, by name. renamed: new names of
    repositories, by their old ones, of models and data sets alike. token: of a person with access
    to everything; others are strangers. busy: whether every answer is that there were too many
    requests. asked: what was asked, `VERB path`. downloaded: the paths of the files whose content
    was sent."""

    models: Mapping[str, Repository | Files] = field(default_factory=dict)
    datasets: Mapping[str, Repository | Files] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    busy: bool = False
    asked: list[str] = field(default_factory=list)
    downloaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = started(self, HubHandler)
        self.storage = started(self, StorageHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def storage_url(self) -> str:
        return f"http://127.0.0.1:{self.storage.server_port}"

    def repository(self, kind: str, name: str) -> Repository | None:
        found = (self.models if kind == "models" else self.datasets).get(name)
        if found is None or isinstance(found, Repository):
            return found
        return Repository(found)

    def stored(self, digest: str) -> tuple[str, bytes] | None:
        """The path and the content of a large file, by the SHA-256 of its content."""
        for found in (*self.models.values(), *self.datasets.values()):
            files = found.files if isinstance(found, Repository) else found
            for path, content in files.items():
                if sha256(content) == digest:
                    return path, content
        return None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub


def started(hub: Hub, handler: type[BaseHTTPRequestHandler]) -> Server:
    server = Server(("127.0.0.1", 0), handler)
    server.hub = hub
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(path: str) -> bool:
    return path.endswith(LARGE)


def entry(path: str, content: bytes) -> dict[str, object]:
    """A file as lists of a repository have it."""
    facts: dict[str, object] = {
        "type": "file",
        "path": path,
        "size": len(content),
        "oid": git_blob(content),
    }
    if is_large(path):
        facts["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return facts


def folders(files: Files) -> set[str]:
    parents = (PurePosixPath(path).parents for path in files)
    return {str(parent) for one in parents for parent in one} - {"."}


def entries(files: Files, folder: str, recursive: bool) -> list[dict[str, object]]:
    """The files and folders in a folder, and with `recursive` also those below."""
    listed = [
        {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}
        for path in sorted(folders(files))
    ]
    listed += [entry(path, content) for path, content in files.items()]
    home = f"{folder}/" if folder else ""
    below = [one for one in listed if str(one["path"]).startswith(home)]
    return [one for one in below if recursive or "/" not in str(one["path"]).removeprefix(home)]


def licences(files: Files) -> list[str]:
    """The hub makes a tag of each licence that the repository's card names."""
    card = files.get("README.md", b"").decode()
    head = re.match(r"---\n(.*?)---\n", card, re.DOTALL)
    named = (yaml.safe_load(head[1]) or {}).get("license", []) if head else []
    return [f"license:{name}" for name in ([named] if isinstance(named, str) else named)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def send(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_content(self, path: str, content: bytes, headers: Mapping[str, str]) -> None:
        """A file, or the part of it that is asked for."""
        if self.command == "GET":
            self.hub.downloaded.append(path)
        headers = {"Accept-Ranges": "bytes", **headers}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            self.send(200, content, headers)
            return
        first = int(asked[1])
        part = content[first : int(asked[2]) + 1 if asked[2] else None]
        if not part:
            self.send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        place = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self.send(206, part, {**headers, "Content-Range": place})

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class StorageHandler(Handler):
    """Large files by their SHA-256. As at an object store, the address is signed, and a token
    beside it is an error."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization"):
            self.send(400, b"Only one auth mechanism allowed", {})
            return
        stored = self.hub.stored(self.path.rpartition("/")[2])
        if stored is None:
            self.send(404)
            return
        path, content = stored
        self.send_content(path, content, {"ETag": f'"{sha256(content)}"'})

    do_HEAD = do_GET


class HubHandler(Handler):
    API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<rest>.+)")
    ACTIONS: ClassVar[tuple[str, ...]] = ("revision", "tree", "paths-info", "auth-check", "resolve")
    FILE = re.compile(
        r"/(?P<kind>datasets/)?(?P<name>.+?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
    )
    CACHED = re.compile(
        r"/api/resolve-cache/(?P<kind>models|datasets)/(?P<name>.+?)/(?P<commit>[0-9a-f]{40})/(?P<path>.+)"
    )

    def do_GET(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.hub.busy and self.path != "/":
            self.refuse_for_now()
            return
        path, _, query = self.path.partition("?")
        if cached := self.CACHED.fullmatch(path):
            self.send_cached(
                cached["kind"], unquote(cached["name"]), cached["commit"], unquote(cached["path"])
            )
        elif api := self.API.fullmatch(path):
            self.answer_api(api["kind"], api["rest"], query, body)
        elif file := self.FILE.fullmatch(path):
            kind = "datasets" if file["kind"] else "models"
            self.send_file(
                kind, unquote(file["name"]), unquote(file["revision"]), unquote(file["path"])
            )
        else:
            self.send(200 if path == "/" else 404)

    do_HEAD = do_POST = do_GET

    def answer_api(self, kind: str, rest: str, query: str, body: str) -> None:
        """`NAME`, `OWNER/NAME` or one of them with an action and its argument."""
        name, action, argument = rest, "", ""
        if split := re.fullmatch(rf"(.+?)/({'|'.join(self.ACTIONS)})(?:/(.*))?", rest):
            name, action, argument = split[1], split[2], split[3] or ""
        repository = self.find(kind, unquote(name))
        if repository is None:
            return
        revision, _, folder = argument.partition("/")
        revision = unquote(revision) or "main"
        if action != "auth-check" and not repository.has(revision):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif action == "auth-check":
            if self.may_read(repository):
                self.send_json({})
        elif action == "tree":
            self.send_tree(repository, unquote(folder), query)
        elif action == "paths-info":
            wanted = parse_qs(body).get("paths", [])
            listed = entries(repository.files, "", recursive=True)
            self.send_json([one for one in listed if one["path"] in wanted])
        else:
            self.send_facts(unquote(name), repository, with_sizes="blobs" in query)

    def send_facts(self, name: str, repository: Repository, with_sizes: bool) -> None:
        siblings = []
        for path, content in repository.files.items():
            sibling: dict[str, object] = {"rfilename": path}
            if with_sizes:
                sibling |= {"size": len(content), "blobId": git_blob(content)}
            siblings.append(sibling)
        facts = {
            "id": name,
            "sha": repository.commit,
            "siblings": siblings,
            "private": False,
            "disabled": False,
            "gated": "manual" if repository.gated else False,
            "tags": licences(repository.files),
        }
        self.send_json(facts)

    def send_tree(self, repository: Repository, folder: str, query: str) -> None:
        """One page of a folder's entries, with the address of the next one."""
        asked = {key: values[0] for key, values in parse_qs(query).items()}
        if folder and folder not in folders(repository.files):
            self.refuse(
                404, "EntryNotFound", f"{folder} does not exist on {repository.branches[0]}"
            )
            return
        listed = entries(repository.files, folder, asked.get("recursive", "").lower() == "true")
        first = int(asked.get("cursor", 0))
        headers = {}
        if first + PAGE < len(listed):
            following = urlencode({**asked, "cursor": first + PAGE})
            headers["Link"] = (
                f'<{self.hub.url}{self.path.partition("?")[0]}?{following}>; rel="next"'
            )
        self.send_json(listed[first : first + PAGE], headers)

    def send_file(self, kind: str, name: str, revision: str, path: str) -> None:
        """The way to a file: large ones are elsewhere, others at an address of the hub that caches
        them."""
        repository = self.find(kind, name)
        if repository is None or not self.may_read(repository):
            return
        if not repository.has(revision):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        content = repository.files.get(path)
        if content is None:
            self.refuse(
                404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": repository.commit}
            )
            return
        headers = {"X-Repo-Commit": repository.commit, "X-Linked-Size": str(len(content))}
        if is_large(path):
            address = f"{self.hub.storage_url}/{sha256(content)}"
            self.send(
                302, b"", {**headers, "X-Linked-ETag": f'"{sha256(content)}"', "Location": address}
            )
        else:
            address = f"/api/resolve-cache/{kind}/{name}/{repository.commit}/{quote(path)}"
            self.send(
                307,
                b"",
                {**headers, "X-Linked-ETag": f'"{git_blob(content)}"', "Location": address},
            )

    def send_cached(self, kind: str, name: str, commit: str, path: str) -> None:
        repository = self.hub.repository(kind, name)
        if repository is None or repository.commit != commit or path not in repository.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        content = repository.files[path]
        self.send_content(
            path, content, {"ETag": f'"{git_blob(content)}"', "X-Repo-Commit": commit}
        )

    def find(self, kind: str, name: str) -> Repository | None:
        """The repository of a name; None after an answer that leads elsewhere, or that there is
        none."""
        if new_name := self.hub.renamed.get(name):
            self.send(307, b"", {"Location": self.path.replace(f"/{name}", f"/{new_name}", 1)})
            return None
        repository = self.hub.repository(kind, name)
        if repository is None:
            # Whether it is private is nobody's business, so a stranger is asked to log in.
            status = 404 if self.headers.get("Authorization") else 401
            self.refuse(status, "RepoNotFound", "Repository not found")
        return repository

    def may_read(self, repository: Repository) -> bool:
        shown = self.headers.get("Authorization")
        if not repository.gated or (self.hub.token and shown == f"Bearer {self.hub.token}"):
            return True
        if shown:
            self.refuse(
                403,
                "GatedRepo",
                "Access to this repository is restricted and you are not in the authorized list.",
            )
        else:
            self.refuse(
                401,
                "GatedRepo",
                "Access to this repository is restricted. You must be authenticated.",
            )
        return False

    def refuse(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        facts = {"X-Error-Code": code, "X-Error-Message": message}
        self.send_json({"error": message}, {**facts, **(headers or {})}, status)

    def refuse_for_now(self) -> None:
        """Nothing is left of what may be asked in five minutes. The client waits until then, and a
        second more."""
        limits = {
            "RateLimit": '"api";r=0;t=0',
            "RateLimit-Policy": '"fixed window";"api";q=500;w=300',
            "Retry-After": "0",
        }
        self.send_json({"error": "Too Many Requests"}, limits, status=429)

    def send_json(
        self, answer: object, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> None:
        self.send(
            status,
            json.dumps(answer).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )


def parquet(rows: Iterable[Mapping[str, object]]) -> bytes:
    """Rows as a Parquet file, as repositories have them."""
    import io

    import pyarrow as pa
    from pyarrow import parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), out)
    return out.getvalue()
