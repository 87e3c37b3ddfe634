"""Every process that another one starts ends with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runner.tools import child_process
from tests.conftest import ROOT

# The first processes of a pod or a terminal: nobody else's child.
FIRST = {
    "runner.parts.openshift.kfp.task",
    "runner.parts.openshift.controller",
    "runner.parts.openshift.file_server",
    "runner.parts.nodes.node",
    "runner.parts.ci.pull_request",
    "runner.parts.jobs.stage",
    # It measures for some seconds, and ends by itself.
    "runner.parts.planner.processor",
    # Aliases.
    "runner.parts.openshift.helper_pod",
    "runner.parts.images.trainer",
}
FIRST |= {"runner.__main__"}
# The arguments of all others, with a file or a socket that nobody ever writes into, or a module
# that never ends: whoever waits for it is at work for ever.
CHILDREN = {
    "runner.entrypoints.prepare": ["{folder}/file"],
    "runner.parts.export.gguf": ["{folder}/file"],
    "runner.data.packaged_models": ["{folder}/file", "{folder}/out", "1"],
    "runner.parts.evaluate.evaluate": ["{folder}/file"],
    "runner.trainer.fork_server": ["{socket}"],
    "runner.parts.images.trainer": ["{folder}/file"],
    "runner.trainer.generation": ["{folder}"],
    "runner.trainer.merging": ["{folder}", "{folder}/out"],
    "runner.parts.serve.openai_api": ["{folder}", "waits"],
}


def programs() -> set[str]:
    files = [
        file
        for file in (ROOT / "runner").rglob("*.py")
        if "__main__" in file.name + file.read_text("utf-8")
    ]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}


def test_every_program_of_the_runner_is_known_here():
    assert programs() == FIRST | CHILDREN.keys()


@pytest.mark.parametrize("module", CHILDREN)
def test_a_program_ends_when_the_one_that_started_it_is_gone(module, tmp_path):
    for name in ("file", "demo.json", "adapter_config.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "waits.py").write_text("import time\n\ntime.sleep(600)\n")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = os.pathsep.join(
        [str(ROOT), str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    env = os.environ | {"PYTHONPATH": path, child_process.PARENT: str(gone.pid)}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # Linux gives it a name; a path may have 107 bytes at most
    listener.listen()
    places = {"folder": tmp_path, "socket": listener.fileno()}
    command = [
        sys.executable,
        "-m",
        module,
        *(part.format_map(places) for part in CHILDREN[module]),
    ]
    with listener:
        done = subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            pass_fds=[places["socket"]],
        )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert Path(tmp_path / "demo.json").is_fifo()
