"""Servers of the tests: `recipe serve` as a process, and what transformers' own server gives a
model to read."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

SECONDS = 300


@contextmanager
def served(recipe: Path, run: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`recipe serve` as a process: its address without `/v1`, and the process."""
    with shown("serve", recipe, run, *options) as (url, process):
        yield url.removesuffix("/v1"), process


@contextmanager
def shown(
    command: str, recipe: Path, run: Path, *options: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A command that serves something as a process: the address that it says, and the process."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "runner",
            command,
            str(recipe),
            "--run",
            str(run),
            "--port",
            "0",
            *options,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, end = "", time.monotonic() + SECONDS
    try:
        assert process.stdout
        while "http://" not in said:
            ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
            line = process.stdout.readline() if ready else ""
            assert line, said or "the server says nothing"
            said += line
        yield f"http://{said.rpartition('http://')[2].split()[0]}", process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def listening(model: Path) -> Iterator[Any]:
    """transformers' server in this process, with one model: a function that sends it messages and
    gives the numbers of the tokens that the model was given for them."""
    from transformers.cli.serve import Serve

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Serve(
        force_model=str(model),
        device="cpu",
        dtype="float32",
        port=port,
        host="127.0.0.1",
        non_blocking=True,
    )
    (known,) = server._model_manager.loaded_models.values()
    heard: list[list[int]] = []
    generate = known.model.generate

    def listen(**given: Any) -> Any:
        heard.extend(given["input_ids"].tolist())
        return generate(**given)

    known.model.generate = listen

    def read(messages: Sequence[dict[str, str]]) -> list[int]:
        body = {"model": str(model), "messages": list(messages), "max_tokens": 1}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=SECONDS
        ).close()
        return heard.pop()

    end = time.monotonic() + SECONDS
    while not server.server.started:
        assert time.monotonic() < end
        time.sleep(0.05)
    try:
        yield read
    finally:
        server.kill_server()
