"""The first process of a container ends at SIGTERM, at every moment. The kernel drops a signal that
it does not handle, and the pod then keeps its GPUs until the end of its grace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.parts.jobs import podspec
from runner.parts.openshift.file_server import PORT, WORD
from runner.plan import PLAN_FILE
from tests.conftest import ROOT
from tests.parts.jobs.test_stage import BEFORE_SFT, Claim, plan_text, whole
from tests.parts.openshift.api import free_port

ENDED = 128 + signal.SIGTERM
AS_FIRST = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SECONDS = 20  # a busy machine may need some of them
pytestmark = pytest.mark.skipif(
    subprocess.run([*AS_FIRST, "true"], capture_output=True).returncode != 0,
    reason="this user may not `unshare` process ids, which needs the rights of root",
)


@contextmanager
def first_process(
    command: Sequence[str], **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command as the first process of its own process ids, as in a container: `unshare`, and the
    command's id here."""
    around = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    outside = subprocess.Popen([*AS_FIRST, *command], cwd=ROOT, env=around)
    try:
        yield outside, _only_child(outside.pid)
    finally:
        outside.kill()
        outside.wait()


def _only_child(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if child := children.read_text(encoding="ascii").strip():
            return int(child)
        time.sleep(0.01)
    raise AssertionError("unshare has started nothing")


def python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


@contextmanager
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts a connection and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        yield server


def require_end_at_sigterm(command: list[str], server: socket.socket, **env: str) -> None:
    """A first process ends at SIGTERM while it waits for an answer of the silent server."""
    with first_process(command, **env) as (outside, inside):
        connection, _ = server.accept()
        with connection:
            os.kill(inside, signal.SIGTERM)
            assert outside.wait(SECONDS) == ENDED


def test_a_program_of_ours_ends_before_its_imports(tmp_path):
    """A module that hangs takes the place of the first import, so that the signal comes as early as
    possible."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "argparse.py").write_text(f"open({str(fifo)!r}).read()", encoding="utf-8")
    command = python("runner.parts.jobs.stage", "run", "plan.json")
    with (
        first_process(command, PYTHONPATH=f"{tmp_path}:{ROOT}") as (outside, inside),
        fifo.open("w"),
    ):
        os.kill(inside, signal.SIGTERM)
        assert outside.wait(SECONDS) == ENDED


@pytest.mark.parametrize("verb", ["run", "gate", "promote"])
def test_a_stage_ends_while_it_reads_the_claim(tmp_path, verb):
    plan = tmp_path / PLAN_FILE
    os.mkfifo(plan)
    with (
        first_process(python("runner.parts.jobs.stage", verb, str(plan))) as (outside, inside),
        plan.open("w"),
    ):
        os.kill(inside, signal.SIGTERM)
        assert outside.wait(SECONDS) == ENDED


@pytest.mark.parametrize("machine", ["0", "1"])
def test_a_machine_ends_while_torchrun_waits_for_the_others(tmp_path, machine):
    """torchrun handles no signal before its rendezvous."""
    claim = Claim(tmp_path)
    claim.finish(*BEFORE_SFT)
    claim.measure("pretrain-2048")
    plan = tmp_path / PLAN_FILE
    plan.write_text(claim.here(plan_text(whole(*claim.site).stage("sft"))))
    with silent_server() as master:
        # Not the number of machines that the plan has, because machine 0 would listen at the port
        # itself.
        address, port = master.getsockname()
        rendezvous = (
            f"--rdzv-backend=c10d --rdzv-endpoint={address}:{port} --rdzv-conf=is_host=0 --nnodes=2"
        )
        torchrun = python(
            "torch.distributed.run", *rendezvous.split(), "--nproc-per-node=1", "-m", "this"
        )
        command = python("runner.parts.jobs.stage", "run", str(plan), "--", *torchrun)
        require_end_at_sigterm(command, master, PET_NODE_RANK=machine)


def test_a_pod_that_clones_its_code_ends_while_it_waits_for_the_server(tmp_path):
    with silent_server() as server:
        origin = "git://{}:{}/code.git".format(*server.getsockname())
        command = [
            "/bin/sh",
            "-c",
            podspec.CLONE,
            podspec.CLONER,
            origin,
            "0" * 40,
            str(tmp_path / "code"),
        ]
        require_end_at_sigterm(command, server)


def test_a_driver_ends_while_the_cluster_does_not_answer(tmp_path):
    claim = Claim(tmp_path)
    plan = tmp_path / PLAN_FILE
    plan.write_text(claim.here(plan_text(whole(*claim.site).stage("sft"))))
    (tmp_path / "token").write_text("word", encoding="utf-8")
    with silent_server() as cluster:
        server = "http://{}:{}".format(*cluster.getsockname())
        command = python(
            "runner.parts.openshift.controller",
            str(plan),
            "--server",
            server,
            "--keys",
            str(tmp_path),
            "--pause",
            "1",
        )
        require_end_at_sigterm(command, cluster)


def test_a_file_server_ends_between_two_requests(tmp_path):
    port = free_port()
    command = python("runner.parts.openshift.file_server", str(tmp_path))
    with first_process(command, **{WORD: "word", PORT: str(port)}) as (outside, inside):
        assert answer_of(f"http://127.0.0.1:{port}/word/list") == b"[]"
        os.kill(inside, signal.SIGTERM)
        assert outside.wait(SECONDS) == ENDED


def answer_of(address: str) -> bytes:
    """The answer of a server that is about to start."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                return answer.read()
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
