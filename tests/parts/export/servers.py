"""A small hub and a small Model Registry on this machine: real HTTP servers that the real clients
talk to, and that keep what they are sent. They answer what `huggingface_hub` 1.17 and
`model-registry` 0.3.18 ask."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the server's `answer`, which gives a status and what goes back as
    JSON."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        server: Any = self.server
        server.seen.append((self.command, path, self.headers.get("Authorization", "")))
        if self.headers.get("Authorization") != f"Bearer {server.token}" and not path.startswith(
            "/lfs/"
        ):
            status, said = 401, {"error": "Invalid credentials", "message": "Invalid credentials"}
        else:
            status, said = server.answer(self.command, urllib.parse.unquote(path), asked, body)
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 404 and server.missing:
            self.send_header("X-Error-Code", server.missing)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_HEAD = do_PATCH = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    missing = ""

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.token = token
        self.seen: list[tuple[str, str, str]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        raise NotImplementedError


class Hub(Server):
    """Repositories by name: whether each is private, and its files; what is large comes by git's
    large file storage.

    spoil: whether what arrives there is kept with a byte of another value."""

    missing = "RepoNotFound"

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.stored: dict[str, bytes] = {}
        self.spoil = False

    def answer(self, method: str, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            head = yaml.safe_load(text.split("---")[1])
            return (
                (200, {"errors": [], "warnings": []})
                if isinstance(head, dict)
                else (400, {"errors": ["no head"]})
            )
        if stored := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            assert hashlib.sha256(body).hexdigest() == stored[1]
            self.stored[stored[1]] = (b"?" + body[1:]) if self.spoil else body
            return 200, {}
        if batch := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            assert batch[1] in self.repositories
            objects = [
                one | {"actions": {"upload": {"href": f"{self.address}/lfs/{one['oid']}"}}} for one in json.loads(body)["objects"]
            ]  # fmt: skip
            return 200, {"transfer": "basic", "objects": objects}
        if model := re.fullmatch(
            r"/api/models/(.+?)(?:/(preupload|commit|revision|tree)/([^/]+))?", path
        ):
            name, what, _ = model.groups()
            if name not in self.repositories:
                return 404, {"error": "Repository not found"}
            if what == "preupload":
                files = json.loads(body)["files"]
                modes = [
                    (
                        one["path"],
                        "lfs" if one["path"].endswith((".safetensors", ".gguf")) else "regular",
                    )
                    for one in files
                ]
                return 200, {
                    "files": [
                        {"path": file, "uploadMode": mode, "shouldIgnore": False}
                        for file, mode in modes
                    ]
                }
            if what == "commit":
                return self.commit(name, [json.loads(line) for line in body.splitlines()])
            if what == "tree":
                files = self.repositories[name]["files"].items()
                tree = [
                    (file, content, hashlib.sha1(content).hexdigest()) for file, content in files
                ]
                return 200, [
                    {"type": "file", "path": file, "size": len(content), "oid": oid}
                    for file, content, oid in tree
                ]
            return 200, self.told(name)
        return 404, {"error": f"{method} {path}"}

    def create(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        name = f"{wanted.get('organization') or 'somebody'}/{wanted['name']}"
        if name in self.repositories:
            return 409, {
                "error": "You already created this model repo",
                "url": f"{self.address}/{name}",
            }
        self.repositories[name] = {
            "private": wanted.get("visibility") == "private",
            "files": {".gitattributes": b""},
            "commit": "0" * 40,
        }
        return 200, {"url": f"{self.address}/{name}"}

    def commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        files = self.repositories[name]["files"]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                files.pop(value["path"])
            else:
                self.repositories[name]["message"] = value["summary"]
        commit = hashlib.sha1(json.dumps(lines).encode()).hexdigest()
        self.repositories[name]["commit"] = commit
        return 200, {"commitUrl": f"{self.address}/{name}/commit/{commit}", "commitOid": commit}

    def told(self, name: str) -> dict[str, Any]:
        known = self.repositories[name]
        files = []
        for file, content in known["files"].items():
            digest = hashlib.sha256(content).hexdigest()
            large = (
                {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 134}}
                if file.endswith(".safetensors")
                else {}
            )
            files.append({"rfilename": file, "size": len(content), **large})
        return {
            "id": name,
            "sha": known["commit"],
            "private": known["private"],
            "siblings": files,
            "tags": [],
        }


class Registry(Server):
    """Models, versions and artifacts, each with a number, as Kubeflow's Model Registry keeps
    them."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.kept: dict[str, list[dict[str, Any]]] = {
            "registered_models": [],
            "model_versions": [],
            "artifacts": [],
        }
        self.numbers = itertools.count(1)
        self.forgetful = False

    def answer(self, method: str, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        path = path.removeprefix("/api/model_registry/v1")
        if method == "POST":
            return self.keep(path, json.loads(body))
        one = {
            "/registered_model": "registered_models",
            "/model_version": "model_versions",
            "/model_artifact": "artifacts",
        }
        if path in one:
            wanted = {"name": asked["name"]} | (
                {"parent": asked["parentResourceId"]} if "parentResourceId" in asked else {}
            )
            found = [
                entry
                for entry in self.kept[one[path]]
                if wanted.items() <= (entry | {"parent": entry.get("parent")}).items()
            ]
            return (
                (200, found[0])
                if found
                else (404, {"code": "404", "message": "nothing of that name"})
            )
        items = self.kept["registered_models"]
        return 200, {
            "items": items,
            "nextPageToken": "",
            "pageSize": len(items),
            "size": len(items),
        }

    def keep(self, path: str, told: dict[str, Any]) -> tuple[int, Any]:
        parent = re.fullmatch(r"/model_versions/(\d+)/artifacts", path)
        kind = "artifacts" if parent else path.strip("/")
        entry = told | {
            "id": str(next(self.numbers)),
            "createTimeSinceEpoch": "1",
            "lastUpdateTimeSinceEpoch": "1",
        }
        entry["parent"] = parent[1] if parent else told.get("registeredModelId")
        if self.forgetful:
            entry.get("customProperties", {}).clear()
        self.kept[kind].append(entry)
        return 201, entry


@contextmanager
def running(server: Server) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
