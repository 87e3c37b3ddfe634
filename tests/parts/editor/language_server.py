"""The language server that editors use for YAML, spoken to over its standard input and output."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

# `make language-server` installs it there; the variable names another one.
INSTALLED = ROOT / ".venv" / "language-server" / "node_modules" / ".bin" / "yaml-language-server"
NAMED = "RECIPE_TEST_LANGUAGE_SERVER"
SECONDS = 60


def found() -> str | None:
    known = Path(os.environ.get(NAMED) or INSTALLED)
    return str(known) if known.is_file() and shutil.which("node") else None


class LanguageServer:
    """`texts` are opened under the names of files, whose first line says where their schema
    lies."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [found() or "", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.buffer, self.number = b"", 0
        self.diagnostics: dict[str, list[dict[str, Any]]] = {}
        capabilities = {
            "textDocument": {
                "completion": {"completionItem": {"documentationFormat": ["markdown"]}},
                "hover": {},
            },
            "workspace": {"configuration": True},
        }
        self.ask("initialize", processId=None, rootUri=root.as_uri(), capabilities=capabilities)
        self.tell("initialized")

    def __enter__(self) -> LanguageServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()

    def open(self, file: Path, text: str) -> list[dict[str, Any]]:
        """What it finds wrong in a text that is said to lie at `file`, each at one of its own."""
        uri = file.as_uri()
        assert uri not in self.diagnostics, (
            f"{file} is open already, and its diagnostics could be those of before"
        )
        known = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", textDocument=known)
        while uri not in self.diagnostics:
            self._heard(self._next())
        return self.diagnostics[uri]

    def complete(self, file: Path, line: int, column: int) -> dict[str, dict[str, Any]]:
        """What it proposes at a place, by label; line and column count from 0."""
        answer = self.ask("textDocument/completion", **self._at(file, line, column))
        return {item["label"]: item for item in answer["items"]}

    def hover(self, file: Path, line: int, column: int) -> str:
        return self.ask("textDocument/hover", **self._at(file, line, column))["contents"]["value"]

    def _at(self, file: Path, line: int, column: int) -> dict[str, Any]:
        return {
            "textDocument": {"uri": file.as_uri()},
            "position": {"line": line, "character": column},
        }

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        self._send({"id": self.number, "method": method, "params": params})
        while "method" in (answer := self._next()) or answer.get("id") != self.number:
            self._heard(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            self.diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif message.get("method") == "workspace/configuration":
            # It asks for the sections yaml, http, [yaml] and others. Nothing is fetched.
            settings = {
                "yaml": {
                    "schemaStore": {"enable": False},
                    "validate": True,
                    "hover": True,
                    "completion": True,
                }
            }
            answer = [settings.get(item.get("section")) for item in message["params"]["items"]]
            self._send({"id": message["id"], "result": answer})
        elif "id" in message and "method" in message:
            self._send({"id": message["id"], "result": None})

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while True:
            head, found_end, rest = self.buffer.partition(b"\r\n\r\n")
            length = int(head.rpartition(b":")[2]) if found_end else 0
            if found_end and len(rest) >= length:
                self.buffer = rest[length:]
                return json.loads(rest[:length])
            assert self.process.stdout
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0, end - time.monotonic())
            )
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            assert more, "the language server says nothing"
            self.buffer += more
